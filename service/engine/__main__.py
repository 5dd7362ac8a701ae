"""python -m service.engine SOCKET: an engine, at the other end of service/engine/client.py."""

import gc
import os
import pickle
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import get_args

from service.bundle import GraphName
from service.engine.engine import Engine
from service.engine.messages import (
    Answer,
    AskStatus,
    Cancel,
    Close,
    Entry,
    Open,
    Opened,
    Order,
    Submit,
)
from service.engine.wire import FrameDecoder, encode_message
from service.errors import HeedError, PassFailed, StartupError
from service.logs import configure_logs, log_error

RECEIVE = 1 << 16  # bytes
CANNOT_PICKLE = (pickle.PicklingError, TypeError, AttributeError, RecursionError, MemoryError)


class FairLock:
    """A lock that threads get in the order in which they ask.

    A plain lock would go to the sender of a long message again and again: it asks for its next
    frame before the threads that wait to send short messages are awake.
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


class EngineServer:
    """Opens an engine, passes orders to it and sends its answers, frame by frame."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = FairLock()  # for one frame at a time
        self._entries: dict[int, Entry] = {}  # without an outcome yet, by the client's number

    def run(self) -> None:
        """Obey orders until the connection is closed, by either end."""
        orders = self._orders()
        first = next(orders, None)
        if isinstance(first, Open) and (engine := self._open(first)):
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
            engine = Engine(order.bundle, order.settings)
        except StartupError as error:
            self._send(order.number, error)
            return None
        session = engine.session
        graphs = frozenset[GraphName](
            graph for graph in get_args(GraphName) if session.supports(graph)
        )
        engine.start()
        gc.collect()
        gc.freeze()  # these objects stay: scanning them again would stop all threads for long
        self._send(order.number, Opened(session.precision, session.provider, graphs))
        return engine

    def _obey(self, engine: Engine, orders: Iterator[Order]) -> None:
        for order in orders:
            match order:
                case Submit(entries):
                    self._submit(engine, entries)
                case Cancel(number) if entry := self._entries.get(number):
                    entry.result.cancel()
                case AskStatus(number):
                    self._send(number, engine.status)
                case Close():  # in a thread, so that orders to cancel are still obeyed
                    threading.Thread(target=self._close, args=(engine,), daemon=True).start()
                case _:  # an order to cancel what has its outcome already
                    pass

    def _submit(self, engine: Engine, numbered: list[tuple[int, Entry]]) -> None:
        self._entries.update(numbered)
        for number, entry in numbered:
            entry.on_progress = partial(self._send, number)
            entry.result.add_done_callback(partial(self._answer, number))
        entries = [entry for _, entry in numbered]
        try:
            engine.queue.put(entries)
        except HeedError as refusal:
            for entry in entries:
                entry.finish(refusal)

    def _answer(self, number: int, result: Future[Answer]) -> None:
        """Send the outcome of an entry; one that was cancelled gets none."""
        self._entries.pop(number, None)
        if not result.cancelled():
            self._send(number, result.exception() or result.result())

    def _close(self, engine: Engine) -> None:
        engine.close()
        self._connection.shutdown(socket.SHUT_RDWR)

    def _send(self, number: int, message: object) -> None:
        """Send a message; PassFailed in its place if it cannot be pickled.

        Ends the process if the message could not be sent whole: nobody hears the engine any more.
        """
        try:
            frames = encode_message(number, message)
        except CANNOT_PICKLE as error:
            log_error("answer not sent", exc_info=error)
            failure = PassFailed(f"the answer could not be sent: {type(error).__name__}")
            frames = encode_message(number, failure)
        try:
            for frame in frames:
                with self._sending:
                    self._connection.sendall(frame)
        except (OSError, MemoryError):
            os._exit(1)


def end_process(failure: threading.ExceptHookArgs) -> None:
    """End the engine because one of its threads has died: the client then knows, fails what it
    waits for, and says so in /livez. An engine that lives on would never be whole again."""
    try:
        threading.__excepthook__(failure)  # print the traceback
    finally:
        os._exit(1)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # both may go to all processes of a service
        signal.signal(number, signal.SIG_IGN)  # the client finishes, and then ends this one
    configure_logs()
    threading.excepthook = end_process
    EngineServer(socket.socket(fileno=int(sys.argv[1]))).run()
    os._exit(0)  # an ordinary exit would abort in ONNX Runtime if the client left without closing


if __name__ == "__main__":
    main()
