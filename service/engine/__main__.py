"""Run an engine: python -m service.engine FD, the socket whose other end EngineClient holds."""

import os
import pickle
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import NamedTuple

from service.memory import SHORTAGES, exit_if_short

try:
    from service.engine.engine import Engine
    from service.engine.opening import open_engine
    from service.engine.scheduler import Job
    from service.errors import HeedError, PassFailed, StartupError
    from service.logs import configure_logs, flush_logs, log_error
    from service.memory import collect_rarely, trim_heaps_regularly
    from service.search.protocol import Progress, progress_size
    from service.wire import (
        Answer,
        AskStatus,
        Cancel,
        Close,
        FrameDecoder,
        Open,
        Order,
        Submit,
        encode_message,
        encode_replies,
    )
except SHORTAGES as error:
    exit_if_short(error)

RECEIVE = 1 << 16  # bytes
MOST_NUMBERS = 1 << 12  # in replies that share a frame: less than 128 KB
CANNOT_PICKLE = (pickle.PicklingError, TypeError, AttributeError, RecursionError, MemoryError)


class FairLock:
    """A lock that threads get in the order in which they ask for it.

    With a plain lock, the thread that sends a long message would get it again and again: it asks
    for the lock for its next frame before the threads with short messages wake up.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: deque[object] = deque()  # the thread that has the lock, then those that wait

    def __enter__(self) -> None:
        place = object()
        with self._changed:
            self._line.append(place)
            self._changed.wait_for(lambda: self._line[0] is place)

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._line.popleft()
            self._changed.notify_all()


class Collected(NamedTuple):
    """A reply that waits for others to be sent along with it."""

    message: tuple[int, object, str]  # its number, its content and, for the log, the request's id
    size: int  # count of numbers in it


class EngineServer:
    """Opens an engine, passes orders to it and sends its answers, frame by frame."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = FairLock()  # held while one frame is sent
        self._jobs: dict[int, Job] = {}  # unfinished ones, by the client's number
        self._collected = deque[Collected]()

    def run(self) -> None:
        """Obey orders until the connection is closed, by either end."""
        orders = self._orders()
        first = next(orders, None)
        if isinstance(first, Open):
            configure_logs(first.settings.log_format)
            if engine := self._open(first):
                self._obey(engine, orders)

    def _orders(self) -> Iterator[Order]:
        decoder = FrameDecoder()
        with suppress(ConnectionError):
            while data := self._connection.recv(RECEIVE):
                for message in decoder.feed(data):
                    yield message.load()

    def _open(self, order: Open) -> Engine | None:
        """Open the bundle and send the outcome."""
        try:
            engine = open_engine(order.bundle, order.settings)
        except StartupError as error:
            self.send(order.number, error)
            return None
        engine.start(self.send_collected)
        collect_rarely()
        trim_heaps_regularly()
        self.send(order.number, engine.opened)
        return engine

    def _obey(self, engine: Engine, orders: Iterator[Order]) -> None:
        for order in orders:
            match order:
                case Submit():
                    self._submit(engine, order)
                case Cancel(number) if job := self._jobs.get(number):
                    job.result.cancel()
                case AskStatus(number):
                    self.send(number, engine.status)
                case Close():
                    engine.queue.close()  # before the next order, which may be a request
                    # in a thread, so that orders to cancel are still obeyed
                    threading.Thread(target=self._close, args=(engine,), daemon=True).start()
                case _:  # an order to cancel an entry that already has its outcome
                    pass

    def _submit(self, engine: Engine, order: Submit) -> None:
        jobs = {
            number: Job(entry, order.request_id, order.arrived, partial(self._report, number))
            for number, entry in order.entries
        }
        try:
            engine.queue.put([*jobs.values()], order.seconds, order.rest)
        except HeedError as refusal:
            told = [Collected((number, refusal, order.request_id), 0) for number in jobs]
            self._collected.extend(told)
            self.send_collected()
            return
        self._jobs |= jobs
        for number, job in jobs.items():
            job.result.add_done_callback(partial(self._answer, number))
        self.send_collected()  # of jobs that a worker has already finished, maybe in its last pass

    def _report(self, number: int, progress: Progress) -> None:
        self._collected.append(Collected((number, progress, ""), progress_size(progress)))

    def _answer(self, number: int, result: Future[Answer]) -> None:
        """Collect the outcome of a job, or send a long one; a job that was cancelled gets none."""
        job = self._jobs.pop(number)
        if result.cancelled():
            return
        outcome = result.exception() or result.result()
        size = outcome.size if isinstance(outcome, Answer) else 0
        if size <= MOST_NUMBERS:
            self._collected.append(Collected((number, outcome, job.request_id), size))
        else:
            self.send_collected()  # the job's progress comes first
            self.send(number, outcome, job.request_id)

    def _close(self, engine: Engine) -> None:
        engine.close()
        self._connection.shutdown(socket.SHUT_RDWR)

    def send_collected(self) -> None:
        """Send what the threads of all workers have collected, many replies in one frame. A worker
        calls this after each pass."""
        while self._collected:
            with self._sending:  # before they are taken, so that those of a job keep their order
                if replies := self._take():
                    self._write(self._encode_together(replies))

    def _encode_together(self, replies: Sequence[Collected]) -> bytes:
        """Return one frame or, if one of the replies cannot be pickled, a frame for each."""
        try:
            return encode_replies([each.message[:2] for each in replies])
        except CANNOT_PICKLE:
            return b"".join(chain.from_iterable(self._encode(*each.message) for each in replies))

    def _take(self) -> list[Collected]:
        """Remove and return the first replies; none if another thread has taken them."""
        taken: list[Collected] = []
        numbers = 0
        while self._collected and numbers < MOST_NUMBERS:
            taken.append(self._collected.popleft())
            numbers += taken[-1].size
        return taken

    def send(self, number: int, message: object, request_id: str = "") -> None:
        """Send a message, or PassFailed if the message cannot be pickled."""
        for frame in self._encode(number, message, request_id):
            with self._sending:
                self._write(frame)

    def _encode(self, number: int, message: object, request_id: str) -> Iterator[bytes]:
        """Return the frames of a message, or of PassFailed if it cannot be pickled."""
        try:
            return encode_message(number, message)
        except CANNOT_PICKLE as error:
            log_error("answer not sent", request_id=request_id, exc_info=error)
            failure = PassFailed(
                f"the engine could not send the answer ({type(error).__name__}): send the request"
                " again, with fewer sources if it fails again"
            )
            return encode_message(number, failure)

    def _write(self, frame: bytes) -> None:
        """Send a frame. Ends the process if it cannot be sent whole: the connection is then
        useless."""
        try:
            self._connection.sendall(frame)
        except (OSError, MemoryError):
            os._exit(1)


def end_process(failure: threading.ExceptHookArgs) -> None:
    """End the engine process because one of its threads has died: it cannot replace the thread.
    The client notices the end and fails its pending entries; the supervisor starts another."""
    try:
        log_error(
            "thread died", thread=failure.thread and failure.thread.name, exc_info=failure[:3]
        )
        flush_logs()
    finally:
        os._exit(1)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # both may reach every process of a service
        signal.signal(number, signal.SIG_IGN)  # the client finishes first, then ends this process
    threading.excepthook = end_process
    try:
        EngineServer(socket.socket(fileno=int(sys.argv[1]))).run()
    except SHORTAGES as error:
        exit_if_short(error)
    flush_logs()
    os._exit(0)  # an ordinary exit would abort in ONNX Runtime if the client left without closing


if __name__ == "__main__":
    main()
