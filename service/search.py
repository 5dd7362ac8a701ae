"""Which tokens come next. Sees log-probs and ids, never a cache or a tensor of the network.

Axes: B sources that are decoded together, W rows (beams) of each, R = B x W, K candidates a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

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


class Step(NamedTuple):
    """What the rows of one source read at one position, and which row each continued; (W,)."""

    tokens: IntArray
    log_probs: FloatArray
    parents: IntArray


@dataclass(slots=True)
class Tree:
    """One source of a beam search: its steps so far and the hypotheses that have ended."""

    options: SearchOptions
    forced: list[int]
    steps: list[Step] = field(default_factory=list[Step])
    ended: list[Hypothesis] = field(default_factory=list[Hypothesis])

    def end(self, row: int, *last: tuple[int, float]) -> None:
        """The hypothesis that a row holds, and perhaps eos after it."""
        pairs = list(last)
        for step in reversed(self.steps):
            pairs.append((int(step.tokens[row]), float(step.log_probs[row])))
            row = int(step.parents[row])
        pairs.reverse()
        token_ids, log_probs = [token for token, _ in pairs], [value for _, value in pairs]
        reason, penalty = "eos" if last else "length", self.options.length_penalty
        self.ended.append(Hypothesis(token_ids, log_probs, reason, penalty))
        self.ended.sort(key=lambda hypothesis: -hypothesis.score)
        del self.ended[self.options.beam_size :]

    def has_ended(self, sums: NDArray[np.float64]) -> bool:
        """sums (W,) of the log-probs of the rows. At the limit the rows are hypotheses too."""
        options, length = self.options, len(self.steps)
        if length == options.max_new_tokens:
            for row in np.flatnonzero(np.isfinite(sums)) if not self._is_full(sums) else ():
                self.end(int(row))
            return True
        return length > 0 and self._is_full(sums)

    def _is_full(self, sums: NDArray[np.float64]) -> bool:
        options = self.options
        if len(self.ended) < options.beam_size:
            return False
        best = sums.max() / len(self.steps) ** options.length_penalty
        return options.early_stopping or self.ended[-1].score >= best


class Beams:
    """Beam search. Of the best 2 W candidates of a source, those among its best W that are eos end
    a hypothesis, and the best W of the others go on. A source ends when W hypotheses have ended
    and, without early stopping, no row can overtake the worst of them at its present length.
    """

    def __init__(self, width: int, forced_ids: Sequence[int], eos_id: int) -> None:
        self.candidates = 2 * width
        self._forced_ids = list(forced_ids)
        self._eos_id = eos_id
        self._trees: list[Tree] = []
        self._sums = np.zeros((0, width))  # (B, W) of log-probs; -inf: no beam there yet

    def insert(self, options: Sequence[SearchOptions]) -> None:
        self._trees += [Tree(each, self._forced_ids.copy()) for each in options]
        starts = np.full((len(options), self._sums.shape[1]), -np.inf)
        starts[:, 0] = 0.0
        self._sums = np.concatenate([self._sums, starts])

    def advance(self, log_probs: FloatArray, ids: IntArray) -> Choice:
        count, width = self._sums.shape
        log_probs = log_probs.reshape(count, width, -1).copy()
        ids = ids.reshape(count, width, -1).copy()
        forced = [i for i, tree in enumerate(self._trees) if tree.forced]
        for i in forced:
            log_probs[i], log_probs[i, :, 0] = -np.inf, 0.0
            ids[i] = self._trees[i].forced.pop(0)
        order, sums = self._best(log_probs)
        parents = order // log_probs.shape[2]
        tokens, log_probs = (pick(x.reshape(count, -1), order) for x in (ids, log_probs))
        ending = tokens == self._eos_id
        ending[forced] = False
        for i, rank in np.argwhere(ending[:, :width] & np.isfinite(sums[:, :width])).tolist():
            self._trees[i].end(int(parents[i, rank]), (self._eos_id, float(log_probs[i, rank])))
        going = np.argsort(ending, axis=1, kind="stable")[:, :width]  # (B, W)
        going = pick(going, order_in_place(pick(parents, going)))
        tokens, log_probs, parents, self._sums = (
            pick(x, going) for x in (tokens, log_probs, parents, sums)
        )
        ended: list[int] = []
        for i in sorted(set(range(count)) - set(forced)):
            self._trees[i].steps.append(Step(tokens[i], log_probs[i], parents[i]))
            if self._trees[i].has_ended(self._sums[i]):
                ended.append(i)
        parents[ended] = np.arange(width)  # nobody reads their caches any more
        first = np.arange(count)[:, None] * width
        return Choice(tokens.ravel(), (first + parents).ravel(), ended)

    def _best(self, log_probs: FloatArray) -> tuple[IntArray, NDArray[np.float64]]:
        """The best 2 W of each source's (W, K) candidates, as indices into them, and their sums."""
        sums = (self._sums[:, :, None] + log_probs).reshape(len(log_probs), -1)
        order = np.argsort(-sums, axis=1, kind="stable")[:, : 2 * log_probs.shape[1]]
        return order, pick(sums, order)

    def hypotheses(self, source: int) -> list[Hypothesis]:
        tree = self._trees[source]
        return tree.ended[: tree.options.num_hypotheses]

    def compact(self, keep: IntArray) -> None:
        self._trees = [self._trees[i] for i in keep]
        self._sums = self._sums[keep]


def pick(array: NDArray[Any], places: IntArray) -> NDArray[Any]:
    """(B, ...), (B, N) indices along the second axis -> (B, N)."""
    return array[np.arange(len(array))[:, None], places]


def order_in_place(parents: IntArray) -> IntArray:
    """(B, W) -> for each row which of the new beams stands there, (B, W): the first child of a
    parent stands in its place, so that the cache of that row stays where it is."""
    width = parents.shape[1]
    same = parents[:, :, None] == parents[:, None, :]  # (B, child, earlier child)
    later = np.tril(same, -1).any(2)  # (B, W): not the first child
    taken = (parents[:, None, :] == np.arange(width)[:, None]).any(2)  # (B, row)
    children = np.argsort(later, axis=1, kind="stable")  # the first children, then the others
    free = np.argsort(~taken, axis=1, kind="stable")  # the taken rows, then the free ones
    rows = np.where(pick(later, children), free, pick(parents, children))
    standing = np.empty_like(parents)
    standing[np.arange(len(parents))[:, None], rows] = children
    return standing
