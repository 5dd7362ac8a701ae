"""Simulate replicas of the service, event by event: their batches, queues, admission and failures.

A replica is a flow-equivalent server (Chandy, Herzog and Woo 1975): while it has n rows, it
completes n / `ServiceTimes.at(n)` of them a second, as measured. Rows join and leave between steps,
so that `together` of them progress at once (processor sharing); the others wait in order. Time is
simulated, and chance is given: the same seed gives the same numbers.
"""

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random

from service.http.middleware.door import Admission, Place

TRIES, RETRY = 4, 1.0  # how often a client sends a request, and seconds before it sends it again
TIMEOUT = 60.0  # seconds that a request may take, as HEED_TIMEOUT


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Mean seconds of a row by the rows that the replica has, ascending. `spread` holds, for each
    of these numbers, times of single requests relative to that; by default all take the mean.
    At most `together` rows progress at once."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    spread: tuple[tuple[float, ...], ...] = ()
    together: int = 256

    def at(self, rows: int) -> float:
        """Interpolate. Beyond the last number, no more rows are completed in a second."""
        place = bisect_left(self.rows, rows)
        if place == len(self.rows):
            return self.seconds[-1] * rows / self.rows[-1]
        if self.rows[place] == rows or place == 0:
            return self.seconds[place]
        low, high = self.rows[place - 1], self.rows[place]
        share = (rows - low) / (high - low)
        return (1 - share) * self.seconds[place - 1] + share * self.seconds[place]

    def draw(self, rows: int, chance: Random) -> float:
        """Return the time of a request relative to the mean among that many rows."""
        if not self.spread:
            return 1.0
        return chance.choice(self.spread[min(bisect_left(self.rows, rows), len(self.rows) - 1)])

    @property
    def capacity(self) -> float:
        """Rows a second at most."""
        return max(rows / each for rows, each in zip(self.rows, self.seconds, strict=True))


@dataclass(slots=True)
class Request:
    arrived: float
    rows: int
    tries: int = 0
    place: Place | None = None


class Replica:
    def __init__(self, times: ServiceTimes, admission: Admission) -> None:
        self.alive = True
        self.rows = 0  # in progress or waiting
        self.requests = 0
        self.busy = 0.0  # seconds in which any row was in progress
        self.admission = admission
        self._times = times
        self._numbers = count()
        self._running = 0  # rows
        self._ending: list[tuple[float, int, Request]] = []  # by the progress at which each ends
        self._waiting = deque[tuple[Request, float]]()
        self._progress, self._since = 0.0, 0.0  # of every row, in means; measured at this moment

    @property
    def waiting(self) -> int:
        """Rows that wait."""
        return self.rows - self._running

    def add(self, now: float, request: Request, chance: Random) -> None:
        self._advance(now)
        self.rows += request.rows
        self.requests += 1
        request.place = Place(self.admission)
        self._waiting.append((request, self._times.draw(self.rows, chance)))
        self._take()

    def next_end(self) -> float | None:
        """Return when a request ends if none joins before; None if there is none."""
        if not self._ending:
            return None
        left = self._ending[0][0] - self._progress
        return self._since + left * self._pace()

    def finish(self, now: float) -> Request:
        """Remove and return the request that ends now."""
        self._advance(now)
        self._progress, _, request = heapq.heappop(self._ending)
        self._running -= request.rows
        self._leave(request, completed=True)
        self._take()
        return request

    def die(self) -> list[Request]:
        """Remove and return all requests, which are lost."""
        self.alive = False
        lost = [request for *_, request in self._ending] + [each for each, _ in self._waiting]
        self._ending.clear()
        self._waiting.clear()
        self._running = 0
        for request in lost:
            self._leave(request, completed=False)
        return lost

    def _leave(self, request: Request, *, completed: bool) -> None:
        self.rows -= request.rows
        self.requests -= 1
        if request.place:
            request.place.leave(completed=completed)

    def _advance(self, now: float) -> None:
        if self._running:
            self._progress += (now - self._since) / self._pace()
            self.busy += now - self._since
        self._since = now

    def _pace(self) -> float:
        """Return the mean seconds of each row that progresses."""
        return self._times.at(self.rows) * self._running / self.rows

    def _take(self) -> None:
        """Start what waits, while there is room. A request above the limit runs alone."""
        while self._waiting:
            request, work = self._waiting[0]
            if self._running and self._running + request.rows > self._times.together:
                return
            self._waiting.popleft()
            self._running += request.rows
            heapq.heappush(self._ending, (self._progress + work, next(self._numbers), request))


