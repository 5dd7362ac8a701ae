"""The HTTP process's end of an engine, which runs in a process of its own: requests and workers
then never wait for each other's interpreter lock (docs/adr/0007)."""

import asyncio
import itertools
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import structlog
from starlette.concurrency import run_in_threadpool

from service.bundle import Bundle
from service.engine.messages import (
    Answer,
    AskStatus,
    Cancel,
    Close,
    Entry,
    Open,
    Opened,
    Order,
    Status,
    Submit,
)
from service.engine.wire import Decoder, Message, encode
from service.errors import HeedError, PassFailed, StartupError, Unavailable
from service.search.protocol import BeamProgress, Progress
from service.settings import Settings

log = structlog.get_logger()
OnProgress = Callable[[int, Progress], None]  # hears of the entry at a place in its request


class EngineClient(asyncio.Protocol):
    """Starts an engine and speaks to it. All but the constructor runs on one event loop."""

    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        """Waits until the engine is open. Raises StartupError."""
        self.bundle = bundle
        self._pending: dict[int, asyncio.Future[Any]] = {}  # by the number of the question
        self._listeners: dict[int, Callable[[Progress], None]] = {}
        self._numbers = itertools.count(1)
        self._decoder = Decoder()
        self._connection, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "service.engine", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for this process, which then ends the other
            )
        opened = StartupError(f"{bundle.root}: the process that opens it has died")
        try:
            self._connection.sendall(b"".join(encode(0, Open(0, bundle, settings))))
            while isinstance(opened, StartupError) and (data := self._connection.recv(1 << 16)):
                for message in self._decoder.feed(data):
                    opened = message.load()
        except OSError:
            pass
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
        """Let the engine finish what it has accepted, and end."""
        self._closing = True
        self._order(Close())
        await self._ended
        await run_in_threadpool(self._process.wait)

    def submit(
        self, entries: Sequence[Entry], on_progress: OnProgress | None = None
    ) -> list[asyncio.Future[Answer]]:
        """Send entries to the engine, which accepts all of them or none.

        Each future gets an Answer or a HeedError: Overloaded for all if the queue is full.
        Cancelling a future frees its rows. `on_progress` hears of entries that stream. Raises
        Unavailable if the engine has ended or is closing.
        """
        asked = [(*self._expect(), entry) for entry in entries]
        self._order(Submit([(number, entry) for number, _, entry in asked]))
        for place, (number, future, entry) in enumerate(asked):
            if entry.streams and on_progress:
                self._listeners[number] = partial(on_progress, place)
            future.add_done_callback(partial(self._forget, number))
        return [future for _, future, _ in asked]

    async def status(self) -> Status:
        """Ask the engine how it is. Raises Unavailable if it has ended or is closing."""
        number, future = self._expect()
        self._order(AskStatus(number))
        return await future

    @property
    def gone(self) -> bool:
        """Whether the engine has ended. It does not come back."""
        return self._ended.done()

    def _expect(self) -> tuple[int, asyncio.Future[Any]]:
        """Return a new number, and the future that its reply will resolve."""
        if self.gone or self._closing:
            raise self._unavailable
        number = next(self._numbers)
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        return number, future

    def _order(self, order: Order) -> None:
        if not self.gone:
            self._transport.write(b"".join(encode(0, order)))

    def _forget(self, number: int, future: asyncio.Future[Answer]) -> None:
        """Stop listening to an entry that has its outcome; tell the engine if it was cancelled."""
        self._listeners.pop(number, None)
        if future.cancelled() and self._pending.pop(number, None):
            self._order(Cancel(number))

    def data_received(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            if message.is_long:
                self._load_in_thread(message)
            else:
                self._receive(message.number, message.load())

    def _load_in_thread(self, message: Message) -> None:
        if future := self._pending.pop(message.number, None):
            loading = asyncio.get_running_loop().run_in_executor(None, message.load)
            loading.add_done_callback(partial(settle_loaded, future))

    def _receive(self, number: int, content: object) -> None:
        """Pass on progress, or resolve the future of a reply."""
        if isinstance(content, (list, BeamProgress)):
            if listener := self._listeners.get(number):
                listener(cast("Progress", content))
        elif future := self._pending.pop(number, None):
            settle(future, content)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail everything that is pending: the engine has ended, as ordered or by dying."""
        if self._pending:
            log.error("engine lost", model=self.bundle.manifest.name, error=repr(exc))
        self._ended.set_result(None)
        for number in [*self._pending]:
            self._receive(number, self._unavailable)

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


def settle_loaded(future: asyncio.Future[Any], loaded: "asyncio.Future[Any]") -> None:
    error = loaded.exception()
    outcome = PassFailed(f"the answer could not be read: {error!r}") if error else loaded.result()
    settle(future, outcome)
