"""python -m service.engine SOCKET: an engine, at the other end of service/engine/client.py."""

import gc
import os
import pickle
import socket
import sys
import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, get_args

from service.bundle import GraphName
from service.engine.engine import Engine
from service.engine.messages import Answer, Entry, Opened, Status
from service.engine.wire import FRAME, HEADER
from service.errors import HeedError, StartupError
from service.logs import configure_logs
from service.search.protocol import Progress


class Child:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._turns = threading.Condition()
        self._line: deque[object] = deque()  # those who send or wait to, one a frame
        self._entries: dict[int, Entry] = {}  # by the number that the other end gave them

    def run(self) -> None:
        """Until it is told to close, or the other end is gone."""
        orders = self._connection.makefile("rb")
        bundle, settings = pickle.load(orders)
        try:
            engine = Engine(bundle, settings)
        except StartupError as error:
            return self._send(0, error)
        session = engine.session
        graphs = frozenset[GraphName](
            graph for graph in get_args(GraphName) if session.supports(graph)
        )
        engine.start()
        gc.collect()
        gc.freeze()  # what is here now stays: looking at it again would stop all threads for long
        self._send(0, Opened(session.precision, session.provider, graphs))
        with suppress(EOFError, ConnectionError):
            while True:
                self._obey(engine, *pickle.load(orders))

    def _obey(self, engine: Engine, order: str, about: Any) -> None:
        if order == "submit":
            self._submit(engine, about)
        elif order == "status":
            self._send(about, Status(engine.ready, engine.rows))
        elif order == "close":
            threading.Thread(target=self._close, args=(engine,), daemon=True).start()
        elif entry := self._entries.get(about):
            entry.result.cancel()

    def _submit(self, engine: Engine, numbered: list[tuple[int, Entry]]) -> None:
        self._entries.update(numbered)
        for number, entry in numbered:
            entry.tell = partial(self._tell, number)
            entry.result.add_done_callback(partial(self._answer, number))
        entries = [entry for _, entry in numbered]
        try:
            engine.submit(entries)
        except HeedError as refusal:
            for entry in entries:
                entry.finish(refusal)

    def _tell(self, number: int, progress: Progress) -> None:
        self._send(number, progress)

    def _answer(self, number: int, result: Future[Answer]) -> None:
        del self._entries[number]
        if not result.cancelled():
            self._send(number, result.exception() or result.result())

    def _close(self, engine: Engine) -> None:
        """While it finishes, orders to cancel are still obeyed."""
        engine.close()
        self._connection.shutdown(socket.SHUT_RDWR)

    def _send(self, number: int, message: object) -> None:
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        for start in range(0, len(content), FRAME):
            part = content[start : start + FRAME]
            header = HEADER.pack(len(part), start + FRAME < len(content), number)
            with self._turn():
                try:
                    self._connection.sendall(header + part)
                except OSError:
                    os._exit(1)  # nobody hears it any more

    @contextmanager
    def _turn(self) -> Generator[None]:
        """One at a time, in the order in which they came: a lock would go again and again to the
        sender of a long message, who asks for the next frame before others are awake."""
        me = object()
        with self._turns:
            self._line.append(me)
            self._turns.wait_for(lambda: self._line[0] is me)
        try:
            yield
        finally:
            with self._turns:
                self._line.popleft()
                self._turns.notify_all()


if __name__ == "__main__":
    configure_logs()
    Child(socket.socket(fileno=int(sys.argv[1]))).run()
