"""Greedy search and sampling, in which every row is a sequence of its own.

Axes: B sources, W sequences (rows) of each, R = B x W rows, K candidates of a row.
"""

import collections.abc as abc
from dataclasses import dataclass, field

import numpy as np

from service.arrays import IntArray
from service.search.options import SearchOptions
from service.search.protocol import (
    DEAD,
    Alternatives,
    Candidates,
    Detokenize,
    FinishReason,
    Hypothesis,
    Needed,
    Progress,
    Step,
    TokenProgress,
    stack,
)
from service.search.rules import Rules, entropy, rules_of
from service.search.sampling import draw

BEST = Needed(1, logits=False)


@dataclass(slots=True)
class Sequence:
    """The output of one row in progress, which grows until `finish_reason` is set."""

    options: SearchOptions
    rules: Rules
    random: np.random.Generator | None  # None: take the best token
    forced: int  # number of start ids that count in the length
    prefix: list[int]  # ids that are still to be read before the first choice
    token_ids: list[int] = field(default_factory=list[int])
    log_probs: list[float] = field(default_factory=list[float])
    top_log_probs: list[Alternatives] = field(default_factory=list[Alternatives])
    entropies: list[float] = field(default_factory=list[float])
    finish_reason: FinishReason | None = None
    reported: int = 0  # tokens that `progress` has returned

    def choose(self, candidates: Candidates, row: int) -> tuple[int, float] | None:
        """Return a token that the rules allow, and its log-prob; None if they allow none."""
        allowed = self.rules.allowed(*candidates.of(row), self.token_ids)
        if not len(allowed.ids) or allowed.log_probs.max() == DEAD:  # not on the shortlist
            return None
        random = self.random
        index = draw(allowed, self.options, random) if random else allowed.log_probs.argmax()
        if allowed.best is not None:
            self.top_log_probs.append(allowed.best)
        if self.options.entropies:
            self.entropies.append(entropy(candidates.of(row)[2]))
        return int(allowed.ids[index]), float(allowed.log_probs[index])

    def append(self, token_id: int, log_prob: float, eos_ids: abc.Sequence[int]) -> None:
        self.token_ids.append(token_id)
        self.log_probs.append(log_prob)
        if token_id in eos_ids:
            self.finish_reason = "eos"
        elif self.rules.stops and self.rules.ends(self.token_ids):
            self.finish_reason = "stop"
        elif len(self.token_ids) == self.options.max_new_tokens:
            self.finish_reason = "length"

    @property
    def room(self) -> int:
        """How many tokens may follow."""
        return self.options.max_new_tokens - len(self.token_ids)

    def events(self, sample: int) -> list[TokenProgress]:
        """Return the tokens that were not reported yet, and count them as reported."""
        new = range(self.reported, len(self.token_ids))
        self.reported = len(self.token_ids)
        return [
            TokenProgress(sample, self.token_ids[i], self.log_probs[i], self._alternatives(i))
            for i in new
        ]

    @property
    def hypothesis(self) -> Hypothesis:
        reason, penalty = self.finish_reason or "length", self.options.length_penalty
        return Hypothesis(
            self.token_ids,
            self.log_probs,
            reason,
            penalty,
            stack(self.top_log_probs, self.options.top_log_probs),
            self.forced,
            entropies=self.entropies,
        )

    def _alternatives(self, position: int) -> Alternatives | None:
        return self.top_log_probs[position] if self.options.top_log_probs else None


class GreedySearch:
    """The greedy searches or samples of a batch. A source ends when all its sequences have."""

    def __init__(
        self, rows_per_source: int, eos_ids: abc.Sequence[int], detokenize: Detokenize
    ) -> None:
        self._rows_per_source = rows_per_source
        self._eos_ids = eos_ids
        self._detokenize = detokenize
        self._sequences: list[Sequence] = []  # (R,): those of a source lie together
        self._ruled: list[Sequence] = []  # those that need more than the best token

    @property
    def needed(self) -> Needed:
        if not self._ruled:
            return BEST
        ruled = self._ruled
        counts = (each.rules.candidates(len(each.token_ids)) for each in ruled)
        return Needed.of(1, counts, any(each.rules.reads_logits for each in ruled))

    def insert(
        self,
        options: abc.Sequence[SearchOptions],
        starts: abc.Sequence[abc.Sequence[int]],
        sources: abc.Sequence[IntArray],
    ) -> None:
        ruled = rules_of(options, starts, sources, self._eos_ids, self._detokenize)
        for each, (_, *forced), rules in ruled:
            for sample in range(self._rows_per_source):
                # Seeded by request and sample, so that no draw depends on the rest of the batch
                random = np.random.default_rng([each.seed, sample]) if each.samples else None
                prefix = [*forced, *each.target_prefix]
                self._sequences.append(Sequence(each, rules, random, len(forced), prefix))
        self._find_ruled()

    def advance(self, candidates: Candidates) -> Step:
        token_ids = candidates.ids[:, 0].tolist()  # (R,): the best of each row
        log_probs = candidates.log_probs[:, 0].tolist()  # (R,)
        for row, sequence in enumerate(self._sequences):
            if sequence.rules.plain and not (sequence.prefix or sequence.finish_reason):
                sequence.append(token_ids[row], log_probs[row], self._eos_ids)
            else:
                token_ids[row] = self._next_token(sequence, candidates, row)
        # Lists, since arrays take longer for a few rows
        width, over = self._rows_per_source, [bool(each.finish_reason) for each in self._sequences]
        ended: list[int] = []
        if True in over:
            ended = [
                row // width for row in range(0, len(over), width) if all(over[row : row + width])
            ]
        return Step(np.array(token_ids), None, ended)

    def _next_token(self, sequence: Sequence, candidates: Candidates, row: int) -> int:
        """Return the next token of a row that has a prefix or rules, or is finished."""
        if sequence.prefix:
            return sequence.prefix.pop(0)
        if sequence.finish_reason:
            return self._eos_ids[0]
        chosen = sequence.choose(candidates, row)
        if chosen is None:
            sequence.finish_reason = "stop"
            return self._eos_ids[0]
        sequence.append(*chosen, self._eos_ids)
        return chosen[0]

    def progress(self, source: int) -> Progress:
        sequences = enumerate(self._of(source))
        return [event for sample, sequence in sequences for event in sequence.events(sample)]

    def hypotheses(self, source: int) -> list[Hypothesis]:
        return [sequence.hypothesis for sequence in self._of(source)]

    def compact(self, keep: IntArray) -> None:
        width, sequences = self._rows_per_source, self._sequences
        rows = (keep[:, None] * width + np.arange(width)).ravel().tolist()
        self._sequences = [sequences[row] for row in rows]
        self._find_ruled()

    def _find_ruled(self) -> None:
        self._ruled = [each for each in self._sequences if not each.rules.plain]

    def _of(self, source: int) -> list[Sequence]:
        first_row = source * self._rows_per_source
        return self._sequences[first_row : first_row + self._rows_per_source]
