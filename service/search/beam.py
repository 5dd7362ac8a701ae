"""Beam search for many sources at once, each with its own beams.

Axes: B sources, W beams (rows) of each, R = B x W rows, K candidates of a row.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import starmap

import numpy as np

from service.arrays import IntArray
from service.search.banks import Banks, best_continuations
from service.search.options import SearchOptions
from service.search.protocol import (
    ALTERNATIVE,
    DEAD,
    Alternatives,
    Beam,
    BeamProgress,
    Candidates,
    Detokenize,
    FinishReason,
    Hypothesis,
    Needed,
    Progress,
    Step,
    stack,
)
from service.search.rules import Rules, entropy, rules_of


@dataclass(slots=True)
class BeamState:
    """The beams of one source at every step, and the hypotheses that have ended."""

    options: SearchOptions
    rules: Rules
    forced: int  # number of start ids that count in the length
    prefix: list[int]  # ids that are still to be read before the first choice
    totals: list[float]  # (W,): of the beams at the present step
    banks: Banks | None  # while required phrases are missing
    steps: list[list[Beam]] = field(default_factory=list[list[Beam]])  # (T, W)
    alternatives: list[Alternatives] = field(default_factory=list[Alternatives])  # T x (W, N)
    entropies: list[list[float]] = field(default_factory=list[list[float]])  # if asked for: (T, W)
    hypotheses: list[Hypothesis] = field(default_factory=list[Hypothesis])  # <= W, best first
    is_over: bool = False

    def continuations(
        self, candidates: Candidates, first_row: int, eos_ids: Sequence[int]
    ) -> Iterable[Beam]:
        """Return the allowed continuations of all beams, best first, and store the alternatives and
        entropies.

        Enough are returned for W live beams, even if all that end a beam rank first. If phrases are
        required, they come in the order of `Banks.share`.
        """
        if self.options.entropies:
            rows = range(first_row, first_row + len(self.totals))
            self.entropies.append([entropy(candidates.of(row)[2]) for row in rows])
        # W live beams may come from one row, which may end by each eos
        count = self.options.beam_size + len(eos_ids)
        advancing = self.banks.advancing() if self.banks else [()] * len(self.totals)
        if self.rules.takes_best:
            best = best_continuations(candidates, first_row, self.totals, count, advancing)
            if not self.banks:
                return starmap(Beam, best)
            return self.banks.share(best, self._room, eos_ids)
        count += self.rules.most_ending
        found: list[Beam] = []
        alternatives = np.empty((len(self.totals), self.options.top_log_probs), ALTERNATIVE)
        for row, total in enumerate(self.totals):
            if total == DEAD:
                continue
            of_row = candidates.of(first_row + row)
            allowed = self.rules.allowed(*of_row, self._token_ids(row), advancing[row])
            if allowed.best is not None:
                alternatives[row] = allowed.best
            pairs = allowed.most_probable(count, advancing[row])
            found += [Beam(total + log_prob, row, token, log_prob) for token, log_prob in pairs]
        self.alternatives.append(alternatives)
        found.sort(key=lambda beam: -beam.total)
        return self.banks.share(found, self._room, eos_ids) if self.banks else found

    def advance(self, continuations: Iterable[Beam], eos_ids: Sequence[int]) -> list[Beam]:
        """Take a step and return the beams of the W rows; set `is_over` if it was the last one.

        Among the W best continuations, those that end become hypotheses; endings that rank lower
        are dropped. The W best continuations that do not end become the beams. Hugging Face and
        CTranslate2 have the same rule: no ending replaces a live beam that scores better.
        """
        beam_size = self.options.beam_size
        # STEP 1: separate endings from live beams
        beams = self._go_on(continuations, eos_ids)
        if not beams and not self.hypotheses:
            self._end_beams("stop")  # the rules allow no token, so the beams end as they are
        # STEP 2: give each beam a row
        self._step_to(assign_rows(beams, beam_size))
        # STEP 3: at max_new_tokens, live beams become hypotheses and compete with all others
        at_limit = len(self.steps) == self.options.max_new_tokens
        if at_limit:
            self._end_beams("length")
        self.is_over = at_limit or max(self.totals) == DEAD or self._is_decided()
        if self.is_over:
            self.totals = [DEAD] * beam_size
        return self.steps[-1]

    def _go_on(self, continuations: Iterable[Beam], eos_ids: Sequence[int]) -> list[Beam]:
        """Return the W best continuations that do not end. Those that end and are among the W best
        of all become hypotheses."""
        beams: list[Beam] = []
        stops, beam_size = self.rules.stops, self.options.beam_size
        for rank, beam in enumerate(continuations):
            if beam.total == DEAD:
                break
            may_end = stops or beam.token_id in eos_ids
            reason = self._finish_reason(beam, eos_ids) if may_end else None
            if reason is None:
                beams.append(beam)
                if len(beams) == beam_size:
                    break
            elif rank < beam_size:
                unmet = self.banks.unmet_after(beam) if self.banks else ()
                self._add_hypothesis([*self._path(beam.parent), beam], reason, unmet)
        return beams

    def progress(self) -> BeamProgress:
        """Return the ids shared by everything that can still become the best hypothesis.

        A beam can still win if its optimistic score reaches that of the best hypothesis. The
        optimistic score assumes that further tokens cost no log-prob, and takes the better of the
        present and the longest length. The score to reach never falls, so the ids stay shared.
        """
        length, penalty = max(1, self._length), self.options.length_penalty
        longest = self.forced + self.options.max_new_tokens
        least = self.hypotheses[0].score if self.hypotheses else -math.inf
        contenders = [(least, hypothesis.token_ids) for hypothesis in self.hypotheses[:1]]
        contenders += [
            (total / length**penalty, self._token_ids(row))
            for row, total in enumerate(self.totals)
            if total > DEAD and max(total / length**penalty, total / longest**penalty) >= least
        ]
        best = max(contenders, key=lambda contender: contender[0], default=(0.0, []))[1]
        return BeamProgress(common_prefix([ids for _, ids in contenders]), best)

    def _finish_reason(self, beam: Beam, eos_ids: Sequence[int]) -> FinishReason | None:
        """Return why a beam ends with its token; None if it goes on."""
        if beam.token_id in eos_ids:
            return "eos"
        if self.banks and self.banks.lacks(beam):
            return None
        return "stop" if self.rules.ends([*self._token_ids(beam.parent), beam.token_id]) else None

    def _step_to(self, beams: list[Beam]) -> None:
        self.steps.append(beams)
        self.totals = [beam.total for beam in beams]
        if self.banks and not self.banks.follow(beams):
            self.banks = None  # all beams that follow have all phrases

    @property
    def _length(self) -> int:
        """Length of the beams in a score: the start ids that count, and the tokens so far."""
        return self.forced + len(self.steps)

    @property
    def _room(self) -> int:
        """Tokens that fit behind the one of this step."""
        return self.options.max_new_tokens - len(self.steps) - 1

    def _is_decided(self) -> bool:
        """Return whether W hypotheses are finished and the live beams can be dropped.

        With early stopping they always can. Otherwise they can unless the best beam, at its present
        length, scores better than the worst hypothesis. A row that is not a rival (`Banks.rivals`)
        has the place of a hypothesis, but not of one to return.
        """
        options = self.options
        rivals = self.banks.rivals(self.totals) if self.banks else self.totals
        if len(self.hypotheses) < max(options.num_hypotheses, len(rivals)):
            return False
        best = max(rivals, default=DEAD) / self._length**options.length_penalty
        return options.early_stopping or self.hypotheses[-1].score >= best

    def _end_beams(self, reason: FinishReason) -> None:
        """Add every live beam to the hypotheses as it is."""
        for row, total in enumerate(self.totals):
            if total > DEAD:
                unmet = self.banks.unmet(row) if self.banks else ()
                self._add_hypothesis(self._path(row), reason, unmet)

    def _add_hypothesis(
        self, path: list[Beam], reason: FinishReason, unmet: tuple[int, ...]
    ) -> None:
        """Add a hypothesis and keep the W best; those with all phrases are better than others."""
        token_ids, log_probs = [b.token_id for b in path], [b.log_prob for b in path]
        top_log_probs: list[Alternatives] = []
        if self.options.top_log_probs:
            # A last step at which the rules allow no token has alternatives but no beam.
            steps = zip(self.alternatives, path, strict=False)
            top_log_probs = [alternatives[beam.parent] for alternatives, beam in steps]
        penalty = self.options.length_penalty
        entropies = [of[beam.parent] for of, beam in zip(self.entropies, path, strict=False)]
        self.hypotheses.append(
            Hypothesis(
                token_ids,
                log_probs,
                reason,
                penalty,
                stack(top_log_probs, self.options.top_log_probs),
                self.forced,
                unmet,
                entropies,
            )
        )
        self.hypotheses.sort(key=lambda hypothesis: (len(hypothesis.unmet), -hypothesis.score))
        del self.hypotheses[self.options.beam_size :]

    def _path(self, row: int) -> list[Beam]:
        """Return the beams, from the first step to the present one, that lead to a row."""
        path: list[Beam] = []
        for beams in reversed(self.steps):
            path.append(beams[row])
            row = beams[row].parent
        return path[::-1]

    def _token_ids(self, row: int) -> list[int]:
        return [beam.token_id for beam in self._path(row)]


def merged(
    totals: Sequence[float], log_probs: Sequence[Sequence[float]], ids: Sequence[Sequence[int]]
) -> Iterator[Beam]:
    """Yield the continuations of a source's W rows, best first; of equals, those of the lowest row.

    `log_probs` and `ids` (W, K) hold each row's candidates, best first. Lists, and no more of them
    than is read, since arrays take longer for so few numbers.
    """
    heads = [total + row[0] for total, row in zip(totals, log_probs, strict=True)]
    places = [0] * len(heads)
    while (best := max(heads)) > DEAD:
        row = heads.index(best)
        place, of_row = places[row], log_probs[row]
        yield Beam(best, row, ids[row][place], of_row[place])
        place += 1
        places[row] = place
        heads[row] = totals[row] + of_row[place] if place < len(of_row) else DEAD


def assign_rows(beams: Sequence[Beam], rows_per_source: int) -> list[Beam]:
    """Return a beam for each row of a source.

    The first beam that continues a row stays in it, so that the cache of that row does not move.
    The others take the rows that no beam continues. Rows that remain hold no beam.
    """
    rows: list[Beam | None] = [None] * rows_per_source
    moved: list[Beam] = []
    for beam in beams:
        if rows[beam.parent] is None:
            rows[beam.parent] = beam
        else:
            moved.append(beam)
    waiting = iter(moved)
    return [  # the beam that stays, else the next that moves, else none
        beam or next(waiting, None) or Beam(DEAD, row, 0, 0.0) for row, beam in enumerate(rows)
    ]


def common_prefix(sequences: Sequence[list[int]]) -> list[int]:
    shared: list[int] = []
    for ids in zip(*sequences, strict=False):
        if len(set(ids)) > 1:
            break
        shared.append(ids[0])
    return shared


class BeamSearch:
    """The beam searches of a batch, all with the same beam size W."""

    def __init__(
        self, rows_per_source: int, eos_ids: Sequence[int], detokenize: Detokenize
    ) -> None:
        self._rows_per_source = rows_per_source
        self._eos_ids = eos_ids
        self._count = rows_per_source + len(eos_ids)  # as `Rules.least`
        self._detokenize = detokenize
        self._states: list[BeamState] = []
        self._ruled: list[BeamState] = []  # those that need more than their best continuations

    @property
    def needed(self) -> Needed:
        if not self._ruled:
            return Needed(self._count, logits=False)
        ruled = self._ruled
        counts = (state.rules.candidates(len(state.steps)) for state in ruled)
        logits = any(state.rules.reads_logits for state in ruled)
        return Needed.of(self._count, counts, logits)

    def insert(
        self,
        options: Sequence[SearchOptions],
        starts: Sequence[Sequence[int]],
        sources: Sequence[IntArray],
    ) -> None:
        totals = [0.0] + [DEAD] * (self._rows_per_source - 1)  # rows start alike: one suffices
        ruled = rules_of(options, starts, sources, self._eos_ids, self._detokenize)
        for each, (_, *forced), rules in ruled:
            prefix, banks = [*forced, *each.target_prefix], None
            if rules.phrases:
                banks = Banks(rules.phrases, each.target_prefix, self._rows_per_source)
            self._states.append(BeamState(each, rules, len(forced), prefix, totals, banks))
        self._find_ruled()

    def advance(self, candidates: Candidates) -> Step:
        token_ids: list[int] = []
        parents: list[int] = []
        ended: list[int] = []
        log_probs = candidates.log_probs[:, : self._count].tolist()
        ids = candidates.ids[:, : self._count].tolist()
        for source, state in enumerate(self._states):
            first_row = source * self._rows_per_source
            rows = range(first_row, first_row + self._rows_per_source)
            if state.prefix:
                token_ids += [state.prefix.pop(0)] * len(rows)
                parents += rows
                continue
            if state.rules.plain:
                of = slice(first_row, first_row + self._rows_per_source)
                best = merged(state.totals, log_probs[of], ids[of])
            else:
                best = state.continuations(candidates, first_row, self._eos_ids)
            beams = state.advance(best, self._eos_ids)
            token_ids += [beam.token_id for beam in beams]
            if state.is_over:
                ended.append(source)
                parents += rows  # nobody reads their caches any more
            else:
                parents += [first_row + beam.parent for beam in beams]
        stay = parents == [*range(len(parents))]
        return Step(np.array(token_ids), None if stay else np.array(parents), ended)

    def progress(self, source: int) -> Progress:
        state = self._states[source]
        return state.progress() if state.steps else []

    def hypotheses(self, source: int) -> list[Hypothesis]:
        state = self._states[source]
        return state.hypotheses[: state.options.num_hypotheses]

    def compact(self, keep: IntArray) -> None:
        self._states = [self._states[source] for source in keep.tolist()]
        self._find_ruled()

    def _find_ruled(self) -> None:
        self._ruled = [state for state in self._states if not state.rules.plain]
