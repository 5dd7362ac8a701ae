"""Which entries run together. Pure policy: no tensor is seen and no clock."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from service.errors import Overloaded


class Entry(Protocol):
    """What the scheduler knows of one source in the queue."""

    @property
    def tokens(self) -> int:
        """The most positions it may come to hold: what it costs while it runs."""
        ...

    @property
    def abandoned(self) -> bool:
        """Nobody waits for it any more."""
        ...


E = TypeVar("E", bound=Entry)


class Scheduler(Generic[E]):
    def __init__(self, max_queue: int, max_batch_tokens: int, max_pass_tokens: int) -> None:
        self.waiting: deque[E] = deque()
        self._max_queue = max_queue
        self._max_batch_tokens = max_batch_tokens
        self._max_pass_tokens = max_pass_tokens

    def put(self, entries: Sequence[E]) -> None:
        """All or none. Raises Overloaded when they do not fit into the queue."""
        if len(self.waiting) + len(entries) > self._max_queue:
            raise Overloaded(
                f"{len(self.waiting)} sources wait already and {len(entries)} more were sent;"
                f" the limit is {self._max_queue}"
            )
        self.waiting.extend(entries)

    def admit(self, running: Iterable[E]) -> list[E]:
        """Takes from the queue, in order, what may be encoded now and then decoded with `running`.

        An entry larger than a budget runs alone.
        """
        held, longest = sum(entry.tokens for entry in running), 0
        admitted: list[E] = []
        while self.waiting:
            tokens = self.waiting[0].tokens
            held, longest = held + tokens, max(longest, tokens)
            padded = longest * (len(admitted) + 1)
            alone = held == tokens
            if not alone and (held > self._max_batch_tokens or padded > self._max_pass_tokens):
                break
            admitted.append(self.waiting.popleft())
        return admitted

    def one_pass(self, entries: Sequence[E]) -> list[E]:
        """The first of `entries`, as many as one pass that is no step may hold, one at least."""
        longest = 0
        for count, entry in enumerate(entries):
            longest = max(longest, entry.tokens)
            if count and longest * (count + 1) > self._max_pass_tokens:
                return list(entries[:count])
        return list(entries)

    def remove_abandoned(self) -> None:
        if any(entry.abandoned for entry in self.waiting):
            self.waiting = deque(entry for entry in self.waiting if not entry.abandoned)
