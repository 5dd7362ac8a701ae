"""The requests that wait for a model, in the order in which their jobs are taken, and which of them
come too late because of others.

Jobs of several requests take turns: a request of one source waits for one source of each request of
thousands. Fair queueing, Nagle 1987, https://www.rfc-editor.org/rfc/rfc970
A new request need not even wait for that: its first turn comes early, and some room is kept for it,
as for the new flows of fq_codel, https://www.rfc-editor.org/rfc/rfc8290
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest

import numpy as np

from service.engine.scheduler import Job
from service.pace import FEW

LATE = 1.25  # times the expected wait: a rate is not exact


@dataclass(slots=True, eq=False)
class Waiting:
    """A request of which some jobs wait."""

    jobs: deque[Job]
    rows: int  # of `jobs`
    coming: int = 0  # rows of the jobs that the request sends later
    until: float = math.inf  # when the last of all jobs must have been taken
    since: float = 0.0  # when the request came
    is_new: bool = True  # whether no job was taken yet

    @property
    def all_rows(self) -> int:
        return self.rows + self.coming


def rows_before(rows: int, requests: Iterable[Waiting]) -> int:
    """Return how many rows of these requests come before the last of `rows` of another."""
    return sum(min(rows, each.all_rows) for each in requests)


def delays(request: Waiting, earlier: Sequence[Waiting], row_seconds: float, now: float) -> bool:
    """Return whether some earlier request would come too late because of this one, with which it
    takes turns. A few rows are accepted nevertheless: each delays it by no more than a row."""
    if request.all_rows <= FEW or not earlier:
        return False
    rows = np.array([each.all_rows for each in earlier])
    left = np.array([each.until for each in earlier]) - now
    taken = np.minimum.outer(rows, rows).sum(1)  # rows until the last of each is taken
    then = taken + np.minimum(rows, request.all_rows)
    in_time = row_seconds * taken <= left
    return bool(np.any(in_time & (LATE * row_seconds * then > left)))


class Turns:
    """Jobs in the order in which they are taken: one of each request, then the next of each.

    A new request comes behind the other new ones and one that has had a turn, not behind all of
    these. So at most as many new ones overtake a request as stand before it.
    """

    def __init__(self) -> None:
        self._requests = deque[Waiting]()
        self.rows = self.jobs = 0  # how many wait

    def __iter__(self) -> Iterator[Job]:
        for turn in zip_longest(*(each.jobs for each in self._requests)):
            yield from (job for job in turn if job)

    def __bool__(self) -> bool:
        return bool(self._requests)

    @property
    def all_rows(self) -> int:
        """Rows that wait, and those that follow them."""
        return sum(each.all_rows for each in self._requests)

    @property
    def soonest(self) -> float:
        """When the first of all requests must have been taken."""
        return min((each.until for each in self._requests), default=math.inf)

    def find(self, since: float) -> Waiting | None:
        return next((each for each in self._requests if each.since == since), None)

    def earlier(self, since: float) -> list[Waiting]:
        """Return the requests that waited before another one came."""
        return [each for each in self._requests if each.since <= since]

    def in_order_of_arrival(self) -> list[Waiting]:
        return sorted(self._requests, key=lambda each: each.since)

    def add(self, request: Waiting) -> None:
        from_last = zip(count(len(self._requests), -1), reversed(self._requests), strict=False)
        behind = next((place for place, each in from_last if each.is_new), 0)
        self._requests.insert(behind + 1, request)
        self.rows, self.jobs = self.rows + request.rows, self.jobs + len(request.jobs)

    def extend(self, request: Waiting, more: Waiting) -> None:
        """Add more jobs of a request that waits."""
        request.jobs += more.jobs
        request.rows, request.coming = request.rows + more.rows, more.coming
        self.rows, self.jobs = self.rows + more.rows, self.jobs + len(more.jobs)

    def first_jobs(self) -> Iterator[Job]:
        """Yield the first job of each request that has had no turn yet."""
        return (each.jobs[0] for each in self._requests if each.is_new)

    def pop(self, job: Job | None = None) -> Job:
        """Remove and return the first job, or this one of `first_jobs`. The next one of its request
        comes last in line."""
        if job is None:
            request = self._requests.popleft()
        else:
            request = next(each for each in self._requests if each.jobs[0] is job)
            self._requests.remove(request)
        job = request.jobs.popleft()
        request.rows -= job.rows
        job.is_first, request.is_new = request.is_new, False
        self.rows, self.jobs = self.rows - job.rows, self.jobs - 1
        if request.jobs:
            self._requests.append(request)
        return job

    def remove_abandoned(self) -> None:
        if not any(job.abandoned for each in self._requests for job in each.jobs):
            return
        for each in self._requests:
            each.jobs = deque(job for job in each.jobs if not job.abandoned)
            each.rows = sum(job.rows for job in each.jobs)
        self._requests = deque(each for each in self._requests if each.jobs)
        self.rows = sum(each.rows for each in self._requests)
        self.jobs = sum(len(each.jobs) for each in self._requests)

    def clear(self) -> list[Job]:
        """Remove and return all jobs."""
        left = [*self]
        self._requests.clear()
        self.rows = self.jobs = 0
        return left
