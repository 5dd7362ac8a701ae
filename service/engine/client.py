"""An engine in a process of its own: requests and workers wait for no interpreter lock of each
other's (docs/adr/0007).

The two ends speak pickle over a pair of sockets that nobody else holds. To the engine go orders,
("submit", [(number, Entry)]), ("cancel", number), ("status", number) and ("close", None); back come
progress and outcomes, each in frames with the number that it is about.
"""

import asyncio
import itertools
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import structlog
from starlette.concurrency import run_in_threadpool

from service.bundle import Bundle
from service.engine.messages import Answer, Entry, Opened, Status
from service.engine.wire import HEADER
from service.errors import HeedError, PassFailed, StartupError, Unavailable
from service.search.protocol import BeamProgress, Progress
from service.settings import Settings

log = structlog.get_logger()


class EngineClient(asyncio.Protocol):
    """The end of those who ask. All but the constructor runs on one event loop."""

    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        """Waits until the engine is open. Raises StartupError."""
        self.bundle = bundle
        self._pending: dict[int, asyncio.Future[Any]] = {}  # by the number of what was asked
        self._listeners: dict[int, Callable[[Progress], None]] = {}
        self._numbers = itertools.count()
        self._received = bytearray()
        self._parts: dict[int, list[bytes]] = {}  # of messages that have not ended
        self._connection, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "service.engine", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for this process, which then ends the other
            )
        try:
            self._connection.sendall(pickle.dumps((bundle, settings)))
            with self._connection.makefile("rb") as incoming:
                length, _, _ = HEADER.unpack(incoming.read(HEADER.size))
                opened = pickle.loads(incoming.read(length))
        except (OSError, struct.error):
            opened = StartupError(f"{bundle.root}: the process that opens it has died")
        if isinstance(opened, StartupError):
            self._connection.close()
            self._process.wait()
            raise opened
        self.opened: Opened = opened
        self._closing = False

    async def start(self) -> None:
        self._ended = asyncio.get_running_loop().create_future()
        connecting = asyncio.get_running_loop().create_unix_connection
        self._transport, _ = await connecting(lambda: self, sock=self._connection)

    async def close(self) -> None:
        """It takes nothing more, answers what it has, and ends."""
        self._closing = True
        self._order("close", None)
        await self._ended
        await run_in_threadpool(self._process.wait)

    def submit(
        self, entries: Sequence[Entry], tell: Callable[[int, Progress], None] | None = None
    ) -> list[asyncio.Future[Answer]]:
        """All are accepted or none is; each gets an outcome, Overloaded where the queue is full.
        To cancel one frees its rows. `tell` hears of the progress of those that stream, by their
        places. Raises Unavailable if the engine is gone."""
        asked = [(*self._expect(), entry) for entry in entries]
        self._order("submit", [(number, entry) for number, _, entry in asked])
        for place, (number, future, entry) in enumerate(asked):
            if entry.streams and tell:
                self._listeners[number] = partial(tell, place)
            future.add_done_callback(partial(self._forget, number))
        return [future for _, future, _ in asked]

    async def status(self) -> Status:
        """Raises Unavailable if the engine is gone."""
        number, future = self._expect()
        self._order("status", number)
        return await future

    @property
    def gone(self) -> bool:
        """It has died, and does not come back."""
        return self._ended.done()

    def _expect(self) -> tuple[int, asyncio.Future[Any]]:
        if self.gone or self._closing:
            raise self._unavailable
        number = next(self._numbers)
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        return number, future

    def _order(self, order: str, about: object) -> None:
        if not self.gone:
            self._transport.write(pickle.dumps((order, about), pickle.HIGHEST_PROTOCOL))

    def _forget(self, number: int, future: asyncio.Future[Answer]) -> None:
        self._listeners.pop(number, None)
        if future.cancelled() and self._pending.pop(number, None):
            self._order("cancel", number)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= HEADER.size:
            length, more, number = HEADER.unpack_from(self._received)
            end = HEADER.size + length
            if len(self._received) < end:
                return
            content = bytes(memoryview(self._received)[HEADER.size : end])
            del self._received[:end]
            if more:
                self._parts.setdefault(number, []).append(content)
            elif parts := self._parts.pop(number, None):
                self._load(number, [*parts, content])
            else:
                self._resolve(number, pickle.loads(content))

    def _load(self, number: int, parts: list[bytes]) -> None:
        """Off the event loop."""
        if future := self._pending.pop(number, None):
            loop = asyncio.get_running_loop()
            loading = loop.run_in_executor(None, lambda: pickle.loads(b"".join(parts)))
            loading.add_done_callback(partial(settle_later, future))

    def _resolve(self, number: int, outcome: object) -> None:
        if isinstance(outcome, (list, BeamProgress)):
            if listener := self._listeners.get(number):
                listener(cast("Progress", outcome))
            return
        if future := self._pending.pop(number, None):
            settle(future, outcome)

    def connection_lost(self, exc: Exception | None) -> None:
        """The engine has ended: because it was told to, or it has died."""
        if self._pending:
            log.error("engine lost", model=self.bundle.manifest.name, error=repr(exc))
        self._ended.set_result(None)
        for number in [*self._pending]:
            self._resolve(number, self._unavailable)

    @property
    def _unavailable(self) -> Unavailable:
        why = "takes no requests now" if self._closing else "has lost its engine"
        return Unavailable(f"model {self.bundle.manifest.name} {why}")


def settle(future: asyncio.Future[Any], outcome: object) -> None:
    if future.done():  # it was cancelled
        return
    if isinstance(outcome, HeedError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def settle_later(future: asyncio.Future[Any], loaded: "asyncio.Future[Any]") -> None:
    error = loaded.exception()
    outcome = PassFailed(f"the answer could not be read: {error!r}") if error else loaded.result()
    settle(future, outcome)
