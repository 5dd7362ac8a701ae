"""Beam search, each source on its own."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from service.arrays import FloatArray, IntArray
from service.search.options import SearchOptions
from service.search.protocol import (
    Alternatives,
    BeamProgress,
    Candidates,
    Detokenize,
    FinishReason,
    Hypothesis,
    Needed,
    Progress,
    Step,
)
from service.search.rules import Rules, most_probable, rules_of


class Beam(NamedTuple):
    """What one row of a source reads, and which row it continues."""

    total: float  # sum of log-probs; -inf: there is no beam yet
    row: int
    token: int
    log_prob: float


@dataclass(slots=True)
class BeamState:
    """One source of a beam search: its beams at every step, and the hypotheses that have ended."""

    options: SearchOptions
    rules: Rules
    forced: list[int]
    totals: list[float]
    steps: list[list[Beam]] = field(default_factory=list[list[Beam]])
    ended: list[Hypothesis] = field(default_factory=list[Hypothesis])
    tops: list[list[Alternatives]] = field(default_factory=list[list[Alternatives]])

    def best(self, candidates: Candidates, first_row: int) -> list[Beam]:
        """What may follow, best first, where rules have a say in it: as many as can go on, and as
        can end before them."""
        count = 2 * self.options.beam_size + self.rules.most_ending
        found: list[Beam] = []
        tops: list[Alternatives] = [[] for _ in self.totals]
        for row, total in enumerate(self.totals):
            if total == -math.inf:
                continue
            offer = self.rules.offer(*candidates.of(first_row + row), self._generated(row))
            tops[row] = offer.best
            pairs = most_probable(offer.log_probs, offer.ids, count)
            found += [Beam(total + log_prob, row, token, log_prob) for token, log_prob in pairs]
        self.tops.append(tops)
        found.sort(key=lambda beam: -beam.total)
        return found

    def grow(self, best: Iterable[Beam], eos_id: int) -> list[Beam]:
        """The best 2 W candidates -> the beams at the next step. Those among the best W that end
        are hypotheses; the best W others go on. Where nothing may follow, the beams end."""
        width = self.options.beam_size
        going: list[Beam] = []
        for rank, beam in enumerate(best):
            if beam.total == -math.inf or len(going) == width:
                break
            reason = self._reason(beam, eos_id)
            if reason is None:
                going.append(beam)
            elif rank < width:
                self._end(beam.row, reason, beam)
        if not going and not self.ended:
            self._end_all("stop")
        self.steps.append(in_place(going, width))
        self.totals = [beam.total for beam in self.steps[-1]]
        return self.steps[-1]

    @property
    def standing(self) -> BeamProgress:
        """A beam can still become the best if it would with all that follows certain: the best that
        has ended only rises, and no descendant of a beam scores more than that."""
        length, penalty = max(1, len(self.steps)), self.options.length_penalty
        longest = max(length, self.options.max_new_tokens)
        least = self.ended[0].score if self.ended else -math.inf
        winning = [(least, hypothesis.token_ids) for hypothesis in self.ended[:1]]
        winning += [
            (total / length**penalty, self._generated(row))
            for row, total in enumerate(self.totals)
            if total > -math.inf and max(total / length**penalty, total / longest**penalty) >= least
        ]
        best = max(winning, key=lambda one: one[0], default=(0.0, []))[1]
        return BeamProgress(common_prefix([ids for _, ids in winning]), best)

    def _reason(self, beam: Beam, eos_id: int) -> FinishReason | None:
        """Why a beam ends here, if it does."""
        if beam.token == eos_id:
            return "eos"
        if self.rules.stops and self.rules.ends([*self._generated(beam.row), beam.token]):
            return "stop"
        return None

    def _generated(self, row: int) -> list[int]:
        """What a row holds."""
        token_ids: list[int] = []
        for step in reversed(self.steps):
            token_ids.append(step[row].token)
            row = step[row].row
        return token_ids[::-1]

    @property
    def has_ended(self) -> bool:
        """At the limit the beams compete with the hypotheses, also with those of the last step."""
        if max(self.totals) == -math.inf:
            return True
        if len(self.steps) < self.options.max_new_tokens:
            return self._is_full
        self._end_all("length")
        return True

    def _end_all(self, reason: FinishReason) -> None:
        for row, total in enumerate(self.totals):
            if total > -math.inf:
                self._end(row, reason)

    @property
    def _is_full(self) -> bool:
        """W hypotheses have ended and, without early stopping, no beam can overtake the worst of
        them at its present length."""
        options = self.options
        if len(self.ended) < options.beam_size:
            return False
        best = max(self.totals) / len(self.steps) ** options.length_penalty
        return options.early_stopping or self.ended[-1].score >= best

    def _end(self, row: int, reason: FinishReason, *last: Beam) -> None:
        """The hypothesis that a row holds, and perhaps one token after it."""
        beams = list(last)
        for step in reversed(self.steps):
            beams.append(step[row])
            row = step[row].row
        beams.reverse()
        token_ids, log_probs = [b.token for b in beams], [b.log_prob for b in beams]
        tops: list[Alternatives] = []
        if self.options.top_log_probs:
            tops = [rows[beam.row] for rows, beam in zip(self.tops, beams, strict=False)]
        penalty = self.options.length_penalty
        self.ended.append(Hypothesis(token_ids, log_probs, reason, penalty, tops))
        self.ended.sort(key=lambda hypothesis: -hypothesis.score)
        del self.ended[self.options.beam_size :]


def common_prefix(sequences: Sequence[list[int]]) -> list[int]:
    shared: list[int] = []
    for ids in zip(*sequences, strict=False):
        if len(set(ids)) > 1:
            break
        shared.append(ids[0])
    return shared


def in_place(beams: Sequence[Beam], width: int) -> list[Beam]:
    """A beam for each row: the first that continues a row stands there, so that the cache of that
    row stays where it is; the others stand where nobody goes on."""
    standing: list[Beam | None] = [None] * width
    others: list[Beam] = []
    for beam in beams:
        if standing[beam.row] is None:
            standing[beam.row] = beam
        else:
            others.append(beam)
    rest = iter(others)
    return [
        beam or next(rest, None) or Beam(-math.inf, row, 0, 0.0)
        for row, beam in enumerate(standing)
    ]


class BeamSearch:
    """Beam search, each source on its own: one sort for all of them, then lists, which for some
    dozens of numbers are faster than arrays."""

    def __init__(
        self, width: int, forced_ids: Sequence[int], eos_id: int, text: Detokenize
    ) -> None:
        self._width = width
        self._forced_ids = list(forced_ids)
        self._eos_id = eos_id
        self._text = text
        self._trees: list[BeamState] = []

    @property
    def wanted(self) -> Needed:
        least = 2 * self._width
        ruled = (tree for tree in self._trees if not tree.rules.plain)
        return Needed.of(least, (t.rules.candidates(len(t.steps)) for t in ruled))

    def insert(self, options: Sequence[SearchOptions]) -> None:
        totals = [0.0] + [-math.inf] * (self._width - 1)
        for each, rules in rules_of(options, self._eos_id, self._text):
            forced = [*self._forced_ids, *each.target_prefix]
            self._trees.append(BeamState(each, rules, forced, totals))

    def advance(self, candidates: Candidates) -> Step:
        tokens: list[int] = []
        parents: list[int] = []
        ended: list[int] = []
        plain = self._best(candidates.log_probs, candidates.ids)
        for i, (tree, best) in enumerate(zip(self._trees, plain, strict=True)):
            rows = range(i * self._width, (i + 1) * self._width)
            if tree.forced:
                tokens += [tree.forced.pop(0)] * self._width
                parents += rows
                continue
            if not tree.rules.plain:
                best = tree.best(candidates, rows.start)
            beams = tree.grow(best, self._eos_id)
            tokens += [beam.token for beam in beams]
            if tree.has_ended:
                ended.append(i)
                tree.totals = [-math.inf] * self._width
                parents += rows  # nobody reads their caches any more
            else:
                parents += [rows[beam.row] for beam in beams]
        return Step(np.array(tokens), np.array(parents), ended)

    def _best(self, log_probs: FloatArray, ids: IntArray) -> Iterator[Iterator[Beam]]:
        """The best 2 W of each source's W x K candidates, by one sort."""
        sources, k = len(self._trees), log_probs.shape[1]
        totals = np.array([tree.totals for tree in self._trees])  # (B, W), float64
        candidates = (log_probs + totals.reshape(-1, 1)).reshape(sources, -1)  # (B, W * K)
        order = np.argsort(-candidates, kind="stable")[:, : 2 * self._width]  # (B, 2 W)
        places = order + np.arange(sources)[:, None] * candidates.shape[1]
        columns = (candidates.ravel()[places], order // k, ids.ravel()[places])
        picked = (array.tolist() for array in (*columns, log_probs.ravel()[places]))
        return (map(Beam, *source) for source in zip(*picked, strict=True))

    def progress(self, source: int) -> Progress:
        tree = self._trees[source]
        return tree.standing if tree.steps else []

    def hypotheses(self, source: int) -> list[Hypothesis]:
        tree = self._trees[source]
        return tree.ended[: tree.options.num_hypotheses]

    def compact(self, keep: IntArray) -> None:
        self._trees = [self._trees[i] for i in keep]
