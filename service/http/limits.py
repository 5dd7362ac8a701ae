"""The record and the deadline of a request, and budgets of the bytes of bodies and answers
(docs/adr/0020)."""

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

from service.errors import HeedError, Overloaded

TIMEOUT_HEADER = "X-Request-Timeout"
FREE = 1 << 16  # bytes of a body or an answer that are not counted
WAIT = 10.0  # seconds that a request may wait for bytes
# Requests that hold their own bytes, and more for tokens, while they wait.
MOST_WAITING_ANSWERS = 16


class Deadline(NamedTuple):
    """When a request must have been answered, in seconds of time.monotonic(), and how many seconds
    after its arrival that is."""

    at: float = math.inf
    limit: float = math.inf


class Stage(NamedTuple):
    """A part of the work on a request; `started` is on the clock of time.monotonic()."""

    started: float
    seconds: float


@dataclass(slots=True)
class Record:
    """Facts of a request, which the steps of its endpoint fill in.

    `sources` are those that an engine got: sentences if they were split. Counts of generated,
    drafted and accepted tokens, and of bytes, are those of a complete answer. `problems` stand in
    it at the places of sources that failed. `error` is what was answered instead of it, in a stream
    too.
    """

    started: float = field(default_factory=time.monotonic)
    model: str | None = None
    sources: int = 0
    source_tokens: int = 0
    submitted: float = 0.0  # when the engine was last sent entries, by time.monotonic()
    problems: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    attention_bytes: int = 0
    first_token: float | None = None  # seconds until the first event of a stream
    stages: dict[str, Stage] = field(default_factory=dict[str, Stage])
    error: HeedError | None = None

    def forget_error(self) -> None:
        """Drop the error once it has been reported. Its frames refer to the request and to the
        futures that hold the error."""
        if self.error:
            self.error.forget_frames()
        self.error = None

    @property
    def seconds(self) -> dict[str, float]:
        return {name: stage.seconds for name, stage in self.stages.items()}


@dataclass(slots=True, eq=False)
class Share:
    """The bytes that one request has of a budget."""

    nbytes: int = 0


@dataclass(slots=True, eq=False)
class Terms:
    """Limits of a request: by default it may take any time, as if no other were in progress.

    `share` is its bytes of all answers. A block of `aside` waits for memory, and keeps no other
    waiting. `at_end` is called when the request has ended, however it ends.
    """

    deadline: Deadline = field(default_factory=Deadline)
    aside: Callable[[], AbstractContextManager[None]] = nullcontext
    share: Share = field(default_factory=Share)
    at_end: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def end(self, answers: "Budget") -> None:
        """Give back what the request has of all answers, and call `at_end`."""
        answers.release(self.share)
        for each in self.at_end:
            each()


class Budget:
    """Bytes that requests share. A request that is alone may have more than the limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._line: dict[Share, tuple[int, asyncio.Future[None]]] = {}  # those that wait

    def add(self, share: Share, nbytes: int) -> bool:
        """Give a request more bytes, or none and return False if they would exceed the limit."""
        others = self.held - share.nbytes
        if others and self.held + nbytes > self.limit:
            return False
        self.held += nbytes
        share.nbytes += nbytes
        return True

    def give(self, share: Share, nbytes: int) -> bool:
        """Give a request more bytes if nobody waits and they are free."""
        return not self._line and self.add(share, nbytes)

    async def wait(self, share: Share, nbytes: int) -> None:
        """Give a request more bytes, once those that came earlier have theirs. Raise TimeoutError
        at once if MOST_WAITING_ANSWERS wait already."""
        if self.give(share, nbytes):
            return
        if self.crowded:
            raise TimeoutError
        turn = asyncio.get_running_loop().create_future()
        self._line[share] = nbytes, turn
        try:
            await turn
        finally:
            self._line.pop(share, None)
            self.set(share, share.nbytes)  # if it gave up: those behind it may fit now

    @property
    def crowded(self) -> bool:
        """Whether so many wait that no other may."""
        return len(self._line) >= MOST_WAITING_ANSWERS

    def set(self, share: Share, nbytes: int) -> None:
        """Correct the bytes of a request, and let others have what it gives back."""
        self.held += nbytes - share.nbytes
        share.nbytes = nbytes
        while self._line:
            first, (wanted, turn) = next(iter(self._line.items()))
            if not turn.done() and not self.add(first, wanted):  # done: it waits no longer
                return
            del self._line[first]
            if not turn.done():
                turn.set_result(None)

    def refuse(self) -> Overloaded:
        """Return an error after which the client should wait as long as it has waited already."""
        error = Overloaded(
            f"large answers take {self.held >> 20} MiB until their clients have read them, and the"
            f" limit is {self.limit >> 20} MiB: send less, or try again later"
        )
        error.retry_after = int(WAIT)
        return error

    def release(self, share: Share) -> None:
        """Take back the bytes of a request, and its place in the line."""
        self._line.pop(share, None)
        self.set(share, 0)
