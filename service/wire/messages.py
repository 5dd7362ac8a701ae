"""The messages between the HTTP process and an engine."""

import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from service.arrays import FloatArray, IntArray
from service.attention import NO_ATTENTION, AttentionKind, Selection
from service.bundle.manifest import Bundle, GraphName
from service.engine.scheduler import PassSize, Size
from service.errors import HeedError, PassFailed
from service.histogram import ROWS, SECONDS, Histogram
from service.search.options import SearchOptions
from service.search.protocol import Hypothesis, Progress
from service.settings.settings import Settings

Weights = dict[AttentionKind, FloatArray]
ALTERNATIVE = 3  # size of an alternative (token, id, log-prob): numbers that take as long to write


@dataclass(slots=True)
class Answer:
    """The results an entry asked for.

    `memory` is (S, M). `hypotheses` come best first. `attention` holds the selected and reduced
    weights, by kind, of each hypothesis or of the given target. `log_probs` (T,) has one number for
    each id of a scored target. `seconds` is how long each stage took.
    """

    memory: FloatArray | None = None
    hypotheses: list[Hypothesis] = field(default_factory=list[Hypothesis])
    attention: list[Weights] = field(default_factory=list[Weights])
    log_probs: FloatArray | None = None
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def size(self) -> int:
        """Count of numbers to write, which says how long writing the answer takes."""
        arrays = [weights for kinds in self.attention for weights in kinds.values()]
        arrays += [each for each in (self.memory, self.log_probs) if each is not None]
        tokens = sum(len(hypothesis.token_ids) for hypothesis in self.hypotheses)
        tops = (len(top) for hypothesis in self.hypotheses for top in hypothesis.top_log_probs)
        return tokens + ALTERNATIVE * sum(tops) + sum(array.size for array in arrays)

    @property
    def encoded(self) -> FloatArray:
        """Memory (S, M) of an entry that was only encoded."""
        assert self.memory is not None
        return self.memory


def ignore(_: Progress) -> None:
    """Do nothing with the progress of an entry that nobody follows."""


@dataclass(slots=True, eq=False)
class Entry:
    """One source and the work it asks for.

    The source is encoded, then decoded if there is a `search`. Attention weights are computed if
    `selection` has layers: for `target_ids` if given, else for the hypotheses. With `scores`, the
    log-probs of `target_ids` are computed. `language` holds the ids of the target language, if the
    model's decoder starts with them. If `streams`, the worker's thread calls `on_progress` after
    each step. `request_id` is for the log.

    The queue that accepts an entry gives it a `result` and an `answer`: the HTTP process holds
    thousands of entries, and needs neither. Cancelling `result` frees the rows before the next
    step.
    """

    source_ids: IntArray
    search: SearchOptions | None = None
    target_ids: list[int] = field(default_factory=list[int])
    selection: Selection = NO_ATTENTION
    scores: bool = False
    streams: bool = False
    language: tuple[int, ...] = ()
    arrived: float = field(default_factory=time.monotonic)
    request_id: str = ""
    result: Future[Answer] = field(init=False, repr=False)
    answer: Answer = field(init=False, repr=False)
    on_progress: Callable[[Progress], None] = field(default=ignore, init=False)
    reported: bool = field(default=False, init=False)  # progress, which cannot be taken back

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the question only: the result stays in the process that computes it."""
        asked = (
            self.source_ids,
            self.search,
            self.target_ids,
            self.selection,
            self.scores,
            self.streams,
            self.language,
            self.arrived,
            self.request_id,
        )
        return Entry, asked

    def accept(self) -> None:
        self.result, self.answer = Future(), Answer()

    def report(self, progress: Progress) -> None:
        self.reported = True
        self.on_progress(progress)

    def finish(self, outcome: Answer | HeedError) -> None:
        """Set the result, unless the entry has been cancelled or has failed already."""
        with suppress(InvalidStateError):
            if isinstance(outcome, HeedError):
                self.result.set_exception(outcome)
            else:
                self.result.set_result(outcome)

    @property
    def rows(self) -> int:
        """Rows that are decoded at once: beams or samples."""
        return self.search.rows if self.search else 1

    @property
    def size(self) -> Size:
        """Return the size that the scheduler budgets."""
        target = len(self.target_ids)
        if self.search:
            target = len(self.search.target_prefix) + self.search.max_new_tokens
        return Size(len(self.source_ids), self.rows, len(self.source_ids) + target)

    @property
    def needs_teacher_forcing(self) -> bool:
        """Return whether a pass over whole targets follows encoding and decoding."""
        return self.scores or bool(self.selection.layers)

    @property
    def targets(self) -> list[list[int]]:
        """Ids that are scored or whose attention is shown, each without its prefix."""
        if self.target_ids:
            return [self.target_ids]
        return [hypothesis.token_ids for hypothesis in self.answer.hypotheses]

    @property
    def prefix(self) -> tuple[int, ...]:
        """Ids of the request's target prefix, with which every decoded target begins."""
        return self.search.target_prefix if self.search else ()

    def pass_positions(self, target: list[int]) -> int:
        """Positions of source and target that teacher forcing computes for one target."""
        return len(self.source_ids) + len(self.prefix) + len(target)

    @property
    def pass_size(self) -> PassSize:
        """Positions that teacher forcing computes for all targets, and how many get logits."""
        scored = len(self.target_ids) if self.scores else 0
        return PassSize(sum(map(self.pass_positions, self.targets)), scored)

    @property
    def abandoned(self) -> bool:
        """Return whether nobody waits for this entry: it was cancelled, or has failed."""
        return self.result.done()


