"""Answer requests that the application does not see: those that are not HTTP/1.1, and, while many
are in progress, those that would wait too long."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

import structlog
from fastapi import FastAPI

from service.errors import HeedError, Overloaded
from service.http.messages.problems import ErrorForm, form_at, write_whole_answer
from service.http.middleware.door import Admission, allows, hosts_of
from service.http.middleware.metrics import RequestMetrics
from service.http.middleware.observe import report_refusal, request_id_of
from service.http.server.head import Glance, Header
from service.pace import refuse, retry_after

# Stands for a character of a request id in a prepared answer, and occurs nowhere else.
ID_MARK = "~"
LOG_EVERY = 1.0  # seconds
FIRST_BYTES = 1 << 14  # of a new connection that are looked at before it is set up

logger = structlog.get_logger()


class Refusals:
    """Writes the answers, counts them and logs them.

    A refusal for overload tells strangers nothing: it comes before keys are checked.
    """

    def __init__(self, app: FastAPI) -> None:
        self.admission: Admission = app.state.service.admission
        self._hosts = hosts_of(app.state.service.settings)
        self._metrics: RequestMetrics = app.state.service.metrics
        self._routes = {
            path.encode(): (path, form_at(path, app.state.paths.forms))
            for path, item in app.openapi()["paths"].items()
            if "post" in item
        }
        self._overloaded = 0  # since the last line in the log
        self._coming = 0  # accepted in this turn of the event loop: they have no place yet
        # File numbers of new connections whose requests `turn_away` accepted. Protocol, which reads
        # them again, removes them.
        self.expected = set[int]()

    def answer(self, error: HeedError) -> bytes:
        """Return the answer to bytes that are not a request."""
        request_id = request_id_of(())
        report_refusal(self._metrics, error, request_id)
        return write_whole_answer(error, "", request_id)

    def turn_away(self, connection: socket.socket) -> bool:
        """Answer and close a new connection if its request would wait too long, and return whether
        it would: to set up a connection takes twice as long. Protocol judges the others, and those
        whose request has not arrived whole. Without a crowd nothing is late."""
        with suppress(OSError):  # nothing has arrived yet, or the connection is broken
            data = connection.recv(FIRST_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            request = Glance(data)
            if not request.whole or not self._knows(request.url, request.headers):
                return False
            late = self._late()
            if late is None:
                self.expected.add(connection.fileno())
                return False
            connection.recv(len(data))  # unread bytes would reset the connection
            connection.send(self._refuse(request.url, request.headers, late))
            connection.close()
            return True
        return False

    def answer_overloaded(self, target: bytes, headers: Sequence[Header]) -> bytes:
        """Return the answer to a POST request that would wait too long, or nothing."""
        if not self._knows(target, headers):
            return b""
        late = self._late()
        if late is not None:
            return self._refuse(target, headers, late)
        self._coming += 1
        asyncio.get_running_loop().call_soon(self._start)
        return b""

    def _knows(self, target: bytes, headers: Sequence[Header]) -> bool:
        """Return whether this is a request that can be refused here.

        The application judges others: those for other hosts, which must not be sent again, those of
        web pages, whose answers may need CORS headers, and those for paths with a query or
        parameters. The Door knows each request's own time limit, too.
        """
        return target in self._routes and not any(
            name == b"origin"
            or (name == b"host" and not allows(self._hosts, value.decode("latin-1")))
            for name, value in headers
        )

    def _late(self) -> float | None:
        """Return the seconds by which one more request would come too late, if it would."""
        return self.admission.late(self.admission.timeout, self._coming + len(self.expected))

    def _refuse(self, target: bytes, headers: Sequence[Header], late: float) -> bytes:
        """Count a refusal, and return the answer."""
        route, form = self._routes[target]
        self._metrics.count_refused(route, form.status_of(Overloaded.status), Overloaded.code)
        if not self._overloaded:
            asyncio.get_running_loop().call_later(LOG_EVERY, self._log)
        self._overloaded += 1
        request_id = request_id_of(headers)
        prepared = prepare_answer(route, form, retry_after(late), len(request_id))
        return prepared.replace(ID_MARK * len(request_id), request_id).encode()

    def _start(self) -> None:
        """Forget one of those that are coming. The application, which runs next, gives it a
        place."""
        self._coming -= 1

    def _log(self) -> None:
        """Log how many were refused: a line for each would take as long as to refuse it."""
        count, self._overloaded = self._overloaded, 0
        logger.warning(
            "requests refused", count=count, status=int(Overloaded.status), code=Overloaded.code
        )


@lru_cache(256)
def prepare_answer(route: str, form: ErrorForm, retry: int, length: int) -> str:
    """Return the answer to a refused request, with marks in the place of its id."""
    error = refuse("the service has more requests than it can answer in time", retry)
    return write_whole_answer(error, route, ID_MARK * length, form).decode()
