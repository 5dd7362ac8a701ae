"""Entries that wait, and how they are divided among the workers of a model."""

import threading
from collections import deque
from collections.abc import Sequence

from service.engine.messages import Entry
from service.engine.scheduler import Scheduler
from service.errors import Unavailable

# A step costs as much before its first row as for about ten rows. So workers that share few rows
# take longer than one that decodes them all (docs/adr/0005). If at most FEW rows wait, or are left
# after a worker has taken its share, and the busiest worker would then decode at most BUSY rows, it
# takes them all, and the other cores stay free for the HTTP process. Otherwise the workers share
# the rows evenly.
FEW, BUSY = 5, 16  # rows
SHORT = 256  # entries: a queue this short is scanned in far less time than a step takes


class Queue:
    """A queue that all workers of a model take from; its methods may be called on any thread."""

    def __init__(self, scheduler: Scheduler, workers: int) -> None:
        self._scheduler = scheduler
        self._waiting: deque[Entry] = deque()
        self._waiting_rows = 0
        self._rows = dict.fromkeys(range(workers), 0)  # decoded by each living worker
        self._closed = False
        self._changed = threading.Condition()

    @property
    def open(self) -> bool:
        return not self._closed

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return self._waiting_rows

    def put(self, entries: Sequence[Entry]) -> None:
        """Accept all entries or none. The `result` of each accepted one will be set.

        Raises Overloaded if they do not fit, Unavailable once the queue is closed.
        """
        with self._changed:
            if self._closed:
                raise Unavailable("this model takes no requests now; try again later")
            rows = sum(entry.rows for entry in entries)
            if self._waiting_rows + rows > self._scheduler.max_queue:
                self._remove_abandoned()
            self._scheduler.check_queue(self._waiting_rows, rows)
            self._waiting.extend(entries)
            self._waiting_rows += rows
            self._changed.notify(len(entries))

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
            if len(self._waiting) <= SHORT or self._waiting[0].abandoned:
                self._remove_abandoned()
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
            left, self._waiting, self._waiting_rows = list(self._waiting), deque(), 0
            return left

    def _hand_out(self, worker: int, admitted: int) -> list[Entry]:
        """Take up to `admitted` entries: all of them if few rows wait, else only until this worker
        has its share of the rows."""
        taken: list[Entry] = []
        share = self._share()
        while len(taken) < admitted and (self._few_wait or self._rows[worker] < share):
            taken.append(self._waiting.popleft())
            self._rows[worker] += taken[-1].rows
            self._waiting_rows -= taken[-1].rows
        return [entry for entry in taken if not entry.abandoned]

    def _is_for(self, worker: int) -> bool:
        """Return whether the worker should take entries. Few rows go only to the busiest worker."""
        most = max(self._rows.values())
        return bool(self._waiting) and (self._rows[worker] == most or not self._few_wait)

    @property
    def _few_wait(self) -> bool:
        """Return whether so few rows wait that one worker should decode them all."""
        most = max(self._rows.values())
        return self._waiting_rows <= FEW and self._waiting_rows + most <= BUSY

    def _share(self) -> int:
        """Rows per worker if all rows, waiting or being decoded, were divided evenly."""
        return -(-(sum(self._rows.values()) + self._waiting_rows) // len(self._rows))

    def _remove_abandoned(self) -> None:
        self._waiting = deque(entry for entry in self._waiting if not entry.abandoned)
        self._waiting_rows = sum(entry.rows for entry in self._waiting)
