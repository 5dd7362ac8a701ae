"""The messages between the HTTP process and an engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from service.arrays import FloatArray, IntArray
from service.attention import NO_ATTENTION, AttentionKind, Selection
from service.bundle.manifest import Bundle, GraphName
from service.histogram import ROWS, SECONDS, Histogram
from service.search.options import SearchOptions
from service.search.protocol import Hypothesis
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


class Entry(NamedTuple):
    """One source and the work it asks for.

    The source is encoded, then decoded if there is a `search`. Attention weights are computed if
    `selection` has layers: for `target_ids` if given, else for the hypotheses. With `scores`, the
    log-probs of `target_ids` are computed. If `streams`, the engine sends progress after each step.
    `language` holds the ids of the target language, if the model's decoder starts with them.
    """

    source_ids: IntArray
    search: SearchOptions | None = None
    target_ids: Sequence[int] = ()
    selection: Selection = NO_ATTENTION
    scores: bool = False
    streams: bool = False
    language: tuple[int, ...] = ()

    @property
    def prefix(self) -> tuple[int, ...]:
        """Ids of the request's target prefix, with which every decoded target begins."""
        return self.search.target_prefix if self.search else ()


class Open(NamedTuple):
    """The first order: open a bundle. The reply is Opened or a StartupError."""

    number: int
    bundle: Bundle
    settings: Settings


class Submit(NamedTuple):
    """An order to compute the entries of a request, for which its client waits `seconds` from
    `arrived`, on the clock of time.monotonic(). `request_id` is for the log.

    Each entry gets a reply under its own number, an Answer or a HeedError; progress may come
    before it.
    """

    entries: list[tuple[int, Entry]]
    request_id: str
    arrived: float
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
