"""Which tokens come next. Sees log-probs and ids, never a cache or a tensor of the network.

Axes: B sources that are decoded together, W rows (beams) of each, R = B x W, K candidates a row.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["eos", "length"]
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """A beam of 1 is greedy search."""

    max_new_tokens: int
    beam_size: int = 1
    num_hypotheses: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = True


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Every generated id, eos included when finish_reason is eos, and the log-prob of each."""

    token_ids: list[int]
    log_probs: list[float]
    finish_reason: FinishReason
    length_penalty: float = 1.0

    @property
    def score(self) -> float:
        """Sum of log-probs / number of tokens ** length_penalty (the form of Hugging Face)."""
        return sum(self.log_probs) / len(self.token_ids) ** self.length_penalty


class Choice(NamedTuple):
    """What each row reads next (R,); which row it continues (R,), None where each goes on; and the
    sources that have ended, whose rows may read anything."""

    tokens: IntArray
    parents: IntArray | None
    ended: list[int]


class Search(Protocol):
    """The search of many sources that have as many rows each."""

    @property
    def candidates(self) -> int:
        """K: how many a row must offer."""
        ...

    def insert(self, options: Sequence[SearchOptions]) -> None:
        """Append sources, at their first position."""
        ...

    def advance(self, log_probs: FloatArray, ids: IntArray) -> Choice:
        """(R, K) candidates of each row, best first -> the next step."""
        ...

    def hypotheses(self, source: int) -> list[Hypothesis]:
        """Of a source that has ended, best first."""
        ...

    def compact(self, keep: IntArray) -> None:
        """Only these sources stay, in this order."""
        ...


def new_search(width: int, forced_ids: Sequence[int], eos_id: int) -> Search:
    """`forced_ids` follow the start id whatever the model predicts."""
    return Beams(width, forced_ids, eos_id) if width > 1 else Greedy(forced_ids, eos_id)


@dataclass(slots=True)
class Run:
    """One source of a greedy search."""

    options: SearchOptions
    forced: list[int]
    token_ids: list[int] = field(default_factory=list[int])
    log_probs: list[float] = field(default_factory=list[float])


class Greedy:
    """Takes the best candidate until eos or the limit."""

    candidates = 1

    def __init__(self, forced_ids: Sequence[int], eos_id: int) -> None:
        self._forced_ids = list(forced_ids)
        self._eos_id = eos_id
        self._runs: list[Run] = []

    def insert(self, options: Sequence[SearchOptions]) -> None:
        self._runs += [Run(each, self._forced_ids.copy()) for each in options]

    def advance(self, log_probs: FloatArray, ids: IntArray) -> Choice:
        tokens: list[int] = ids[:, 0].tolist()
        ended: list[int] = []
        for i, (run, log_prob) in enumerate(zip(self._runs, log_probs[:, 0].tolist(), strict=True)):
            if run.forced:
                tokens[i] = run.forced.pop(0)
                continue
            run.token_ids.append(tokens[i])
            run.log_probs.append(log_prob)
            if tokens[i] == self._eos_id or len(run.token_ids) == run.options.max_new_tokens:
                ended.append(i)
        return Choice(np.array(tokens), None, ended)

    def hypotheses(self, source: int) -> list[Hypothesis]:
        run = self._runs[source]
        reason = "eos" if run.token_ids[-1] == self._eos_id else "length"
        return [Hypothesis(run.token_ids, run.log_probs, reason, run.options.length_penalty)]

    def compact(self, keep: IntArray) -> None:
        self._runs = [self._runs[i] for i in keep]


class Beam(NamedTuple):
    """What one row of a source reads, and which row it continues."""

    total: float  # sum of log-probs; -inf: there is no beam yet
    row: int
    token: int
    log_prob: float


