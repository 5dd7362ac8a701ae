"""Jobs, and the decision which of them run together, when, and by which worker of a model.

A job is an entry in the engine. Jobs of several requests take turns: a request of one source waits
for one source of each request of thousands. Fair queueing, Nagle 1987,
https://www.rfc-editor.org/rfc/rfc970

Rows of a batch are padded to the longest, so budgets count padded positions. In an encoder or
teacher-forcing pass a position may count several times: additive and Gaussian scores hold a vector
for every pair of positions.
"""

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple, NoReturn

from typing_extensions import override

from service.errors import DeadlineExceeded, HeedError, Unavailable
from service.pace import FEW, Pace, refuse
from service.runtime.cache import CrossCache
from service.search.protocol import Progress
from service.wire import Answer, Entry

MAX_LOGITS_BYTES = 256 << 20  # of all workers; a step allocates once or twice as much more
DELAY = 2  # weight of a position in a pass that delays rows being decoded
# A step costs as much before its first row as for about ten rows. So workers that share few rows
# take longer than one that decodes them all (docs/adr/0005). If at most GATHERED_ROWS wait, or are
# left after a worker has taken its share, and the busiest worker would then decode at most
# BUSY_ROWS, it takes them all, and the other cores stay free for the HTTP process. Otherwise the
# workers share the rows evenly.
GATHERED_ROWS, BUSY_ROWS = 5, 16
SHORT_QUEUE = 256  # jobs: a queue this short is scanned in far less time than a step takes


class JobSize(NamedTuple):
    """Positions of a source; the rows that decode it; and the most positions of one of these rows,
    source and target together."""

    source: int
    rows: int
    positions: int


class PassSize(NamedTuple):
    """Positions of a job in a teacher-forcing pass, and how many of them get logits: those of a
    target that is scored."""

    positions: int
    scored: int


def ignore(_: Progress) -> None:
    """Do nothing with the progress of a job that nobody follows."""


class Outcome(Future[Answer]):
    """The future of a job. Workers ask at each step which of their jobs have `ended`, without the
    lock that `done` takes."""

    ended = False

    @override
    def cancel(self) -> bool:
        self.ended = super().cancel() or self.ended
        return self.cancelled()

    @override
    def set_result(self, result: Answer) -> None:
        super().set_result(result)
        self.ended = True

    @override
    def set_exception(self, exception: BaseException | None) -> None:
        super().set_exception(exception)
        self.ended = True


@dataclass(slots=True, eq=False)
class Job:
    """The work on one entry. Cancelling `result` frees the rows before the next step.

    If the entry streams, the worker's thread calls `on_progress` after each step. `arrived` is when
    the client sent the entry. `request_id` is for the log.
    """

    entry: Entry
    request_id: str = ""
    arrived: float = field(default_factory=time.monotonic)
    on_progress: Callable[[Progress], None] = ignore
    result: Outcome = field(default_factory=Outcome)
    answer: Answer = field(default_factory=Answer)  # what has been computed so far
    reported: bool = False  # progress, which cannot be taken back
    cross: CrossCache | None = None  # of its source, while the job waits for teacher forcing
    rows: int = field(init=False)  # decoded at once: beams or samples
    size: JobSize = field(init=False)  # for the scheduler

    def __post_init__(self) -> None:
        source, search = len(self.entry.source_ids), self.entry.search
        self.rows = self.entry.rows
        target = len(self.entry.target_ids)
        if search:
            target = len(search.target_prefix) + search.max_new_tokens
        self.size = JobSize(source, self.rows, source + target)

    def report(self, progress: Progress) -> None:
        self.reported = True
        self.on_progress(progress)

    def finish(self, outcome: Answer | HeedError) -> None:
        """Set the result, unless the job has been cancelled or has failed already."""
        with suppress(InvalidStateError):
            if isinstance(outcome, HeedError):
                self.result.set_exception(outcome)
            else:
                self.result.set_result(outcome)

    @property
    def abandoned(self) -> bool:
        """Return whether nobody waits for this job: it was cancelled, or has failed."""
        return self.result.ended

    @property
    def needs_teacher_forcing(self) -> bool:
        """Return whether a pass over whole targets follows encoding and decoding."""
        entry = self.entry
        return entry.scores or entry.aligns or bool(entry.selection.layers)

    @property
    def targets(self) -> list[Sequence[int]]:
        """Ids that are scored or aligned, or whose attention is shown, without prefix."""
        if self.entry.target_ids:
            return [self.entry.target_ids]
        return [hypothesis.token_ids for hypothesis in self.answer.hypotheses]

    def pass_positions(self, target: Sequence[int]) -> int:
        """Positions of source and target that teacher forcing computes for one target."""
        return len(self.entry.source_ids) + len(self.entry.prefix) + len(target)

    @property
    def pass_size(self) -> PassSize:
        """Positions that teacher forcing computes for all targets, and how many get logits."""
        scored = len(self.entry.target_ids) if self.entry.scores else 0
        return PassSize(sum(map(self.pass_positions, self.targets)), scored)


