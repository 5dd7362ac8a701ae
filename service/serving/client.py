"""The client of an engine, in the HTTP process. The engine runs in a process of its own, so that
requests and workers never wait for each other's interpreter lock (docs/adr/0007)."""

import asyncio
import itertools
import math
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

from service.bundle.manifest import Bundle
from service.errors import Overloaded, PassFailed, StartupError, Unavailable
from service.logs import log_error
from service.search.protocol import BeamProgress, Progress
from service.settings.settings import Settings
from service.wire import (
    NO_REST,
    REPLIES,
    Answer,
    AskStatus,
    Cancel,
    Close,
    Entry,
    FrameDecoder,
    Message,
    Open,
    Opened,
    Order,
    Reply,
    Rest,
    Status,
    Submit,
    encode_message,
)

CLOSING_SHARE = 0.1  # of settings.shutdown_timeout, in which an engine finishes accepted entries
EXIT_TIMEOUT = 1.0  # seconds for a process to exit after its connection has ended
MOST_UNSENT = 16 << 20  # bytes of orders that an engine has not read
ANSWERS_PER_TURN = 8  # answers passed on in one turn of the event loop
OnProgress = Callable[[int, Progress], None]  # called with the entry's index and its progress


def run_module(name: str) -> list[str]:
    """Return a command that runs a module as this process would import it: a user's own model.py in
    the present folder hides ours only if it does so here."""
    searched = "" in sys.path or os.getcwd() in sys.path
    return [sys.executable, *([] if searched else ["-P"]), "-m", name]


