"""Greedy search and sampling: every row goes its own way."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from service.arrays import IntArray
from service.search.options import SearchOptions
from service.search.protocol import (
    Alternatives,
    Candidates,
    Detokenize,
    FinishReason,
    Hypothesis,
    Needed,
    Progress,
    Step,
    TokenEvent,
)
from service.search.rules import Rules, rules_of
from service.search.sampling import draw


@dataclass(slots=True)
class Run:
    """One row. `ended` says why; until then it goes on."""

    options: SearchOptions
    rules: Rules
    random: np.random.Generator | None
    forced: list[int]
    token_ids: list[int] = field(default_factory=list[int])
    log_probs: list[float] = field(default_factory=list[float])
    top_log_probs: list[Alternatives] = field(default_factory=list[Alternatives])
    ended: FinishReason | None = None
    told: int = 0  # tokens that progress has shown

    def choose(self, candidates: Candidates, row: int) -> tuple[int, float] | None:
        """The best token that may follow, or one drawn, and its log-prob."""
        offer = self.rules.offer(*candidates.of(row), self.token_ids)
        if not len(offer.ids):
            return None
        random = self.random
        place = draw(offer, self.options, random) if random else offer.log_probs.argmax()
        self.top_log_probs.append(offer.best)
        return int(offer.ids[place]), float(offer.log_probs[place])

    def go_on(self, token: int, log_prob: float, eos_id: int) -> None:
        self.token_ids.append(token)
        self.log_probs.append(log_prob)
        if token == eos_id:
            self.ended = "eos"
        elif self.rules.stops and self.rules.ends(self.token_ids):
            self.ended = "stop"
        elif len(self.token_ids) == self.options.max_new_tokens:
            self.ended = "length"

    @property
    def hypothesis(self) -> Hypothesis:
        reason, penalty = self.ended or "length", self.options.length_penalty
        top = self.top_log_probs if self.options.top_log_probs else []
        return Hypothesis(self.token_ids, self.log_probs, reason, penalty, top)


class GreedySearch:
    """Each source has `width` runs; it ends with the last of them."""

    def __init__(
        self, width: int, forced_ids: Sequence[int], eos_id: int, text: Detokenize
    ) -> None:
        self._width = width
        self._forced_ids = list(forced_ids)
        self._eos_id = eos_id
        self._text = text
        self._runs: list[Run] = []

    @property
    def wanted(self) -> Needed:
        ruled = [run for run in self._runs if not run.rules.plain]
        return Needed.of(1, (run.rules.candidates(len(run.token_ids)) for run in ruled))

    def insert(self, options: Sequence[SearchOptions]) -> None:
        for each, rules in rules_of(options, self._eos_id, self._text):
            for sample in range(self._width):
                random = np.random.default_rng([each.seed, sample]) if each.samples else None
                forced = [*self._forced_ids, *each.target_prefix]
                self._runs.append(Run(each, rules, random, forced))

    def advance(self, candidates: Candidates) -> Step:
        tokens, log_probs = candidates.ids[:, 0].tolist(), candidates.log_probs[:, 0].tolist()
        for row, run in enumerate(self._runs):
            if run.rules.plain and not (run.forced or run.ended):
                run.go_on(tokens[row], log_probs[row], self._eos_id)
            else:
                tokens[row] = self._advance(run, candidates, row)
        done = np.array([run.ended is not None for run in self._runs]).reshape(-1, self._width)
        return Step(np.array(tokens), None, np.flatnonzero(done.all(axis=1)).tolist())

    def _advance(self, run: Run, candidates: Candidates, row: int) -> int:
        """-> what the row reads next."""
        if run.forced:
            return run.forced.pop(0)
        if run.ended:
            return self._eos_id
        chosen = run.choose(candidates, row)
        if chosen is None:
            run.ended = "stop"
            return self._eos_id
        run.go_on(*chosen, self._eos_id)
        return chosen[0]

    def progress(self, source: int) -> Progress:
        taken: list[TokenEvent] = []
        for sample, run in enumerate(self._of(source)):
            for i in range(run.told, len(run.token_ids)):
                top = run.top_log_probs[i] if run.options.top_log_probs else []
                taken.append(TokenEvent(sample, run.token_ids[i], run.log_probs[i], top))
            run.told = len(run.token_ids)
        return taken

    def hypotheses(self, source: int) -> list[Hypothesis]:
        return [run.hypothesis for run in self._of(source)]

    def compact(self, keep: IntArray) -> None:
        self._runs = [run for i in keep for run in self._of(i)]

    def _of(self, source: int) -> list[Run]:
        return self._runs[source * self._width : (source + 1) * self._width]
