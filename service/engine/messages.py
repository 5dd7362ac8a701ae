"""What is asked of the engine, and what it answers."""

import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from service.arrays import FloatArray, IntArray
from service.attention import NO_ATTENTION, AttentionKind, Selection
from service.bundle import GraphName
from service.engine.scheduler import Size
from service.errors import HeedError
from service.search.options import SearchOptions
from service.search.protocol import Hypothesis, Progress

Weights = dict[AttentionKind, FloatArray]


@dataclass(slots=True)
class Answer:
    """What an entry asked for: memory (S, M); hypotheses, best first; for each of them, or for the
    target that was given, the selected attention weights, reduced as wanted, by kind;
    the log-prob of each id of that target (T,); and the seconds each stage took."""

    memory: FloatArray | None = None
    hypotheses: list[Hypothesis] = field(default_factory=list[Hypothesis])
    attention: list[Weights] = field(default_factory=list[Weights])
    log_probs: FloatArray | None = None
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def size(self) -> int:
        """Numbers that it holds."""
        arrays = [weights for kinds in self.attention for weights in kinds.values()]
        arrays += [each for each in (self.memory, self.log_probs) if each is not None]
        tokens = sum(len(hypothesis.token_ids) for hypothesis in self.hypotheses)
        alternatives = sum(len(top) for each in self.hypotheses for top in each.top_log_probs)
        return tokens + alternatives + sum(array.size for array in arrays)

    @property
    def encoded(self) -> FloatArray:
        """The memory, of an entry that is encoded and no more."""
        assert self.memory is not None
        return self.memory


def ignore(_: Progress) -> None:
    """Nobody listens."""


@dataclass(slots=True, eq=False)
class Entry:
    """One source: encoded; then decoded if a search is wanted; then attended if attention is
    selected, over `target_ids` if they are given, else over the hypotheses; or those ids scored.

    A `result` that is cancelled frees its rows at the next step. `tell` hears of the progress of
    one that streams, on the thread of its worker.
    """

    source_ids: IntArray
    search: SearchOptions | None = None
    target_ids: list[int] = field(default_factory=list[int])
    selection: Selection = NO_ATTENTION
    scores: bool = False
    streams: bool = False
    arrived: float = field(default_factory=time.monotonic)
    result: Future[Answer] = field(default_factory=Future[Answer], init=False)
    answer: Answer = field(default_factory=Answer, init=False)
    tell: Callable[[Progress], None] = field(default=ignore, init=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """What is asked goes to another process, not what has come of it."""
        asked = (
            self.source_ids,
            self.search,
            self.target_ids,
            self.selection,
            self.scores,
            self.streams,
            self.arrived,
        )
        return Entry, asked

    def finish(self, outcome: Answer | HeedError) -> None:
        with suppress(InvalidStateError):  # it was cancelled
            if isinstance(outcome, HeedError):
                self.result.set_exception(outcome)
            else:
                self.result.set_result(outcome)

    @property
    def rows(self) -> int:
        """That it decodes at once."""
        return self.search.rows if self.search else 1

    @property
    def size(self) -> Size:
        target = len(self.target_ids)
        if self.search:
            target = len(self.search.target_prefix) + self.search.max_new_tokens
        return Size(len(self.source_ids), self.rows, len(self.source_ids) + target)

    @property
    def is_forced(self) -> bool:
        """Whether it needs a pass over whole targets."""
        return self.scores or bool(self.selection.layers)

    @property
    def attended(self) -> int:
        """Positions of that pass, in all its targets."""
        return sum(map(self.positions, self.targets))

    def positions(self, target: list[int]) -> int:
        """Of that pass, over one target."""
        return len(self.source_ids) + len(self.prefix) + len(target)

    @property
    def targets(self) -> list[list[int]]:
        """What is attended to, or scored."""
        if self.target_ids:
            return [self.target_ids]
        return [hypothesis.token_ids for hypothesis in self.answer.hypotheses]

    @property
    def prefix(self) -> tuple[int, ...]:
        """What was forced before the targets."""
        return self.search.target_prefix if self.search else ()

    @property
    def abandoned(self) -> bool:
        return self.result.done()


@dataclass(frozen=True, slots=True)
class Opened:
    """What became of a bundle and the settings."""

    precision: str
    provider: str
    graphs: frozenset[GraphName]


@dataclass(frozen=True, slots=True)
class Status:
    ready: bool
    rows: int  # being decoded