class EngineClient(asyncio.Protocol):
    """Starts an engine, speaks to it and ends it, all on one event loop."""

    opened: Opened  # how the bundle was opened, once start() has returned

    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        self.bundle = bundle
        self.process: Process | None = None
        self.ended = asyncio.Event()  # another engine has another client
        self.heard = 0.0  # when the engine last sent anything, by time.monotonic
        self.close_timeout = CLOSING_SHARE * settings.shutdown_timeout  # seconds
        self._settings = settings
        self._pending: dict[int, asyncio.Future[Any]] = {}  # of replies, by their number
        self._listeners: dict[int, Callable[[Progress], None]] = {}
        self._numbers = itertools.count(1)
        self._decoder = FrameDecoder()
        self._received = deque[Message | Reply]()  # not handled yet
        self._is_open = self._closing = False

    async def start(self) -> None:
        """Start the process and wait until it has opened the bundle. Raise StartupError, also
        after settings.opening_timeout seconds.

        Call close() afterwards, even if this raises or is cancelled: it ends the process.
        """
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        await loop.create_unix_connection(lambda: self, sock=ours)
        command = [*run_module("service.engine"), str(theirs.fileno())]
        with theirs:
            self.process = await asyncio.create_subprocess_exec(
                *command,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C reaches only this process, which ends the engine
            )
        try:
            number, opening = self._expect()
            self._order(Open(number, self.bundle, self._settings))
            async with asyncio.timeout(self._settings.opening_timeout):
                self.opened = await opening
        except TimeoutError:
            raise StartupError(
                f"{self.bundle.root} was not open after {self._settings.opening_timeout:g} seconds:"
                " if its files are intact, raise HEED_OPENING_TIMEOUT"
            ) from None
        except Unavailable:
            code = await self._exit_code()
            if code == -signal.SIGXCPU:
                raise StartupError(
                    f"{self.bundle.root} takes much more CPU time to open than an intact bundle of"
                    " its size: export the bundle again, use a faster CPU, or raise ulimit -t"
                ) from None
            raise StartupError(
                f"{self.bundle.root}: the engine process died while it opened this bundle (exit"
                f" code {code}): copy or export the bundle again, or free some memory"
            ) from None
        self._is_open = True

    async def close(self) -> None:
        """End the process once it has finished accepted entries, or after `close_timeout` seconds.

        Entries still pending fail with Unavailable. A process that is still opening its bundle is
        killed at once.
        """
        again, self._closing = self._closing, True
        if self.process is None:
            return
        try:
            if self._is_open:
                if not again:
                    self._order(Close())
                async with asyncio.timeout(self.close_timeout):
                    await self.ended.wait()
                    await self.process.wait()
        except TimeoutError:
            name, pending = self.bundle.manifest.name, len(self._pending)
            log_error("engine killed", model=name, timeout=self.close_timeout, pending=pending)
        finally:
            self.kill()  # it ignores SIGTERM
            self._transport.abort()
        await self.process.wait()
        await self.ended.wait()

    def kill(self) -> None:
        """End the process at once. Everything that is pending fails with Unavailable."""
        if self.process and self.process.returncode is None:
            self.process.kill()

    def submit(
        self,
        entries: Sequence[Entry],
        on_progress: OnProgress | None = None,
        seconds: float = math.inf,
        request_id: str = "",
        rest: Rest = NO_REST,
    ) -> list[asyncio.Future[Answer]]:
        """Send the entries of a request to the engine, which accepts all of them or none. `rest`
        is what the request sends besides.

        Each future gets an Answer or a HeedError: Overloaded for all if the request has fewer
        `seconds` than it would wait. Cancelling a future frees its rows. `on_progress` is called
        for entries that stream. Raise Unavailable if the engine has ended or is closing, Overloaded
        if it reads no more orders.
        """
        if not self.ended.is_set() and self._transport.get_write_buffer_size() > MOST_UNSENT:
            raise Overloaded(
                f"{MOST_UNSENT >> 20} MiB of requests wait for the engine, which is the limit:"
                " try again later"
            )
        numbered: list[tuple[int, Entry]] = []
        futures: list[asyncio.Future[Answer]] = []
        for place, entry in enumerate(entries):
            number, future = self._expect()
            if entry.streams and on_progress:
                self._listeners[number] = partial(on_progress, place)
            future.add_done_callback(partial(self._forget, number))
            numbered.append((number, entry))
            futures.append(future)
        self._order(Submit(numbered, request_id, time.monotonic(), seconds, rest))
        return futures

    async def status(self) -> Status:
        """Ask the engine for its status. Raise Unavailable if it has ended or is closing."""
        number, future = self._expect()
        self._order(AskStatus(number))
        try:
            return await future
        finally:
            self._pending.pop(number, None)  # nobody waits for it any more

    def _expect(self) -> tuple[int, asyncio.Future[Any]]:
        """Return a new number, and the future that its reply will resolve."""
        if self.ended.is_set() or self._closing:
            raise self._unavailable
        number = next(self._numbers)
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        return number, future

    def _order(self, order: Order) -> None:
        if not self.ended.is_set():
            self._transport.write(b"".join(encode_message(0, order)))

    def _forget(self, number: int, future: asyncio.Future[Answer]) -> None:
        """Stop listening to an entry that has its outcome; inform the engine of a cancellation."""
        self._listeners.pop(number, None)
        if future.cancelled() and self._pending.pop(number, None):
            self._order(Cancel(number))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Handle the messages that `data` completes, in turns of the event loop.

        Each answer makes work for its request: new connections and probes wait for a few of them,
        not for all rows of a batch.
        """
        self.heard = time.monotonic()
        waiting = bool(self._received)
        self._received.extend(self._decoder.feed(data))
        if not waiting:
            self._handle(ANSWERS_PER_TURN)

    def _handle(self, most: float) -> None:
        """Handle messages until `most` answers have been passed on. The others get their turn even
        if one fails."""
        left = most
        try:
            while self._received and left > 0:
                match self._received.popleft():
                    case Message() as message if message.is_long:  # it is an answer
                        self._load_in_thread(message)
                        left -= 1
                    case Message() as message:
                        self._received.extendleft(reversed(self._load(message)))
                    case number, content:
                        left -= self._receive(number, content)
        finally:
            if self._received:
                asyncio.get_running_loop().call_soon(self._handle, most)

    def _load(self, message: Message) -> list[Reply]:
        """Return the replies of a short message."""
        if message.number != REPLIES:
            return [(message.number, load_message(message))]
        try:
            return message.load()
        except MemoryError:
            self._transport.abort()  # those that wait for one of them hear of it
            return []

    def _load_in_thread(self, message: Message) -> None:
        future = self._pending.pop(message.number, None)
        if future is None:  # it was cancelled
            return
        try:
            loading = asyncio.get_running_loop().run_in_executor(None, load_message, message)
            loading.add_done_callback(
                lambda loaded: settle(future, loaded.exception() or loaded.result())
            )
        except RuntimeError:  # no thread can be started now
            settle(future, load_message(message))

    def _receive(self, number: int, content: object) -> bool:
        """Pass on progress, or resolve the future of a reply; return whether it was a reply."""
        if isinstance(content, (list, BeamProgress)):
            if listener := self._listeners.get(number):
                listener(cast("Progress", content))
            return False
        if future := self._pending.pop(number, None):
            settle(future, content)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail everything that is pending: the engine has ended, whether told to or by a crash."""
        del exc
        self._handle(math.inf)
        self.ended.set()
        pending = [*self._pending]
        for number in pending:
            self._receive(number, self._unavailable)
        if self._is_open and not self._closing:
            self._reporting = asyncio.create_task(self._report_death(len(pending)))

    async def _report_death(self, pending: int) -> None:
        """Log that the engine ended unasked, with its exit code if known within EXIT_TIMEOUT."""
        code, name = await self._exit_code(), self.bundle.manifest.name
        log_error("engine died", model=name, exit_code=code, pending=pending)

    async def _exit_code(self) -> int | None:
        """Return the exit code of an engine that has ended, or minus the signal that ended it."""
        assert self.process is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_TIMEOUT):
                await self.process.wait()
        return self.process.returncode

    @property
    def _unavailable(self) -> Unavailable:
        why = (
            "is being closed, because the service stops, or the model was reloaded or unloaded:"
            " send the request again"
            if self._closing
            else "has lost its engine, and another one is being started; try again later"
        )
        return Unavailable(f"model {self.bundle.manifest.name} {why}")


def settle(future: asyncio.Future[Any], outcome: object) -> None:
    """Resolve a future with a reply, which may be an error."""
    if future.done():  # it was cancelled
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def load_message(message: Message) -> object:
    """Unpickle a message. Return PassFailed if there is no memory for it."""
    try:
        return message.load()
    except MemoryError:
        return PassFailed(
            "the answer needs more memory than is available: send fewer or shorter sources, or"
            " select less attention"
        )