@dataclass(slots=True)
class Tree:
    """One source of a beam search: its beams at every step, and the hypotheses that have ended."""

    options: SearchOptions
    forced: list[int]
    totals: list[float]
    steps: list[list[Beam]] = field(default_factory=list[list[Beam]])
    ended: list[Hypothesis] = field(default_factory=list[Hypothesis])

    def grow(self, best: Iterable[Beam], eos_id: int) -> list[Beam]:
        """The best 2 W candidates -> the beams at the next step. Those among the best W that are
        eos end a hypothesis; the best W others go on."""
        width = self.options.beam_size
        going: list[Beam] = []
        for rank, beam in enumerate(best):
            if beam.total == -math.inf or len(going) == width:
                break
            if beam.token != eos_id:
                going.append(beam)
            elif rank < width:
                self._end(beam.row, beam)
        self.steps.append(in_place(going, width))
        self.totals = [beam.total for beam in self.steps[-1]]
        return self.steps[-1]

    @property
    def has_ended(self) -> bool:
        """At the limit the beams are hypotheses too."""
        if len(self.steps) < self.options.max_new_tokens:
            return self._is_full
        if not self._is_full:
            for row, total in enumerate(self.totals):
                if total > -math.inf:
                    self._end(row)
        return True

    @property
    def _is_full(self) -> bool:
        """W hypotheses have ended and, without early stopping, no beam can overtake the worst of
        them at its present length."""
        options = self.options
        if len(self.ended) < options.beam_size:
            return False
        best = max(self.totals) / len(self.steps) ** options.length_penalty
        return options.early_stopping or self.ended[-1].score >= best

    def _end(self, row: int, *last: Beam) -> None:
        """The hypothesis that a row holds, and perhaps eos after it."""
        beams = list(last)
        for step in reversed(self.steps):
            beams.append(step[row])
            row = step[row].row
        beams.reverse()
        token_ids, log_probs = [b.token for b in beams], [b.log_prob for b in beams]
        reason, penalty = "eos" if last else "length", self.options.length_penalty
        self.ended.append(Hypothesis(token_ids, log_probs, reason, penalty))
        self.ended.sort(key=lambda hypothesis: -hypothesis.score)
        del self.ended[self.options.beam_size :]


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


class Beams:
    """Beam search, each source on its own: one sort for all of them, then lists, which for some
    dozens of numbers are faster than arrays."""

    def __init__(self, width: int, forced_ids: Sequence[int], eos_id: int) -> None:
        self.candidates = 2 * width
        self._width = width
        self._forced_ids = list(forced_ids)
        self._eos_id = eos_id
        self._trees: list[Tree] = []

    def insert(self, options: Sequence[SearchOptions]) -> None:
        totals = [0.0] + [-math.inf] * (self._width - 1)
        self._trees += [Tree(each, self._forced_ids.copy(), totals) for each in options]

    def advance(self, log_probs: FloatArray, ids: IntArray) -> Choice:
        tokens: list[int] = []
        parents: list[int] = []
        ended: list[int] = []
        for i, (tree, best) in enumerate(zip(self._trees, self._best(log_probs, ids), strict=True)):
            rows = range(i * self._width, (i + 1) * self._width)
            if tree.forced:
                tokens += [tree.forced.pop(0)] * self._width
                parents += rows
                continue
            beams = tree.grow(best, self._eos_id)
            tokens += [beam.token for beam in beams]
            if tree.has_ended:
                ended.append(i)
                parents += rows  # nobody reads their caches any more
            else:
                parents += [rows[beam.row] for beam in beams]
        return Choice(np.array(tokens), np.array(parents), ended)

    def _best(self, log_probs: FloatArray, ids: IntArray) -> Iterator[Iterator[Beam]]:
        """The best 2 W of each source's W x K candidates."""
        sources, k = len(self._trees), log_probs.shape[1]
        totals = np.array([tree.totals for tree in self._trees])  # (B, W), float64
        candidates = (log_probs + totals.reshape(-1, 1)).reshape(sources, -1)  # (B, W * K)
        order = np.argsort(-candidates, kind="stable")[:, : 2 * self._width]  # (B, 2 W)
        places = order + np.arange(sources)[:, None] * candidates.shape[1]
        columns = (candidates.ravel()[places], order // k, ids.ravel()[places])
        picked = (array.tolist() for array in (*columns, log_probs.ravel()[places]))
        return (map(Beam, *source) for source in zip(*picked, strict=True))

    def hypotheses(self, source: int) -> list[Hypothesis]:
        tree = self._trees[source]
        return tree.ended[: tree.options.num_hypotheses]

    def compact(self, keep: IntArray) -> None:
        self._trees = [self._trees[i] for i in keep]
