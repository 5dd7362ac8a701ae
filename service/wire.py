"""The messages between the HTTP process and an engine, and their frames on the socket.

Both directions use the same format: a message is pickled and cut into frames, each with the number
of the message it belongs to, so that frames of short messages can pass between those of a long one.
Short replies of an engine to many entries, such as those of one step, are one message.
Pickle is safe here: the socket pair has no name, only the two processes hold its ends, and what
they pickle are dataclasses and tuples of numbers, strings and arrays, never bytes of a client.
"""

import pickle
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from service.arrays import FloatArray, IntArray
from service.attention import NO_ATTENTION, AttentionKind, Head, Selection
from service.bundle.manifest import Bundle, GraphName
from service.search.options import SearchOptions
from service.search.protocol import Hypothesis
from service.settings.settings import Settings

# Upper bounds of buckets. Seconds: from a step of a small model to a request that times out.
SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
ROWS = tuple(2.0**power for power in range(13))  # up to 4,096


class Histogram:
    """Counts observations by size. `counts` has one number for each bound, of observations up to it
    and above the one before, and a last one for those above all bounds.

    One thread may observe while another reads: a reader may miss the latest observation.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def __add__(self, other: "Histogram") -> "Histogram":
        """Return the counts of both, which have the same bounds."""
        total = Histogram(self.bounds)
        total.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        total.sum = self.sum + other.sum
        return total


Weights = dict[AttentionKind, FloatArray]
Pooling = Literal["none", "mean", "max", "first", "last"]  # of the vectors of all tokens
ALTERNATIVE_SIZE = 3  # an alternative (token, id, log-prob): numbers that take as long to write


@dataclass(slots=True)
class Answer:
    """The results an entry asked for.

    `memory` is (S, M), or (M,) if it was pooled. `hypotheses` come best first. `attention` holds
    the selected and reduced weights, by kind, of each hypothesis or of the given target.
    `log_probs` (T,) has one number for each id of a scored target. `alignment` holds a matrix
    (T, S) of each hypothesis or of the given target: how much each token of it, and of the target
    prefix before it, is aligned to each source token. `occluded` is added in the HTTP process, from
    the answers to other entries: the log-probs (2, T) of each hypothesis, given the source and
    given it with all tokens replaced. `seconds` is how long each stage took.
    """

    memory: FloatArray | None = None
    hypotheses: list[Hypothesis] = field(default_factory=list[Hypothesis])
    attention: list[Weights] = field(default_factory=list[Weights])
    log_probs: FloatArray | None = None
    alignment: list[FloatArray] = field(default_factory=list[FloatArray])
    occluded: Sequence[FloatArray] = ()
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def size(self) -> int:
        """Count of numbers to write, which says how long writing the answer takes."""
        arrays = [weights for kinds in self.attention for weights in kinds.values()]
        arrays += [each for each in (self.memory, self.log_probs) if each is not None]
        arrays += self.alignment
        tokens = sum(len(hypothesis.token_ids) for hypothesis in self.hypotheses)
        tops = [each.top_log_probs for each in self.hypotheses if each.top_log_probs is not None]
        numbers = sum(array.size for array in arrays)
        return tokens + ALTERNATIVE_SIZE * sum(top.size for top in tops) + numbers


class Entry(NamedTuple):
    """One source and the work it asks for.

    The source is encoded, then decoded if there is a `search`. Attention weights are computed if
    `selection` has layers: for `target_ids` if given, else for the hypotheses. With `scores`, the
    log-probs of `target_ids` are computed. If it `aligns`, so is the alignment of the same targets
    as attention, by a model whose bundle says which attention aligns. If `streams`, the engine
    sends progress after each step. `language` holds the ids of the target language, if the model's
    decoder starts with them. The `ablated` heads give nothing. `pooling` is of an entry that is
    only encoded.
    """

    source_ids: IntArray
    search: SearchOptions | None = None
    target_ids: Sequence[int] = ()
    selection: Selection = NO_ATTENTION
    scores: bool = False
    aligns: bool = False
    streams: bool = False
    language: tuple[int, ...] = ()
    ablated: tuple[Head, ...] = ()
    pooling: Pooling = "none"

    @property
    def rows(self) -> int:
        """Rows decoded at once: beams, or samples."""
        search = self.search
        if search is None:
            return 1
        return search.beam_size if search.beam_size > 1 else search.num_hypotheses

    @property
    def prefix(self) -> tuple[int, ...]:
        """Ids of the request's target prefix, with which every decoded target begins."""
        return self.search.target_prefix if self.search else ()


class Open(NamedTuple):
    """The first order: open a bundle. The reply is Opened or a StartupError."""

    number: int
    bundle: Bundle
    settings: Settings


class Rest(NamedTuple):
    """The rest of a request beside some entries: how many rows follow once these are answered, and
    when it sent its first entries, on the clock of time.monotonic(), if these are later ones."""

    rows: int = 0
    since: float | None = None


NO_REST = Rest()


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
    rest: Rest = NO_REST


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
    target_lists: dict[str, int] = field(default_factory=dict[str, int])  # language -> its tokens


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


Reply = tuple[int, object]  # the number of an entry or an order, and what it gets
REPLIES = 0  # number of every message that is a list of replies
# Bytes that follow, whether the message has more frames, its number
FRAME_HEADER = struct.Struct("!Q?Q")
FRAME = 1 << 18  # most bytes of content in one frame


def encode_message(number: int, message: object) -> Iterator[bytes]:
    """Pickle a message and return its frames. Errors of pickling are raised here."""
    return cut_frames(number, pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def cut_frames(number: int, content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), FRAME):
        part = content[start : start + FRAME]
        yield FRAME_HEADER.pack(len(part), start + FRAME < len(content), number) + part


def encode_replies(replies: Sequence[Reply]) -> bytes:
    """Pickle short replies as one message and return its only frame. Errors of pickling are raised
    here."""
    content = pickle.dumps(replies, pickle.HIGHEST_PROTOCOL)
    return FRAME_HEADER.pack(len(content), False, REPLIES) + content


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message, still pickled: unpickling a long one would block an event loop."""

    number: int
    parts: list[bytes]

    @property
    def is_long(self) -> bool:
        return len(self.parts) > 1

    def load(self) -> Any:
        return pickle.loads(b"".join(self.parts) if self.is_long else self.parts[0])


class FrameDecoder:
    """Turns received bytes back into messages, wherever the bytes were cut on their way."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._parts: dict[int, list[bytes]] = {}  # frames of incomplete messages, by number

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that `data` completes."""
        messages: list[Message] = []
        self._received += data
        while len(self._received) >= FRAME_HEADER.size:
            length, more, number = FRAME_HEADER.unpack_from(self._received)
            end = FRAME_HEADER.size + length
            if len(self._received) < end:
                break
            part = bytes(memoryview(self._received)[FRAME_HEADER.size : end])
            del self._received[:end]
            parts = self._parts.setdefault(number, [])
            parts.append(part)
            if not more:
                messages.append(Message(number, self._parts.pop(number)))
        return messages
