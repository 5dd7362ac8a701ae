"""Measure how many requests or rows are completed in a second, to predict how long others wait."""

import math

from service.errors import Overloaded

FEW = 16  # in progress: with fewer, a rate would say how many arrive
WINDOW = 0.5  # seconds over which they are counted
FORGET = 10.0  # seconds after which a rate no longer counts, unless something is being counted
LONGEST_RETRY = 60  # seconds


class Pace:
    """A rate of completion, measured while at least FEW are in progress.

    Times are in seconds of any clock that only goes forward.
    """

    def __init__(self) -> None:
        self.rate: float | None = None  # a second, if it has been measured
        self._measured = 0.0  # when
        self._count, self._since = 0, 0.0  # completed since then
        self.completed = 0.0  # when the last one was

    def enter(self, now: float, inside: int, count: int = 1) -> None:
        """Begin to count if `count` more make FEW of those in progress: `inside`, FEW or more."""
        if inside - count < FEW:
            self._count, self._since = 0, now

    def leave(self, now: float, inside: int, count: int = 1) -> bool:
        """Count completed ones, which leave `inside` others in progress. Return whether there is a
        new rate.

        A rate needs FEW of them: what is computed together also ends together.
        """
        self.completed = now
        if inside < FEW:
            self._count = 0
            return False
        self._count += count
        elapsed = now - self._since
        if self._count >= FEW and elapsed >= WINDOW:
            rate = self._count / elapsed
            self.rate = rate if self.rate is None else (self.rate + rate) / 2
            self._count, self._since, self._measured = 0, now, now
            return True
        return False

    def wait(self, now: float, inside: int, ahead: int) -> float | None:
        """Return the seconds until `ahead` are completed, while `inside` are in progress; None if
        the rate is not known."""
        if inside < FEW:  # others may have left without being completed
            self._count = 0
        if now - self._measured > FORGET and not self._count:
            self.rate = None
        return ahead / self.rate if self.rate else None


def retry_after(seconds: float) -> int:
    """Return the whole seconds to name as Retry-After."""
    return min(max(1, math.ceil(seconds)), LONGEST_RETRY)


def refuse(why: str, seconds: float) -> Overloaded:
    """Return an error that tells the client to come back after `seconds`."""
    retry = retry_after(seconds)
    error = Overloaded(f"{why}: try again in {retry} second{'s' * (retry > 1)}")
    error.retry_after = retry
    return error
