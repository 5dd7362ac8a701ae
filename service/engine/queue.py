"""Jobs that wait, and how they are divided among the workers of a model.

Requests take turns: a request of one source waits for one source of each request of thousands. Fair
queueing, Nagle 1987, https://www.rfc-editor.org/rfc/rfc970
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NoReturn

from service.engine.scheduler import Scheduler
from service.engine.work import Job
from service.errors import DeadlineExceeded, Unavailable
from service.pace import FEW, Pace, refuse

# A step costs as much before its first row as for about ten rows. So workers that share few rows
# take longer than one that decodes them all (docs/adr/0005). If at most GATHERED_ROWS wait, or are
# left after a worker has taken its share, and the busiest worker would then decode at most
# BUSY_ROWS, it takes them all, and the other cores stay free for the HTTP process. Otherwise the
# workers share the rows evenly.
GATHERED_ROWS, BUSY_ROWS = 5, 16
SHORT_QUEUE = 256  # jobs: a queue this short is scanned in far less time than a step takes


@dataclass(slots=True)
class Waiting:
    """The jobs of one request that wait, and how many rows they take."""

    jobs: deque[Job]
    rows: int


class Turns:
    """Jobs in the order in which they are taken: one of each request, then the next of each."""

    def __init__(self) -> None:
        self._requests = deque[Waiting]()
        self.rows = self.jobs = 0  # how many wait

    def __iter__(self) -> Iterator[Job]:
        for turn in zip_longest(*(each.jobs for each in self._requests)):
            yield from (job for job in turn if job)

    def __bool__(self) -> bool:
        return bool(self._requests)

    def rows_before(self, rows: int) -> int:
        """Return how many rows come before the last of `rows` that a new request adds."""
        return sum(min(rows, each.rows) for each in self._requests)

    def add(self, jobs: Sequence[Job]) -> None:
        """Add the jobs of a request."""
        if jobs:
            rows = sum(job.rows for job in jobs)
            self._requests.append(Waiting(deque(jobs), rows))
            self.rows, self.jobs = self.rows + rows, self.jobs + len(jobs)

    def pop(self) -> Job:
        """Remove and return the first job. The next one of its request comes last in line."""
        request = self._requests.popleft()
        job = request.jobs.popleft()
        request.rows -= job.rows
        self.rows, self.jobs = self.rows - job.rows, self.jobs - 1
        if request.jobs:
            self._requests.append(request)
        return job

    def remove_abandoned(self) -> None:
        requests = [*self._requests]
        self.clear()
        for each in requests:
            self.add([job for job in each.jobs if not job.abandoned])

    def clear(self) -> list[Job]:
        """Remove and return all jobs."""
        left = [*self]
        self._requests.clear()
        self.rows = self.jobs = 0
        return left


class Queue:
    """A queue that all workers of a model take from; its methods may be called on any thread."""

    def __init__(
        self, scheduler: Scheduler, workers: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._waiting = Turns()
        self._clean_above = SHORT_QUEUE  # jobs: then abandoned ones are looked for
        self._pace = Pace()  # of rows that are handed out while others wait
        self._rows = dict.fromkeys(range(workers), 0)  # decoded by each living worker
        self._closed = False
        self._changed = threading.Condition()

    @property
    def open(self) -> bool:
        return not self._closed

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return self._waiting.rows

    def put(self, jobs: Sequence[Job], seconds: float = math.inf) -> None:
        """Accept all jobs of a request or none.

        Goes by the rate at which rows were taken lately. Raise DeadlineExceeded if the last job
        would wait for longer than `seconds` even alone, Overloaded if it would after the rows that
        wait; Unavailable once the queue is closed.
        """
        with self._changed:
            if self._closed:
                raise Unavailable("this model is being closed: send the request again")
            rows, now = sum(job.rows for job in jobs), self._clock()
            if self._wait(rows, now) > seconds:
                self._waiting.remove_abandoned()
            if (wait := self._wait(rows, now)) > seconds:
                self._refuse(rows, now, wait, seconds)
            self._waiting.add(jobs)
            if self._waiting.jobs > self._clean_above:
                self._waiting.remove_abandoned()
                self._clean_above = max(SHORT_QUEUE, 2 * self._waiting.jobs)
            self._pace.enter(now, self._waiting.rows, rows)
            self._changed.notify(len(jobs))

    def _wait(self, rows: int, now: float) -> float:
        """Return the seconds until the last of `rows` new rows is taken; 0 if no rate has been
        measured."""
        if self._pace.rate is None:
            return 0.0
        ahead = self._waiting.rows_before(rows) + rows
        return self._pace.wait(now, self._waiting.rows, ahead) or 0.0

    def _refuse(self, rows: int, now: float, wait: float, seconds: float) -> NoReturn:
        alone = self._pace.wait(now, self._waiting.rows, rows) or 0.0
        of_rows = "rows (sources, times their beams or samples)"
        has = f"and this request has {seconds:.3g}"
        if alone > seconds:
            raise DeadlineExceeded(
                f"{rows} {of_rows} take about {alone:.2g} seconds, {has}: send fewer, or give it"
                " more time"
            )
        raise refuse(
            f"{self._waiting.rows} {of_rows} wait already, so {rows} more would wait for about"
            f" {wait:.2g} seconds, {has}",
            wait - seconds,
        )

    def take(self, worker: int, running: Sequence[Job], *, busy: bool) -> list[Job] | None:
        """Return the jobs that a worker should encode next and decode along with those `running`.

        An idle worker waits here for work; a busy one gets an empty list at once. None means that
        the queue is closed and empty, so the worker can end.
        """
        self._rows[worker] = sum(job.rows for job in running)
        if busy and not self._is_for(worker):
            return []
        with self._changed:
            self._changed.wait_for(lambda: busy or self._is_for(worker) or self._closed)
            if self._waiting.jobs <= SHORT_QUEUE or next(iter(self._waiting)).abandoned:
                self._waiting.remove_abandoned()
            if not self._waiting:
                return None if self._closed and not busy else []
            sizes = (job.size for job in self._waiting)
            admitted = self._scheduler.admit(sizes, (job.size for job in running))
            if not admitted:
                self.occupy(worker)
            return self._hand_out(worker, admitted)

    def occupy(self, worker: int) -> None:
        """Let the other workers take the waiting jobs: this one has no room, or is about to do
        something longer than a step."""
        with self._changed:
            self._rows[worker] = max(self._rows[worker], BUSY_ROWS)
            self._changed.notify_all()

    def close(self) -> None:
        """Accept no more jobs; those that wait are still handed out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def leave(self, worker: int) -> list[Job]:
        """Close the queue because a worker has ended. If it was the last, return the jobs that
        nobody will take any more."""
        self.close()
        with self._changed:
            del self._rows[worker]
            if self._rows:
                return []
            return self._waiting.clear()

    def _hand_out(self, worker: int, admitted: int) -> list[Job]:
        """Take up to `admitted` jobs: all of them if few rows wait, else only until this worker
        has its share of the rows."""
        taken: list[Job] = []
        share = self._share()
        while len(taken) < admitted and (self._few_wait or self._rows[worker] < share):
            taken.append(self._waiting.pop())
            self._rows[worker] += taken[-1].rows
        if taken and self._waiting.rows >= FEW:  # else no rate is measured
            rows = sum(job.rows for job in taken)
            self._pace.leave(self._clock(), self._waiting.rows, rows)
        return [job for job in taken if not job.abandoned]

    def _is_for(self, worker: int) -> bool:
        """Return whether the worker should take jobs. Few rows go only to the busiest worker."""
        if not self._waiting:
            return False
        return self._rows[worker] == max(self._rows.values()) or not self._few_wait

    @property
    def _few_wait(self) -> bool:
        """Return whether few enough rows wait for one worker to decode them all."""
        most = max(self._rows.values())
        return self._waiting.rows <= GATHERED_ROWS and self._waiting.rows + most <= BUSY_ROWS

    def _share(self) -> int:
        """Rows per worker if all rows, waiting or being decoded, were divided evenly."""
        return -(-(sum(self._rows.values()) + self._waiting.rows) // len(self._rows))
