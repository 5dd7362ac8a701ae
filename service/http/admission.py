"""Admission control: refuse a request with 429 when those in progress would make it wait too long.

Work that nobody can wait for would only delay the others.
"""

import time
from collections.abc import Callable

from service.pace import FEW, Pace, refuse

SHORT = 0.25  # seconds that a request may be expected to wait where many are in progress
RECENT = 1.0  # seconds without a completed request after which a rate says nothing


class Admission:
    """Counts the requests in progress and decides whether one more can be accepted.

    Up to `most` requests may be in progress if they will be completed within `timeout` seconds;
    more if they will be within SHORT seconds and one was within the last RECENT seconds.
    """

    def __init__(
        self, most: int, timeout: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most = most
        self.timeout = timeout
        self.clock = clock
        self.inside = 0  # requests in progress
        self.pace = Pace()

    @property
    def is_quiet(self) -> bool:
        """Whether so few requests are in progress that any other is accepted."""
        return self.inside < min(FEW, self.most)

    def late(self, limit: float) -> float | None:
        """Return the seconds by which a request that may take `limit` seconds would come too late.
        Return None if it can be accepted."""
        if self.is_quiet:
            return None
        now = self.clock()
        wait = self.pace.wait(now, self.inside, self.inside)
        if self.inside < self.most:
            return None if wait is None or wait <= limit else wait - limit
        moves = now - self.pace.completed <= RECENT
        if wait is not None and wait <= SHORT and moves:
            return None
        return (wait or 0.0) - SHORT

    def check(self, limit: float) -> None:
        """Raise Overloaded if a request that may take `limit` seconds cannot be accepted now."""
        late = self.late(limit)
        if late is None:
            return
        if self.inside < self.most:
            raise refuse(
                f"the requests in progress take about {late + limit:.0f} seconds, and this request"
                f" has {limit:g}",
                late,
            )
        raise refuse(f"the limit of {self.most} requests in progress is reached", late)


class Place:
    """The place of a request among those in progress, from when it is made until `leave`."""

    def __init__(self, admission: Admission) -> None:
        self.completed = False  # set when the request is answered without an error
        self._admission = admission
        self._left = False
        admission.inside += 1
        admission.pace.enter(admission.clock(), admission.inside)

    def leave(self) -> None:
        """Give up the place, at the first call. Errors take no time: they do not count as pace."""
        if self._left:
            return
        self._left = True
        self._admission.inside -= 1
        if self.completed:
            self._admission.pace.leave(self._admission.clock(), self._admission.inside)