@dataclass(slots=True)
class Held:
    """Rows that a worker holds, by rows per source. Jobs with the same number are one batch, so
    their rows are padded to the longest of them."""

    rows: dict[int, int] = field(default_factory=dict[int, int])
    longest: dict[int, int] = field(default_factory=dict[int, int])

    @classmethod
    def of(cls, sizes: Iterable[JobSize]) -> "Held":
        positions = defaultdict[int, list[int]](list)
        for _, rows, of_row in sizes:
            positions[rows].append(of_row)
        return cls(
            {rows: rows * len(each) for rows, each in positions.items()},
            {rows: max(each) for rows, each in positions.items()},
        )

    def add(self, size: JobSize) -> None:
        self.rows[size.rows] = self.rows.get(size.rows, 0) + size.rows
        self.longest[size.rows] = max(self.longest.get(size.rows, 0), size.positions)

    @property
    def positions(self) -> int:
        return sum(rows * self.longest[per_source] for per_source, rows in self.rows.items())


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The budgets of a model, per worker unless noted, and which jobs fit into them."""

    max_batch_tokens: int  # padded positions that are decoded
    max_pass_tokens: int  # padded positions of one encoder or teacher-forcing pass
    max_logits_bytes: int  # float32 logits of a step (every row) or a scoring pass (every position)
    target_vocab_size: int
    pass_cost: int = 1  # how many times each position of a pass counts

    def admit(self, waiting: Iterable[JobSize], running: Iterable[JobSize]) -> int:
        """Return how many of the first waiting jobs may be encoded now and then decoded along with
        the running ones. A job that is too large to be decoded with others runs alone. A pass
        encodes at least one job, and few if it delays rows that wait for their next token."""
        held = Held.of(running)
        delays, admitted, longest_source = bool(held.rows), 0, 0
        for size in waiting:
            held.add(size)
            longest_source = max(longest_source, size.source)
            encoded = longest_source * (admitted + 1)
            if admitted and not self._fits_a_pass(encoded, delays):
                break
            if not self._can_decode(held) and (delays or admitted):
                break
            admitted += 1
        return admitted

    def one_pass(self, sizes: Iterable[PassSize], delays: bool) -> int:
        """Return how many of the first jobs one teacher-forcing pass may hold: at least one, and
        few if the pass delays rows that wait for their next token."""
        longest = longest_scored = count = 0
        for size in sizes:
            longest = max(longest, size.positions)
            longest_scored = max(longest_scored, size.scored)
            fits = self._fits_a_pass(longest * (count + 1), delays)
            if count and not (fits and self._fit_logits(longest_scored * (count + 1))):
                break
            count += 1
        return count

    def _can_decode(self, held: Held) -> bool:
        rows = sum(held.rows.values())
        return held.positions <= self.max_batch_tokens and self._fit_logits(rows)

    def _fit_logits(self, rows: int) -> bool:
        return 4 * rows * self.target_vocab_size <= self.max_logits_bytes

    def _fits_a_pass(self, positions: int, delays: bool) -> bool:
        cost = self.pass_cost * (DELAY if delays else 1)
        return positions * cost <= self.max_pass_tokens


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
