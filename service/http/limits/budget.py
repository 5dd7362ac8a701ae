"""Bound the bytes of bodies and of answers that this process holds at once (docs/adr/0020)."""

import asyncio
from dataclasses import dataclass

from service.errors import Overloaded

FREE = 1 << 16  # bytes of a body or an answer that are not counted
WAIT = 10.0  # seconds that a request may wait for bytes
# Requests that hold their own bytes, and more for tokens, while they wait.
MOST_WAITING_ANSWERS = 16


@dataclass(slots=True, eq=False)
class Share:
    """The bytes that one request has of a budget."""

    nbytes: int = 0


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
        if len(self._line) >= MOST_WAITING_ANSWERS:
            raise TimeoutError
        turn = asyncio.get_running_loop().create_future()
        self._line[share] = nbytes, turn
        await turn

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
