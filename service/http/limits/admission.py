"""Admission control: refuse a request with 429 when those in progress would make it wait too long.

Work that nobody can wait for would only delay the others.
"""

import time
from collections import deque
from collections.abc import Callable
from itertools import takewhile

from service.pace import FEW, Pace, refuse

SHORT = 0.25  # seconds that a request may be expected to wait where many are in progress
RECENT = 1.0  # seconds without a completed request after which a rate says nothing


class Admission:
    """Counts the requests in progress and decides whether one more can be accepted.

    A request is in progress until its answer begins: nobody waits for what is only read. Nor does
    a new request wait for those that all of the last FEW completed ones have overtaken: large ones,
    which take turns with it, or such that wait for memory.

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
        self.places: dict[Place, None] = {}  # of these, in their order
        self.overtaken = deque[int](maxlen=FEW)  # by each of the last that were completed
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
            if wait is None or wait <= limit:
                return None
            ahead = max(0, self.inside - min(self.overtaken, default=0))
            wait *= ahead / self.inside
            return None if wait <= limit else wait - limit
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
        self._admission = admission
        admission.inside += 1
        admission.places[self] = None
        admission.pace.enter(admission.clock(), admission.inside)

    def leave(self, completed: bool = False) -> None:
        """Give up the place, at the first call. Errors take no time: they do not count as pace."""
        admission = self._admission
        if self not in admission.places:
            return
        if completed:
            before = takewhile(lambda place: place is not self, admission.places)
            admission.overtaken.append(sum(1 for _ in before))
        del admission.places[self]
        admission.inside -= 1
        if completed:
            admission.pace.leave(admission.clock(), admission.inside)
