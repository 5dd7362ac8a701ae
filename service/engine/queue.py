"""The queue of a model: in which order jobs are taken, by which of its workers, and who is refused.

Jobs of several requests take turns: a request of one source waits for one source of each request of
thousands. Fair queueing, Nagle 1987, https://www.rfc-editor.org/rfc/rfc970
A new request need not even wait for that: its first turn comes early, and some room is kept for it,
as for the new flows of fq_codel, https://www.rfc-editor.org/rfc/rfc8290
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest

from service.engine.scheduler import Job, Scheduler
from service.errors import DeadlineExceeded, HeedError, Unavailable
from service.pace import FEW, Pace, refuse

# A step costs as much before its first row as for about ten rows. So workers that share few rows
# take longer than one that decodes them all (docs/adr/0005). If at most GATHERED_ROWS wait, or are
# left after a worker has taken its share, and the busiest worker would then decode at most
# BUSY_ROWS, it takes them all, and the other cores stay free for the HTTP process. Otherwise the
# workers share the rows evenly.
GATHERED_ROWS, BUSY_ROWS = 5, 16
LATE = 1.25  # times the expected wait: a rate is not exact
SHORT_QUEUE = 256  # jobs: a queue this short is scanned in far less time than a step takes


@dataclass(slots=True, eq=False)
class Waiting:
    """The jobs of one request that wait, how many rows they take, when the last of them must have
    been taken, and whether none was taken yet."""

    jobs: deque[Job]
    rows: int
    until: float = math.inf
    is_new: bool = True

    @property
    def arrived(self) -> float:
        return self.jobs[0].arrived


def rows_before(rows: int, requests: Iterable[Waiting]) -> int:
    """Return how many rows of these requests come before the last of `rows` of another."""
    return sum(min(rows, each.rows) for each in requests)


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

    def rows_before(self, rows: int) -> int:
        """Return how many rows come before the last of `rows` that a new request adds."""
        return rows_before(rows, self._requests)

    @property
    def soonest(self) -> float:
        """When the first of all requests must have been taken."""
        return min((each.until for each in self._requests), default=math.inf)

    def in_order_of_arrival(self) -> list[Waiting]:
        return sorted(self._requests, key=lambda each: each.arrived)

    def add(self, jobs: Sequence[Job], until: float = math.inf) -> None:
        """Add the jobs of a request, of which the last must be taken before `until`."""
        if jobs:
            rows = sum(job.rows for job in jobs)
            from_last = zip(count(len(self._requests), -1), reversed(self._requests), strict=False)
            behind = next((place for place, each in from_last if each.is_new), 0)
            self._requests.insert(behind + 1, Waiting(deque(jobs), rows, until))
            self.rows, self.jobs = self.rows + rows, self.jobs + len(jobs)

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


class Queue:
    """A queue that all workers of a model take from; its methods may be called on any thread."""

    def __init__(
        self, scheduler: Scheduler, workers: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._scheduler = scheduler
        self._shared = scheduler.without_kept()
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
                raise self._refusal(rows, now, wait, seconds, self._waiting.rows)
            self._waiting.add(jobs, now + seconds)
            if self._waiting.jobs > self._clean_above:
                self._waiting.remove_abandoned()
                self._clean_above = max(SHORT_QUEUE, 2 * self._waiting.jobs)
            if self._waiting.rows >= FEW:  # else no rate is measured
                self._pace.enter(now, self._waiting.rows, rows)
            self._changed.notify(len(jobs))

    def _wait(self, rows: int, now: float) -> float:
        """Return the seconds until the last of `rows` new rows is taken; 0 if no rate has been
        measured."""
        if self._pace.rate is None:
            return 0.0
        ahead = self._waiting.rows_before(rows) + rows
        return self._pace.wait(now, self._waiting.rows, ahead) or 0.0

    def _refusal(
        self, rows: int, now: float, wait: float, seconds: float, others: int
    ) -> HeedError:
        """Return what a request is told whose `rows` would wait for longer than it can, with the
        rows of `others`."""
        alone = self._pace.wait(now, self._waiting.rows, rows) or 0.0
        of_rows = "rows (sources, times their beams or samples)"
        has = f"and this request has {seconds:.3g}"
        if alone > seconds:
            return DeadlineExceeded(
                f"{rows} {of_rows} take about {alone:.2g} seconds, {has}: send fewer, or give it"
                " more time"
            )
        return refuse(
            f"{others} {of_rows} wait already, so {rows} more would wait for about"
            f" {wait:.2g} seconds, {has}",
            wait - seconds,
        )

    def _refuse_late(self, now: float) -> None:
        """Refuse those that arrived last if not all can be taken in time, at the rate that has just
        been measured.

        They were accepted when no rate was known, or it was higher. Since requests take turns, all
        would otherwise come too late together, after all the work on them.
        """
        rate = self._pace.rate or math.inf
        if now + LATE * self._waiting.rows / rate <= self._waiting.soonest:
            return
        kept: list[Waiting] = []
        for each in self._waiting.in_order_of_arrival():
            before, left = rows_before(each.rows, kept), each.until - now
            # One that none is before is refused only if it takes too long even alone
            if (wait := (LATE if kept else 1) * (before + each.rows) / rate) <= left:
                kept.append(each)
                continue
            others = sum(other.rows for other in kept)
            refusal = self._refusal(each.rows, now, wait, left, others)
            for job in each.jobs:
                job.finish(refusal)
        self._waiting.remove_abandoned()

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
            held = [job.size for job in running]
            admitted = self._shared.admit((job.size for job in self._waiting), held)
            if admitted:
                return self._hand_out(worker, admitted)
            small = self._small_jobs()
            admitted = self._scheduler.admit((job.size for job in small), held)
            if not admitted:
                self.occupy(worker)
            return self._hand_out(worker, admitted, small)

    def take_plain(self, worker: int, running: Sequence[Job]) -> list[Job]:
        """Return what a worker should encode next that has to do something longer than a step:
        small jobs of new requests that do not need teacher forcing themselves. Others are left."""
        with self._changed:
            small = [job for job in self._small_jobs() if not job.needs_teacher_forcing]
            sizes = (job.size for job in small)
            admitted = self._scheduler.admit(sizes, (job.size for job in running))
            return self._hand_out(worker, admitted, small)

    def _small_jobs(self) -> list[Job]:
        """Return the jobs for which room is kept."""
        return [job for job in self._waiting.first_jobs() if self._scheduler.is_small(job.size)]

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

    def _hand_out(self, worker: int, admitted: int, chosen: Sequence[Job] = ()) -> list[Job]:
        """Take up to `admitted` jobs, of those chosen if any are: all of them if few rows wait,
        else only until this worker has its share of the rows."""
        taken: list[Job] = []
        share = self._share()
        while len(taken) < admitted and (self._few_wait or self._rows[worker] < share):
            taken.append(self._waiting.pop(chosen[len(taken)] if chosen else None))
            self._rows[worker] += taken[-1].rows
        if taken and self._waiting.rows >= FEW:  # else no rate is measured
            rows = sum(job.rows for job in taken)
            now = self._clock()
            if self._pace.leave(now, self._waiting.rows, rows):
                self._refuse_late(now)
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
