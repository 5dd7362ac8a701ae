"""Entries that wait for a worker: a few gather at one, many are shared out to all alike."""

import threading
from collections import deque
from collections.abc import Sequence

from service.engine.messages import Entry
from service.engine.scheduler import Scheduler
from service.errors import Unavailable

FEW, MANY = 3, 16  # rows
SHORT = 256  # entries that are looked through in far less time than a step takes


class Queue:
    def __init__(self, scheduler: Scheduler, workers: int) -> None:
        self._scheduler = scheduler
        self._waiting: deque[Entry] = deque()
        self._waiting_rows = 0  # of all that wait
        self._rows = dict.fromkeys(range(workers), 0)  # those that each working worker holds
        self._closed = False
        self._changed = threading.Condition()

    @property
    def open(self) -> bool:
        return not self._closed

    def put(self, entries: Sequence[Entry]) -> None:
        """All are accepted or none is. Raises Overloaded, and Unavailable once it is closed."""
        with self._changed:
            if self._closed:
                raise Unavailable("this model takes no requests now")
            rows = sum(entry.rows for entry in entries)
            if self._waiting_rows + rows > self._scheduler.max_queue:
                self._forget_abandoned()
            self._scheduler.check_queue(self._waiting_rows, rows)
            self._waiting.extend(entries)
            self._waiting_rows += rows
            self._changed.notify(len(entries))

    def take(self, worker: int, running: Sequence[Entry], *, busy: bool) -> list[Entry] | None:
        """What to encode next beside the entries that the worker is decoding.

        Waits for it unless the worker is busy. None: there will be nothing any more.
        """
        self._rows[worker] = sum(entry.rows for entry in running)
        if busy and not self._is_for(worker):
            return []
        with self._changed:
            self._changed.wait_for(lambda: busy or self._is_for(worker) or self._closed)
            if len(self._waiting) <= SHORT or self._waiting[0].abandoned:
                self._forget_abandoned()
            if not self._waiting:
                return None if self._closed and not busy else []
            sizes = (entry.size for entry in self._waiting)
            admitted = self._scheduler.admit(sizes, (entry.size for entry in running))
            if not admitted:
                self.occupy(worker)
            taken: list[Entry] = []
            share = self._share()
            while len(taken) < admitted and (self._gathers or self._rows[worker] < share):
                taken.append(self._waiting.popleft())
                self._rows[worker] += taken[-1].rows
                self._waiting_rows -= taken[-1].rows
            return [entry for entry in taken if not entry.abandoned]

    def occupy(self, worker: int) -> None:
        """The worker has no room, or is at something longer than a step: what waits is for the
        others."""
        with self._changed:
            self._rows[worker] = max(self._rows[worker], MANY)
            self._changed.notify_all()

    def _is_for(self, worker: int) -> bool:
        """Whether it should take something of what waits."""
        most = max(self._rows.values())
        return bool(self._waiting) and (self._rows[worker] == most or not self._gathers)

    @property
    def _gathers(self) -> bool:
        """A few that wait are left to the worker that holds most, unless that is many: one step of
        some more rows takes less than two steps, and leaves a core to others."""
        most = max(self._rows.values())
        return self._waiting_rows <= FEW and self._waiting_rows + most <= MANY

    def _share(self) -> int:
        """Of all rows, waiting and running, what one worker should hold."""
        return -(-(sum(self._rows.values()) + self._waiting_rows) // len(self._rows))

    def _forget_abandoned(self) -> None:
        self._waiting = deque(entry for entry in self._waiting if not entry.abandoned)
        self._waiting_rows = sum(entry.rows for entry in self._waiting)

    def close(self) -> None:
        """Nothing more is taken in; what waits is still given out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def leave(self, worker: int) -> list[Entry]:
        """A worker has ended. After the last one nobody will take what is returned."""
        self.close()
        with self._changed:
            del self._rows[worker]
            if self._rows:
                return []
            left, self._waiting, self._waiting_rows = list(self._waiting), deque(), 0
            return left
