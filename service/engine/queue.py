"""The queue of a model: which of its workers takes which jobs, and who is refused.

Jobs of several requests take turns: a request of one source waits for one source of each request of
thousands. Fair queueing, Nagle 1987, https://www.rfc-editor.org/rfc/rfc970
A new request need not even wait for that: its first turn comes early and, if it is small, some room
is kept for it, as for the new flows of fq_codel, https://www.rfc-editor.org/rfc/rfc8290
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest

import numpy as np

from service.engine.scheduler import Job, Scheduler
from service.errors import DeadlineExceeded, HeedError, Unavailable
from service.pace import FEW, Pace, refuse
from service.wire import NO_REST, Rest

# A step costs as much before its first row as for about ten rows. So workers that share few rows
# take longer than one that decodes them all (docs/adr/0005). If at most GATHERED_ROWS wait, or are
# left after a worker has taken its share, and the busiest worker would then decode at most
# BUSY_ROWS, it takes them all, and the other cores stay free for the HTTP process. Otherwise the
# workers share the rows evenly.
GATHERED_ROWS, BUSY_ROWS = 5, 16
LATE = 1.25  # times the expected wait: a rate is not exact
OVERTAKEN = 64  # times: then a worker makes room for the first job, if that helps it
SHORT_QUEUE = 256  # jobs: a queue this short is scanned in far less time than a step takes


@dataclass(slots=True, eq=False)
class Waiting:
    """A request of which some jobs wait."""

    jobs: deque[Job]
    rows: int  # of `jobs`
    coming: int = 0  # rows of the jobs that the request sends later
    until: float = math.inf  # when the last of all jobs must have been taken
    since: float = 0.0  # when the request came
    is_new: bool = True  # whether no job was taken yet
    is_small: bool = False  # whether it fits whole into the room that is kept for such

    @property
    def all_rows(self) -> int:
        return self.rows + self.coming


def turn_of(job: Job) -> int:
    """Return a key that sorts the jobs of a request: the longest first, because rows that run
    together are padded to the longest of them. Streams keep the order in which they are read."""
    return 0 if job.entry.streams else -job.size.positions


class Ahead:
    """The requests before another one, with which it takes turns: their rows, when the last of each
    must have been taken, and how many rows are taken until then."""

    def __init__(self, requests: Sequence[Waiting] = ()) -> None:
        self.rows = np.array([each.all_rows for each in requests], np.int64)
        self._until = np.array([each.until for each in requests])
        ordered = np.sort(self.rows)
        sums, fewer = np.append(0, ordered.cumsum()), ordered.searchsorted(self.rows)
        self._taken = sums[fewer] + self.rows * (len(ordered) - fewer)

    def rows_before(self, rows: int) -> int:
        """Return how many of their rows come before the last of `rows` of another request."""
        return int(np.minimum(self.rows, rows).sum())

    def add(self, request: Waiting) -> None:
        """Count a request that waits with them."""
        shared = np.minimum(self.rows, request.all_rows)
        own = request.all_rows + shared.sum()
        self._taken = np.append(self._taken + shared, own)
        self.rows = np.append(self.rows, request.all_rows)
        self._until = np.append(self._until, request.until)

    def is_delayed(self, request: Waiting, row_seconds: float, now: float) -> bool:
        """Return whether one of them would come too late because of a request. A few rows are
        accepted nevertheless: each delays it by no more than a row."""
        if request.all_rows <= FEW or not len(self.rows):
            return False
        left, then = self._until - now, self._taken + np.minimum(self.rows, request.all_rows)
        in_time = row_seconds * self._taken <= left
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

    def first_of_small(self) -> list[Job]:
        """Return the first job of each small request that has had no turn yet."""
        return [each.jobs[0] for each in self._requests if each.is_new and each.is_small]

    def pop(self, job: Job | None = None) -> Job:
        """Remove and return the first job, or this one, the first of its request. The next one of
        its request comes last in line."""
        if job is None:
            request = self._requests.popleft()
        else:
            request = next(each for each in self._requests if each.jobs[0] is job)
            self._requests.remove(request)
        job = request.jobs.popleft()
        request.rows -= job.rows
        job.is_small = request.is_small
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
        self._first: Job | None = None  # the first job, while no worker has room for it
        self._overtaken = 0  # jobs that were handed out before it meanwhile
        self._emptied: int | None = None  # the worker that makes room for it
        self.open = True
        self._changed = threading.Condition()

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return self._waiting.rows

    def put(self, jobs: Sequence[Job], seconds: float = math.inf, rest: Rest = NO_REST) -> None:
        """Accept all jobs of a request or none. `rest` says what else the request sends. While
        some of its jobs wait, further ones are always accepted.

        Raise DeadlineExceeded or Overloaded if the last of all its rows would come too late (see
        `_refusal`), and Unavailable once the queue is closed.
        """
        ordered = deque(sorted(jobs, key=turn_of))
        with self._changed:
            if not self.open:
                raise Unavailable("this model is being closed: send the request again")
            rows, now = sum(job.rows for job in jobs), self._clock()
            since = jobs[0].arrived if rest.since is None else rest.since
            request = Waiting(ordered, rows, rest.rows, now + seconds, since)
            longest = ordered[0].size.positions
            request.is_small = self._scheduler.is_small(request.all_rows, longest)
            known = None if rest.since is None else self._waiting.find(since)
            if known:
                self._waiting.extend(known, request)
            else:
                self._check(request, now)
                self._waiting.add(request)
            if self._waiting.jobs > self._clean_above:
                self._waiting.remove_abandoned()
                self._clean_above = max(SHORT_QUEUE, 2 * self._waiting.jobs)
            if self._waiting.rows >= FEW:  # else no rate is measured
                self._pace.enter(now, self._waiting.rows, rows)
            self._changed.notify(len(jobs))

    def _check(self, request: Waiting, now: float) -> None:
        """Raise the refusal of a request that comes too late even after those that are abandoned
        have been removed."""
        if self._refusal_at(request, now):
            self._waiting.remove_abandoned()
            if refusal := self._refusal_at(request, now):
                raise refusal

    def _refusal_at(self, request: Waiting, now: float) -> HeedError | None:
        row_seconds = self._pace.rate and self._pace.wait(now, self._waiting.rows, 1)
        if not row_seconds:
            return None  # any is accepted while no rate is known
        ahead = Ahead(self._waiting.earlier(request.since))
        return self._refusal(request, ahead, row_seconds, now)

    def _refusal(
        self, request: Waiting, ahead: Ahead, row_seconds: float, now: float
    ) -> HeedError | None:
        """Return what a request is told if the last of its rows would be taken too late after those
        `ahead`, or would make one of these too late, at the rate at which rows were taken lately.
        Return None if it can be accepted.

        There is a margin, unless none is before it: then it is refused only if it takes too long
        even alone.
        """
        rows, left = request.all_rows, request.until - now
        alone = row_seconds * rows
        before = ahead.rows_before(rows)
        wait = row_seconds * (rows + before) * (LATE if before else 1)
        if wait <= left and not ahead.is_delayed(request, row_seconds, now):
            return None
        of_rows = "rows (sources, times their beams or samples)"
        others = ahead.rows.sum()
        if wait <= left:
            return refuse(
                f"{others} {of_rows} wait already, and {rows} more would make some of them late",
                alone,
            )
        has = f"and this request has {left:.3g}"
        if alone > left:
            return DeadlineExceeded(
                f"{rows} {of_rows} take about {alone:.2g} seconds, {has}: send fewer, or give it"
                " more time"
            )
        return refuse(
            f"{others} {of_rows} wait already, so {rows} more would wait for about"
            f" {wait:.2g} seconds, {has}",
            wait - left,
        )

    def _refuse_late(self, now: float) -> None:
        """Refuse those that arrived last if not all can be taken in time, at the rate that has just
        been measured.

        They were accepted when no rate was known, or it was higher. Since requests take turns, all
        would otherwise come too late together, after all the work on them.
        """
        row_seconds = self._pace.wait(now, self._waiting.rows, 1)
        if row_seconds is None:
            return
        if now + LATE * row_seconds * self._waiting.all_rows <= self._waiting.soonest:
            return
        kept = Ahead()
        for each in self._waiting.in_order_of_arrival():
            if refusal := self._refusal(each, kept, row_seconds, now):
                for job in each.jobs:
                    job.finish(refusal)
            else:
                kept.add(each)
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
            self._changed.wait_for(lambda: busy or self._is_for(worker) or not self.open)
            if self._waiting.jobs <= SHORT_QUEUE or next(iter(self._waiting)).abandoned:
                self._waiting.remove_abandoned()
            if not self._waiting:
                self._first = self._emptied = None
                return [] if self.open or busy else None
            held = [job.size for job in running]
            admitted = self._shared.admit((job.size for job in self._waiting), held)
            if admitted:
                self._first = self._emptied = None
                return self._hand_out(worker, admitted)
            small = self._small_jobs(worker, running)
            admitted = self._scheduler.admit((job.size for job in small), held)
            if not admitted:
                self.occupy(worker)
            return self._hand_out_small(worker, small[:admitted])

    def is_alone(self, worker: int) -> bool:
        """Return whether the other workers have no rows."""
        return sum(self._rows.values()) == self._rows[worker]

    def take_plain(self, worker: int, running: Sequence[Job]) -> list[Job]:
        """Return what a worker should encode next that has to do something longer than a step: the
        first jobs of small new requests that do not need teacher forcing themselves. Others are
        left."""
        with self._changed:
            small = self._small_jobs(worker, running)
            small = [job for job in small if not job.needs_teacher_forcing]
            sizes = (job.size for job in small)
            admitted = self._scheduler.admit(sizes, (job.size for job in running))
            return self._hand_out_small(worker, small[:admitted])

    def _small_jobs(self, worker: int, running: Sequence[Job]) -> list[Job]:
        """Return the jobs for which room is kept: the first one of each request that fits into it
        whole. Those of large requests would fill it until they all end together. There are none for
        a worker that makes room."""
        return [] if self._makes_room(worker, running) else self._waiting.first_of_small()

    def _makes_room(self, worker: int, running: Sequence[Job]) -> bool:
        """Return whether this worker takes no small jobs until the first job has found room. One
        worker does so after OVERTAKEN jobs were taken before the first, if this would fit without
        the small ones. While others keep it out, to refuse small ones would not help it."""
        first = next(iter(self._waiting), None)
        if first is not self._first:
            self._first, self._overtaken, self._emptied = first, 0, None
        if first and self._emptied is None and self._overtaken >= OVERTAKEN:
            others = [job.size for job in running if not job.is_small]
            if self._shared.admit([first.size], others):
                self._emptied = worker
        return worker == self._emptied

    def occupy(self, worker: int) -> None:
        """Let the other workers take the waiting jobs: this one has no room, or is about to do
        something longer than a step."""
        with self._changed:
            self._rows[worker] = max(self._rows[worker], BUSY_ROWS)
            self._changed.notify_all()

    def close(self) -> None:
        """Accept no more jobs; those that wait are still handed out."""
        with self._changed:
            self.open = False
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

    def _hand_out_small(self, worker: int, small: Sequence[Job]) -> list[Job]:
        """Take these jobs, or some of them, before the first one."""
        taken = self._hand_out(worker, len(small), small)
        self._overtaken += len(taken)
        if not self._waiting:  # the first was among them, and would be kept after it has ended
            self._first = self._emptied = None
        return taken

    def _is_for(self, worker: int) -> bool:
        """Return whether the worker should take jobs. Few rows go only to the busiest worker, or to
        the one that has made room for them."""
        if not self._waiting:
            return False
        is_busiest = self._rows[worker] == max(self._rows.values())
        return is_busiest or worker == self._emptied or not self._few_wait

    @property
    def _few_wait(self) -> bool:
        """Return whether few enough rows wait for one worker to decode them all."""
        most = max(self._rows.values())
        return self._waiting.rows <= GATHERED_ROWS and self._waiting.rows + most <= BUSY_ROWS

    def _share(self) -> int:
        """Rows per worker if all rows, waiting or being decoded, were divided evenly."""
        return -(-(sum(self._rows.values()) + self._waiting.rows) // len(self._rows))
