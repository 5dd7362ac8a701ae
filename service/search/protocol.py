"""The interface between a search and the batch that decodes for it.

A search sees log-probs and ids, never a cache or a tensor of the network.
Axes: B sources that are decoded together, W rows of each (beams or samples), R = B x W rows,
K candidates of a row, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from service.arrays import FloatArray, IntArray
from service.search.options import SearchOptions

FinishReason = Literal["eos", "length", "stop"]
DEAD = -math.inf  # the total of a row that holds no beam
ALTERNATIVE = np.dtype([("id", np.int32), ("log_prob", np.float32)])
# Of ALTERNATIVE, most probable first; impossible ones have the log-prob DEAD. Tuples would take ten
# times the memory.
Alternatives = NDArray[np.void]
Detokenize = Callable[[Sequence[int]], str]


class Candidates(NamedTuple):
    """The most probable next tokens of each row, and all logits if the search needs them.

    The arrays are buffers of the runtime: the next step overwrites them.
    """

    log_probs: FloatArray  # (R, K), best first
    ids: IntArray  # (R, K)
    logits: FloatArray | None = None  # (R, V)

    def of(self, row: int) -> tuple[FloatArray, IntArray, FloatArray | None]:
        """Return a row's log-probs (K,), ids (K,) and logits (V,)."""
        return self.log_probs[row], self.ids[row], None if self.logits is None else self.logits[row]


class Beam(NamedTuple):
    """A row of one source at one step: its token, and its parent, the row of the previous step that
    it continues."""

    total: float  # sum of the log-probs of all its tokens
    parent: int
    token_id: int
    log_prob: float


class Hypothesis(NamedTuple):
    """A finished target: every generated id, eos included, and the log-prob of each. A tuple, since
    every answer holds some: a frozen dataclass takes Python to pickle and to unpickle.

    `top_log_probs` holds the alternatives (T, N) at each position, and `entropies` the entropy of
    the model's distribution in nats, if the request asked for them. `forced` is the number of start
    ids that count in the length. `unmet` are the numbers of the required items that it lacks.
    Of `drafted` tokens that were proposed by a draft, `accepted` were those of the target.
    """

    token_ids: list[int]
    log_probs: list[float]
    finish_reason: FinishReason
    length_penalty: float = 1.0
    top_log_probs: Alternatives | None = None
    forced: int = 0
    unmet: tuple[int, ...] = ()
    entropies: Sequence[float] = ()
    drafted: int = 0
    accepted: int = 0

    @property
    def score(self) -> float:
        """log_prob / length ** length_penalty; a hypothesis without tokens scores 0."""
        length = max(1, self.forced + len(self.token_ids))
        return sum(self.log_probs) / length**self.length_penalty


class TokenProgress(NamedTuple):
    """A token that one hypothesis has taken and keeps."""

    hypothesis: int
    token_id: int
    log_prob: float
    top_log_probs: Alternatives | None  # (N,)


class BeamProgress(NamedTuple):
    """The state of one source's beam search."""

    stable: list[int]  # ids shared by all hypotheses that can still become the best
    best: list[int]  # ids of the hypothesis that is the best now


Progress = list[TokenProgress] | BeamProgress


def progress_size(progress: Progress) -> int:
    """Tokens and alternatives that this progress holds."""
    if isinstance(progress, BeamProgress):
        return sum(map(len, progress))
    tops = (event.top_log_probs for event in progress if event.top_log_probs is not None)
    return len(progress) + sum(map(len, tops))


def stack(alternatives: Sequence[Alternatives], count: int) -> Alternatives | None:
    """Return the alternatives (N,) of each position as (T, N); None if N, `count`, is 0."""
    if not count:
        return None
    return np.stack(alternatives) if alternatives else np.empty((0, count), ALTERNATIVE)


class Needed(NamedTuple):
    """Candidates per row that a search needs, and whether it needs all logits."""

    k: int
    logits: bool

    @classmethod
    def of(cls, least: int, counts: Iterable[int | None], logits: bool) -> "Needed":
        """Return a need that covers `least` and each of the counts; None stands for all logits, as
        does `logits`."""
        known = [*counts]
        return cls(max([least, *filter(None, known)]), logits or None in known)


class Step(NamedTuple):
    """Decision for the next step: tokens, parents, ended sources."""

    tokens: IntArray  # (R,): ids to read
    parents: IntArray | None  # (R,): rows to continue; None if each row continues itself
    ended: list[int]  # sources that have ended; their rows may read anything


class Search(Protocol):
    """A search for many sources at once, with W rows for each."""

    @property
    def needed(self) -> Needed:
        """Inputs that the next `advance` needs."""
        ...

    def insert(
        self,
        options: Sequence[SearchOptions],
        starts: Sequence[Sequence[int]],
        sources: Sequence[IntArray],
    ) -> None:
        """Append sources, which start at their first position.

        `starts` holds the start ids of each source, which the decoder reads before the target
        prefix. The caller reads the first one; the others count in the length of the hypotheses.
        `sources` has the ids (S,) of each, to which some options compare the target.
        """
        ...

    def advance(self, candidates: Candidates) -> Step:
        """Choose the next token of each row."""
        ...

    def progress(self, source: int) -> Progress:
        """Return the tokens settled since the last call or, of a beam search, its present state."""
        ...

    def hypotheses(self, source: int) -> list[Hypothesis]:
        """Return the hypotheses of a source that has ended: best first, or in sample order."""
        ...

    def compact(self, keep: IntArray) -> None:
        """Keep only these sources, in this order."""
        ...