Route = Callable[[Sequence[Replica], Random], Replica]


def at_random(replicas: Sequence[Replica], chance: Random) -> Replica:
    return chance.choice(replicas)


def in_turn() -> Route:
    """Return a route to each replica in turn."""
    turn = count()
    return lambda replicas, _: replicas[next(turn) % len(replicas)]


def fewest_requests(replicas: Sequence[Replica], chance: Random) -> Replica:
    return min(replicas, key=lambda each: (each.requests, chance.random()))


def fewest_rows(replicas: Sequence[Replica], chance: Random) -> Replica:
    return min(replicas, key=lambda each: (each.rows, chance.random()))


def better_of_two(replicas: Sequence[Replica], chance: Random) -> Replica:
    """Return the one with fewer rows of two random replicas (Mitzenmacher 2001)."""
    return fewest_rows([chance.choice(replicas), chance.choice(replicas)], chance)


@dataclass(slots=True)
class Fleet:
    """Replicas behind a router, and what became of their requests. `seconds` holds the arrival of
    each answered request and how long it took, waits before repeated tries included."""

    times: ServiceTimes
    route: Route
    chance: Random
    arriving: Random = field(default_factory=lambda: Random(1))  # apart: all routes get the same
    most_requests: int = 200  # as HEED_MAX_REQUESTS
    now: float = 0.0
    serving: list[Replica] = field(default_factory=list[Replica])
    draining: list[Replica] = field(default_factory=list[Replica])
    sent: int = 0
    refused: int = 0
    failed: int = 0
    repeated: int = 0
    seconds: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    _events: list[tuple[float, int, Callable[[], object]]] = field(
        default_factory=list[tuple[float, int, Callable[[], object]]]
    )
    _numbers: "count[int]" = field(default_factory=count)

    def at(self, moment: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), action))

    def run(self) -> None:
        """Do everything that is due, in order of time, until there is nothing left."""
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()

    def start(self) -> Replica:
        """Add a replica that serves from now on."""
        admission = Admission(self.most_requests, TIMEOUT, lambda: self.now)
        replica = Replica(self.times, admission)
        self.serving.append(replica)
        return replica

    def drain(self, replica: Replica) -> None:
        """Send no more requests to a replica; it finishes those that it has."""
        self.serving.remove(replica)
        if replica.requests:
            self.draining.append(replica)

    def kill(self, replica: Replica, noticed: float) -> None:
        """Let a serving replica die. For `noticed` seconds the router still sends it requests. All
        are lost, and clients send them again."""
        for request in replica.die():
            self.repeat(request)
        self.at(self.now + noticed, partial(self.drain, replica))

    def send(self, request: Request) -> None:
        request.tries += 1
        if not self.serving:
            self.repeat(request)
            return
        replica = self.route(self.serving, self.chance)
        if not replica.alive:
            self.repeat(request)
            return
        if replica.admission.late(TIMEOUT) is not None:
            self.refused += 1
            return
        replica.add(self.now, request, self.chance)
        self._expect(replica)

    def repeat(self, request: Request) -> None:
        if request.tries == TRIES:
            self.failed += 1
            return
        self.repeated += 1
        self.at(self.now + RETRY, partial(self.send, request))

    def arrivals(
        self, until: float, rate: Callable[[float], float], rows: Callable[[Random], int]
    ) -> None:
        """Let requests arrive at random (Poisson), at `rate(now)` a second, until a moment."""
        moment = self.now + self.arriving.expovariate(rate(self.now))
        if moment < until:
            self.at(moment, partial(self._arrive, until, rate, rows))

    def _arrive(
        self, until: float, rate: Callable[[float], float], rows: Callable[[Random], int]
    ) -> None:
        self.sent += 1
        self.send(Request(self.now, rows(self.arriving)))
        self.arrivals(until, rate, rows)

    def _expect(self, replica: Replica) -> None:
        """Look at the replica when its next request ends, unless others join before."""
        if (end := replica.next_end()) is not None:
            self.at(end, partial(self._look, replica, end))

    def _look(self, replica: Replica, expected: float) -> None:
        if replica.next_end() != expected:
            return  # others have joined, or it has died: another look is due
        request = replica.finish(self.now)
        self.seconds.append((request.arrived, self.now - request.arrived))
        if replica in self.draining and not replica.requests:
            self.draining.remove(replica)
        self._expect(replica)
