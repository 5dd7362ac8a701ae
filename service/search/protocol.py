"""What a search is: it sees log-probs and ids, never a cache or a tensor of the network.

Axes: B sources that are decoded together, W rows of each (beams or samples), R = B x W, K
candidates a row, V vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from service.arrays import FloatArray, IntArray
from service.search.options import SearchOptions

FinishReason = Literal["eos", "length", "stop"]
Alternatives = list[tuple[int, float]]  # ids and log-probs, most probable first
Detokenize = Callable[[Sequence[int]], str]


class Candidates(NamedTuple):
    """The most probable next tokens of each row, best first (R, K); and all logits (R, V), where
    the search needs them. Valid until the next step."""

    log_probs: FloatArray
    ids: IntArray
    logits: FloatArray | None = None

    def of(self, row: int) -> tuple[FloatArray, IntArray, FloatArray | None]:
        return self.log_probs[row], self.ids[row], None if self.logits is None else self.logits[row]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Every generated id, eos included when finish_reason is eos, and the log-prob of each."""

    token_ids: list[int]
    log_probs: list[float]
    finish_reason: FinishReason
    length_penalty: float = 1.0
    top_log_probs: list[Alternatives] = field(default_factory=list[Alternatives])

    @property
    def score(self) -> float:
        """Sum of log-probs / number of tokens ** length_penalty (the form of Hugging Face)."""
        return sum(self.log_probs) / max(1, len(self.token_ids)) ** self.length_penalty


class TokenEvent(NamedTuple):
    """A token that one hypothesis has taken, for good."""

    hypothesis: int
    token_id: int
    log_prob: float
    top_log_probs: Alternatives


class BeamProgress(NamedTuple):
    """Of a beam search: ids that all hypotheses share which can still become the best, and those
    of the present best."""

    stable: list[int]
    best: list[int]


Progress = list[TokenEvent] | BeamProgress


class Needed(NamedTuple):
    """What a search needs of each row: K candidates and, some of them, all logits."""

    k: int
    logits: bool

    @classmethod
    def of(cls, least: int, counts: Iterable[int | None]) -> "Needed":
        known = [*counts]
        return cls(max([least, *filter(None, known)]), None in known)


class Step(NamedTuple):
    """What each row reads next (R,); which row it continues (R,), None where each goes on; and the
    sources that have ended, whose rows may read anything."""

    tokens: IntArray
    parents: IntArray | None
    ended: list[int]


class Search(Protocol):
    """The search of many sources that have as many rows each."""

    @property
    def wanted(self) -> Needed: ...

    def insert(self, options: Sequence[SearchOptions]) -> None:
        """Append sources, at their first position."""
        ...

    def advance(self, candidates: Candidates) -> Step:
        """-> the next step."""
        ...

    def progress(self, source: int) -> Progress:
        """Of the last step. Nothing that it says is taken back."""
        ...

    def hypotheses(self, source: int) -> list[Hypothesis]:
        """Of a source that has ended: best first, or in the order of the samples."""
        ...

    def compact(self, keep: IntArray) -> None:
        """Only these sources stay, in this order."""
        ...
