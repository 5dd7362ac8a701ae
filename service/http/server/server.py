"""Uvicorn with a limit on connections and one deadline for its end."""

import asyncio
import errno
import faulthandler
import os
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from service.errors import StartupError
from service.http.server.protocol import Connections, Protocol
from service.http.server.refusals import Refusals
from service.settings.settings import Settings

MOST_CONNECTIONS = 4096
EVERY_INTERFACE = ("0.0.0.0", "::")
MOST_AT_ONCE = 256  # connections accepted before those that are open have their turn
STANDARD_ERROR = 2  # sys.stderr is None if it was closed at the start
OTHER_FILES = 64  # open files that are not connections: logs, engines, libraries
# Shares of shutdown_timeout after which the engines give up what they compute, and after which
# clients that still send or have not read their answers are dropped. Engines end within
# CLOSING_SHARE (service.serving.client), and the process within the rest.
GIVE_UP, DROP = 0.7, 0.8


class Listener(socket.socket):
    """A listening socket that accepts no more connections than `limits` allow.

    When they are reached, the oldest connection without a complete request gives way to the new
    one. If there is none, new ones wait for a second.

    Under overload, connections whose requests are refused are closed here. After MOST_AT_ONCE new
    connections, those that are open already have their turn.
    """

    limits: Connections
    _pausing = False

    def __init__(self, file: int) -> None:
        super().__init__(fileno=file)
        self._accepted = 0  # in this turn of the event loop

    def accept(self) -> tuple[socket.socket, Any]:
        """Raise BlockingIOError to be called again soon, OSError to be called again in a second.
        asyncio logs the second, and calls again once more before it waits."""
        try:
            while not self._pausing and self._accepted < MOST_AT_ONCE:
                accepted = self._accept_within_limit()
                self._accepted += 1
                refusals = self.limits.refusals
                if not (refusals.admission.crowded and refusals.turn_away(accepted[0])):
                    self.limits.open += 1
                    self.limits.coming += 1
                    return accepted
        except OSError as error:
            self._accepted = 0
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            if self.limits.coming or self.limits.make_room():
                raise BlockingIOError from error
            self._pausing = True
            raise
        self._pausing, self._accepted = False, 0
        raise BlockingIOError

    def _accept_within_limit(self) -> tuple[socket.socket, Any]:
        if self.limits.open >= self.limits.most:
            raise OSError(errno.EMFILE, f"{self.limits.most} connections wait for answers")
        return super().accept()


async def bind(settings: Settings) -> list[Listener]:
    """Return a socket for each address of the host, which does not listen yet. Raise StartupError
    if an address cannot be bound: uvicorn would try only after the models are open."""
    host, port = settings.host, settings.port
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    except OSError as error:
        raise cannot_listen(settings, error) from error
    except UnicodeError as error:  # a label of more than 63 characters
        raise StartupError(f"{host} is not a host name: change HEED_HOST") from error
    limits = Connections(most_connections(), settings.idle_timeout, settings.timeout)
    listeners = [Listener(os.dup(each.fileno())) for each in server.sockets]
    for listener in listeners:
        listener.limits = limits
    server.close()
    return listeners


def cannot_listen(settings: Settings, error: OSError) -> StartupError:
    if error.errno == errno.EADDRINUSE:
        detail = "is taken: choose another one with --port or HEED_PORT"
    else:
        reason = error.strerror or error
        detail = f"cannot be used ({reason}): change --host or --port, HEED_HOST or HEED_PORT"
    return StartupError(f"port {settings.port} of {settings.host} {detail}")


def most_connections() -> int:
    """Return how many connections may be open, MOST_CONNECTIONS or as many as this process may open
    files for. Its soft limit is raised, up to the hard one."""
    wanted = MOST_CONNECTIONS + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(1, min(MOST_CONNECTIONS, soft - OTHER_FILES))


def address_of(settings: Settings, port: int) -> str:
    """Return the address of the page, as a browser on this machine opens it."""
    host = "localhost" if settings.host in EVERY_INTERFACE else settings.host
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{settings.root_path}/"


class Server(uvicorn.Server):
    """Serves until a signal arrives, and ends within settings.shutdown_timeout seconds of it.

    `on_started` is called with the address of the page, `give_up` when requests in progress must
    end soon.
    """

    def __init__(
        self,
        app: FastAPI,
        settings: Settings,
        listeners: list[Listener],
        on_started: Callable[[str], None],
        give_up: Callable[[], None],
    ) -> None:
        config = uvicorn.Config(
            app,
            settings.host,
            settings.port,
            http=cast("type[Protocol]", partial(Protocol, limits=listeners[0].limits)),
            ws="none",
            lifespan="off",
            log_config=None,  # it logs through configure_logs
            access_log=False,  # Observe logs requests
            server_header=False,
            proxy_headers=bool(settings.trusted_proxies),  # by default uvicorn trusts this host
            forwarded_allow_ips=[str(network) for network in settings.trusted_proxies],
            timeout_keep_alive=cast("int", settings.keep_alive_timeout),
            timeout_graceful_shutdown=cast("int", DROP * settings.shutdown_timeout),
        )
        super().__init__(config)
        self._settings = settings
        self._listeners = listeners
        self._on_started = on_started
        self._give_up = give_up
        listeners[0].limits.refusals = Refusals(app)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except OSError as error:  # another process has begun to listen since bind()
            raise cannot_listen(self._settings, error) from error
        self._on_started(address_of(self._settings, self._listeners[0].getsockname()[1]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more requests, wait for those in progress, and drop the clients that are left.
        A process that still runs at the deadline, in a long computation, exits with tracebacks."""
        seconds = self._settings.shutdown_timeout
        with suppress(RuntimeError):  # no thread can be started: whoever sent the signal kills us
            faulthandler.dump_traceback_later(seconds, exit=True, file=STANDARD_ERROR)
        giving_up = asyncio.get_running_loop().call_later(GIVE_UP * seconds, self._give_up)
        await super().shutdown(sockets)
        giving_up.cancel()
        for connection in [*self.server_state.connections]:
            cast("Protocol", connection).drop()
