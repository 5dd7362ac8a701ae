"""Entries in, answers out: the workers of a bundle, and the queue that they share."""

import threading
import time
from collections.abc import Sequence
from functools import cache, partial

from service.bundle import Bundle
from service.engine.messages import Entry
from service.engine.queue import Queue
from service.engine.scheduler import Scheduler
from service.engine.worker import Worker
from service.runtime.self_check import check_parity
from service.runtime.session import Session
from service.settings import Settings
from service.tokenizer import open_target

STALLED_AFTER = 30.0  # seconds that one iteration of a worker may take


class Engine:
    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        """Opens the bundle's graphs. Raises StartupError."""
        self.session = Session(bundle, settings)
        if settings.self_check:
            check_parity(self.session, bundle)
        manifest = bundle.manifest
        plain = manifest.config.score_function == "scaled_dot_product"
        count = self.session.workers
        scheduler = Scheduler(
            settings.max_queue,
            -(-settings.max_batch_tokens // count),
            settings.max_pass_tokens,
            pass_cost=1 if plain else manifest.config.d_qk,
        )
        self._queue = Queue(scheduler, count)
        tokenizer = cache(partial(open_target, bundle))  # few requests have texts to stop at

        def text(token_ids: Sequence[int]) -> str:
            return tokenizer().decode([*token_ids])

        self._workers = [
            Worker(i, self.session, manifest, scheduler, self._queue, text) for i in range(count)
        ]
        self._threads = [
            threading.Thread(target=worker.run, name=f"{manifest.name} {i}", daemon=True)
            for i, worker in enumerate(self._workers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Takes nothing more, finishes what it has, ends the workers."""
        self._queue.close()
        for thread in self._threads:
            thread.join()

    @property
    def ready(self) -> bool:
        """Every worker lives and, if it has work, has moved lately."""
        now = time.monotonic()
        stalled = any(
            since is not None and now - since > STALLED_AFTER
            for since in (worker.busy_since for worker in self._workers)
        )
        alive = all(thread.is_alive() for thread in self._threads)
        return alive and self._queue.open and not stalled

    @property
    def rows(self) -> int:
        """Being decoded."""
        return sum(worker.rows for worker in self._workers)

    def submit(self, entries: Sequence[Entry]) -> None:
        """All are accepted and each `result` will be set, or none is.

        Raises Overloaded when the queue is full, Unavailable when a worker is gone or leaving.
        """
        self._queue.put(entries)
