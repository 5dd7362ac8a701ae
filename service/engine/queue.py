"""Entries that wait, and how they are divided among the workers of a model.

Requests take turns: a source beside requests of thousands waits for one source of each. Fair
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
from service.errors import DeadlineExceeded, Unavailable
from service.pace import Pace, refuse
from service.wire.messages import Entry

# A step costs as much before its first row as for about ten rows. So workers that share few rows
# take longer than one that decodes them all (docs/adr/0005). If at most FEW rows wait, or are left
# after a worker has taken its share, and the busiest worker would then decode at most BUSY rows, it
# takes them all, and the other cores stay free for the HTTP process. Otherwise the workers share
# the rows evenly.
FEW, BUSY = 5, 16  # rows
SHORT = 256  # entries: a queue this short is scanned in far less time than a step takes


@dataclass(slots=True)
class Waiting:
    """The entries of one request that wait, and how many rows they take."""

    entries: deque[Entry]
    rows: int


class Turns:
    """Entries in the order in which they are taken: one of each request, then the next of each."""

    def __init__(self) -> None:
        self._requests = deque[Waiting]()
        self.rows = self.entries = 0  # how many wait

    def __iter__(self) -> Iterator[Entry]:
        for turn in zip_longest(*(each.entries for each in self._requests)):
            yield from (entry for entry in turn if entry)

    def __bool__(self) -> bool:
        return bool(self._requests)

    def rows_before(self, rows: int) -> int:
        """Return how many rows come before the last of `rows` that a new request adds."""
        return sum(min(rows, each.rows) for each in self._requests)

    def add(self, entries: Sequence[Entry]) -> None:
        """Add the entries of a request."""
        if entries:
            rows = sum(entry.rows for entry in entries)
            self._requests.append(Waiting(deque(entries), rows))
            self.rows, self.entries = self.rows + rows, self.entries + len(entries)

    def pop(self) -> Entry:
        """Remove and return the first entry. The next one of its request comes last in line."""
        request = self._requests.popleft()
        entry = request.entries.popleft()
        request.rows -= entry.rows
        self.rows, self.entries = self.rows - entry.rows, self.entries - 1
        if request.entries:
            self._requests.append(request)
        return entry

    def remove_abandoned(self) -> None:
        requests = [*self._requests]
        self.clear()
        for each in requests:
            self.add([entry for entry in each.entries if not entry.abandoned])

    def clear(self) -> list[Entry]:
        """Remove and return all entries."""
        left = [*self]
        self._requests.clear()
        self.rows = self.entries = 0
        return left


class Queue:
    """A queue that all workers of a model take from; its methods may be called on any thread."""

    def __init__(
        self, scheduler: Scheduler, workers: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._waiting = Turns()
        self._clean_above = SHORT  # entries: then abandoned ones are looked for
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

    def put(self, entries: Sequence[Entry], seconds: float = math.inf) -> None:
        """Accept all entries of a request or none. Each accepted one gets a `result`.

        Goes by the rate at which rows were taken lately. Raises DeadlineExceeded if the last of
        them would wait for longer than `seconds` even alone, Overloaded if it would beside the rows
        that wait; Unavailable once the queue is closed.
        """
        with self._changed:
            if self._closed:
                raise Unavailable("this model is being closed: send the request again")
            rows, now = sum(entry.rows for entry in entries), self._clock()
            if self._wait(rows, now) > seconds:
                self._waiting.remove_abandoned()
            if (wait := self._wait(rows, now)) > seconds:
                self._refuse(rows, now, wait, seconds)
            for entry in entries:
                entry.accept()
            self._waiting.add(entries)
            if self._waiting.entries > self._clean_above:
                self._waiting.remove_abandoned()
                self._clean_above = max(SHORT, 2 * self._waiting.entries)
            self._pace.enter(now, self._waiting.rows, rows)
            self._changed.notify(len(entries))

    def _wait(self, rows: int, now: float) -> float:
        """Return the seconds until the last of so many new rows is taken; 0 if nobody can know."""
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

    def take(self, worker: int, running: Sequence[Entry], *, busy: bool) -> list[Entry] | None:
        """Return the entries that a worker should encode next, beside those it is decoding.

        An idle worker waits here for work; a busy one gets an empty list at once. None means that
        the queue is closed and empty, so the worker can end.
        """
        self._rows[worker] = sum(entry.rows for entry in running)
        if busy and not self._is_for(worker):
            return []
        with self._changed:
            self._changed.wait_for(lambda: busy or self._is_for(worker) or self._closed)
            if self._waiting.entries <= SHORT or next(iter(self._waiting)).abandoned:
                self._waiting.remove_abandoned()
            if not self._waiting:
                return None if self._closed and not busy else []
            sizes = (entry.size for entry in self._waiting)
            admitted = self._scheduler.admit(sizes, (entry.size for entry in running))
            if not admitted:
                self.occupy(worker)
            return self._hand_out(worker, admitted)

    def occupy(self, worker: int) -> None:
        """Let the other workers take the waiting entries: this one has no room, or is about to do
        something longer than a step."""
        with self._changed:
            self._rows[worker] = max(self._rows[worker], BUSY)
            self._changed.notify_all()

    def close(self) -> None:
        """Accept no more entries; those that wait are still handed out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def leave(self, worker: int) -> list[Entry]:
        """Close the queue because a worker has ended. If it was the last, return the entries that
        nobody will take any more."""
        self.close()
        with self._changed:
            del self._rows[worker]
            if self._rows:
                return []
            return self._waiting.clear()

    def _hand_out(self, worker: int, admitted: int) -> list[Entry]:
        """Take up to `admitted` entries: all of them if few rows wait, else only until this worker
        has its share of the rows."""
        taken: list[Entry] = []
        share = self._share()
        while len(taken) < admitted and (self._few_wait or self._rows[worker] < share):
            taken.append(self._waiting.pop())
            self._rows[worker] += taken[-1].rows
        if rows := sum(entry.rows for entry in taken):
            self._pace.leave(self._clock(), self._waiting.rows, rows)
        return [entry for entry in taken if not entry.abandoned]

    def _is_for(self, worker: int) -> bool:
        """Return whether the worker should take entries. Few rows go only to the busiest worker."""
        if not self._waiting:
            return False
        return self._rows[worker] == max(self._rows.values()) or not self._few_wait

    @property
    def _few_wait(self) -> bool:
        """Return whether so few rows wait that one worker should decode them all."""
        most = max(self._rows.values())
        return self._waiting.rows <= FEW and self._waiting.rows + most <= BUSY

    def _share(self) -> int:
        """Rows per worker if all rows, waiting or being decoded, were divided evenly."""
        return -(-(sum(self._rows.values()) + self._waiting.rows) // len(self._rows))
