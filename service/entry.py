"""What is asked of the engine, and what it answers."""

import asyncio
import time
from dataclasses import dataclass, field

from service.attention import NOTHING, Kind, Selection
from service.cache import FloatArray, IntArray
from service.search import Hypothesis


@dataclass(slots=True)
class Answer:
    """What an entry asked for: memory (S, M), a hypothesis, the selected attention weights
    (layers, heads, queries, keys) by kind; and the seconds each stage took."""

    memory: FloatArray | None = None
    hypothesis: Hypothesis | None = None
    attention: dict[Kind, FloatArray] = field(default_factory=dict[Kind, FloatArray])
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def decoded(self) -> Hypothesis:
        """Of an entry that decodes."""
        assert self.hypothesis is not None
        return self.hypothesis

    @property
    def encoded(self) -> FloatArray:
        """The memory, of an entry that is encoded and no more."""
        assert self.memory is not None
        return self.memory


@dataclass(slots=True, eq=False, kw_only=True)
class Entry:
    """One source: encoded; then decoded if it may generate tokens; then attended if attention is
    selected, over `target_ids` if they are given, else over what it generated.

    Made on the event loop, which alone touches `result`; the worker only looks whether it is done:
    a result that was cancelled, by its client or by a deadline, frees its rows at the next step.
    """

    source_ids: IntArray
    max_new_tokens: int = 0
    target_ids: list[int] = field(default_factory=list[int])
    selection: Selection = NOTHING
    arrived: float = field(default_factory=time.monotonic)
    result: "asyncio.Future[Answer]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    answer: Answer = field(default_factory=Answer)

    @property
    def tokens(self) -> int:
        """The most positions it may come to hold, source and target together."""
        return len(self.source_ids) + max(self.max_new_tokens, len(self.target_ids))

    @property
    def abandoned(self) -> bool:
        return self.result.done()