class Open(NamedTuple):
    """The first order: open a bundle. The reply is Opened or a StartupError."""

    number: int
    bundle: Bundle
    settings: Settings


class Submit(NamedTuple):
    """An order to compute the entries of a request, for which its client waits so many seconds.
    Each entry gets a reply under its own number, an Answer or a HeedError; progress may come
    before it."""

    entries: list[tuple[int, Entry]]
    seconds: float


class Cancel(NamedTuple):
    """An order to forget the entry of this number, which then gets no reply."""

    number: int


class AskStatus(NamedTuple):
    """An order that is answered by a Status."""

    number: int


class Close(NamedTuple):
    """An order to take no more entries, finish the accepted ones and end."""


Order = Open | Submit | Cancel | AskStatus | Close


@dataclass(frozen=True, slots=True)
class Opened:
    """How the engine opened a bundle; it makes the choices that settings leave at `auto`."""

    precision: str
    provider: str
    workers: int
    graphs: frozenset[GraphName]


@dataclass(slots=True)
class Steps:
    """The decoding steps of a worker, or of several: how long they took, and their rows."""

    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    rows: Histogram = field(default_factory=lambda: Histogram(ROWS))

    def observe(self, seconds: float, rows: int) -> None:
        self.seconds.observe(seconds)
        self.rows.observe(rows)

    def __add__(self, other: "Steps") -> "Steps":
        return Steps(self.seconds + other.seconds, self.rows + other.rows)


@dataclass(frozen=True, slots=True)
class Status:
    """`ready`: every worker lives and makes progress. `rows` are being decoded, `waiting` rows are
    in the queue. `steps` are all since the engine started."""

    ready: bool
    rows: int
    waiting: int = 0
    steps: Steps = field(default_factory=Steps, compare=False)  # the past, not the state


def as_failure(error: Exception) -> HeedError:
    """Return what the clients are told: an error that was written for them, without its frames,
    which hold the batch."""
    if isinstance(error, HeedError):
        return error.forget_frames()
    return PassFailed(
        f"the model failed on a source of this request ({type(error).__name__}): send it again,"
        " and report the request_id if it fails again"
    )
