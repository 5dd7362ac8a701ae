"""The engine of one bundle: its workers, and the queue that they share."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import get_args

from service.bundle.manifest import Bundle, GraphName
from service.engine.queue import Queue
from service.engine.scheduler import MAX_LOGITS_BYTES, Scheduler
from service.engine.worker import Worker
from service.memory import trim_heaps
from service.runtime.self_check import check_parity
from service.runtime.session import Session
from service.search.protocol import Detokenize
from service.settings.settings import Settings
from service.text.opening import open_target
from service.text.tokenizer import write_text
from service.wire import Opened, Status, Steps

CPU_PASS, GPU_PASS = 1024, 4096  # positions
STALLED_AFTER = 30.0  # seconds that one iteration of a worker may take


class Engine:
    """Takes jobs from `queue` and computes their results on the threads of its workers."""

    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        """Open the graphs of a bundle. Raise StartupError."""
        self.session = Session(bundle, settings)
        if settings.self_check:
            check_parity(self.session, bundle)
        trim_heaps()  # opening takes more memory than serving
        self._manifest = manifest = bundle.manifest
        count = self.session.workers
        scheduler = scheduler_of(bundle, settings, self.session)
        self.queue = Queue(scheduler, count)
        detokenize = detokenizer(bundle)
        self._workers = [
            Worker(i, self.session, manifest, scheduler, self.queue, detokenize)
            for i in range(count)
        ]
        self._threads = [
            threading.Thread(target=worker.run, name=f"{manifest.name} {i}", daemon=True)
            for i, worker in enumerate(self._workers)
        ]

    def start(self, after_pass: Callable[[], None] = lambda: None) -> None:
        """Start the workers. Each calls `after_pass` when it has reported progress and answers."""
        for worker, thread in zip(self._workers, self._threads, strict=True):
            worker.after_pass = after_pass
            thread.start()

    def close(self) -> None:
        """Accept no more jobs, finish the accepted ones and end the workers."""
        self.queue.close()
        for thread in self._threads:
            thread.join()

    @property
    def opened(self) -> Opened:
        """How the bundle was opened."""
        session = self.session
        graphs = frozenset[GraphName](
            each for each in get_args(GraphName) if session.supports(each)
        )
        codes = {tuple(ids): code for code, ids in self._manifest.languages.target.items()}
        lists = {codes[ids]: len(each.tokens) for ids, each in session.target_lists.items()}
        return Opened(session.precision, session.provider, session.workers, graphs, lists)

    @property
    def status(self) -> Status:
        """Ready: the queue is open, every worker lives, and no iteration exceeds STALLED_AFTER."""
        now = time.monotonic()
        stalled = any(
            since is not None and now - since > STALLED_AFTER
            for since in (worker.busy_since for worker in self._workers)
        )
        alive = all(thread.is_alive() for thread in self._threads)
        ready = alive and self.queue.open and not stalled
        rows = sum(worker.rows for worker in self._workers)
        steps = sum((worker.steps for worker in self._workers), Steps())
        return Status(ready, rows, self.queue.rows, steps)


def scheduler_of(bundle: Bundle, settings: Settings, session: Session) -> Scheduler:
    """Return the scheduler of the workers. Each has an equal share of the budgets for decoding and
    logits, but may use max_pass_tokens whole."""
    config, workers = bundle.manifest.config, session.workers
    plain = config.score_function == "scaled_dot_product"
    return Scheduler(
        -(-settings.max_batch_tokens // workers),
        settings.max_pass_tokens or (CPU_PASS if session.on_cpu else GPU_PASS),
        MAX_LOGITS_BYTES // workers,
        config.target_vocab_size,
        pass_cost=1 if plain else config.d_qk,
    )


def detokenizer(bundle: Bundle) -> Detokenize:
    """Return a function from ids to text that opens the tokenizer on first use: few requests have
    stop texts."""
    tokenizer = cache(partial(open_target, bundle))

    def detokenize(token_ids: Sequence[int]) -> str:
        return write_text(lambda: tokenizer().decode([*token_ids]))

    return detokenize
