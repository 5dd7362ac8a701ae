"""Refuse requests and answer probes by their bytes, before they are parsed, while there are many.

An overloaded service gets so many requests that refusing them takes the time of those in progress:
the Door would take five times as long. A probe would wait for several turns of the event loop.
"""

import asyncio
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

import structlog

from service.errors import Overloaded
from service.http.limits.admission import Admission, Place
from service.http.messages.problems import ErrorForm, form_at, write_answer, write_response
from service.http.middleware.metrics import RequestMetrics
from service.pace import refuse, retry_after

LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*\r\n", re.IGNORECASE)
REQUEST_ID = re.compile(
    rb"\r\nx-request-id:[ \t]*([A-Za-z0-9._:-]{1,128})[ \t]*\r\n", re.IGNORECASE
)
MARK = b"~"  # stands for a character of a request id in a prepared answer, and occurs nowhere else
ORIGIN = re.compile(rb"\r\norigin:", re.IGNORECASE)
# A probe all of whose headers are known not to change the answer. Accept: */* asks for any.
PROBE = re.compile(
    rb"GET (?P<path>/[a-z]+) HTTP/1\.1\r\n(?:"
    rb"(?i:host|user-agent|connection|accept-encoding|x-request-id|x-real-ip|x-forwarded-[a-z]+"
    rb"|accept(?=:[ \t]*\*/\*\r\n)):[\t -~]*\r\n)+\r\n"
)
HOST = re.compile(rb"\r\nhost:[ \t]*([^\r]*)", re.IGNORECASE)
ALIVE = b'{"status":"ok"}'  # what /livez and /readyz answer with 200
LOG_EVERY = 1.0  # seconds

logger = structlog.get_logger()


class Verdict(NamedTuple):
    """What becomes of a request: it is answered at once, or accepted, with a place or without."""

    answer: bytes = b""
    place: Place | None = None


ACCEPTED = Verdict()


class Gate:
    """Judges the first bytes of a request for one of `routes`, the paths without parameters.

    A probe, a GET request for a path of `probes`, is answered if its function returns True for
    the Host.

    A whole POST request is refused, or gets its place at once: of many that arrive together, only
    as many are accepted as there is room for. All others are left to the Door, which is also right
    about headers such as X-Request-Timeout; so are those of web pages, whose answers may need CORS
    headers. A refusal tells strangers nothing: it comes before hosts and keys are checked.
    """

    def __init__(
        self,
        admission: Admission,
        metrics: RequestMetrics,
        routes: Iterable[str],
        probes: Mapping[str, Callable[[str], bool]],
        forms: Sequence[ErrorForm] = (),
    ) -> None:
        self.admission = admission
        self._metrics = metrics
        self._routes = {route.encode(): (route, form_at(route, forms)) for route in routes}
        self._probes = {path.encode(): (path, healthy) for path, healthy in probes.items()}
        self._refused = 0  # since the last line in the log

    def judge(self, data: bytes) -> Verdict:
        if self.admission.is_quiet:
            return ACCEPTED
        if data.startswith(b"POST "):
            return self._judge_post(data)
        return self._judge_probe(data) if data.startswith(b"GET ") else ACCEPTED

    def _judge_post(self, data: bytes) -> Verdict:
        found = self._routes.get(data[5 : data.find(b" ", 5)])
        if not found or not is_whole(data) or ORIGIN.search(data):
            return ACCEPTED
        late = self.admission.late(self.admission.timeout)
        if late is None:
            return Verdict(place=Place(self.admission))
        route, form = found
        self._metrics.count_early(route, form.status_of(Overloaded.status), Overloaded.code)
        if not self._refused:
            asyncio.get_running_loop().call_later(LOG_EVERY, self._log)
        self._refused += 1
        request_id = request_id_of(data)
        prepared = prepare(route, form, retry_after(late), len(request_id))
        return Verdict(prepared.replace(MARK * len(request_id), request_id))

    def _judge_probe(self, data: bytes) -> Verdict:
        found, hosts = PROBE.fullmatch(data), HOST.findall(data)
        path, healthy = self._probes.get(found["path"] if found else b"", ("", None))
        if not healthy or len(hosts) != 1 or not healthy(hosts[0].decode().strip()):
            return ACCEPTED
        self._metrics.count_early(path, HTTPStatus.OK)
        request_id = request_id_of(data).decode()
        return Verdict(write_response(HTTPStatus.OK, "application/json", ALIVE, request_id))

    def _log(self) -> None:
        """Log how many were refused: a line for each would take as long as to refuse it."""
        count, self._refused = self._refused, 0
        logger.warning(
            "requests refused", count=count, status=int(Overloaded.status), code=Overloaded.code
        )


def request_id_of(data: bytes) -> bytes:
    """Return the id that the client gave its request, if it is safe to log, else a new one."""
    given = REQUEST_ID.search(data)
    return given[1] if given else b"%032x" % random.getrandbits(128)


def is_whole(data: bytes) -> bool:
    """Return whether these are the headers of one request and all of its body."""
    end = data.find(b"\r\n\r\n")
    length = LENGTH.search(data, 0, end + 2)
    return length is not None and end + 4 + int(length[1]) == len(data)


@lru_cache(256)
def prepare(route: str, form: ErrorForm, retry: int, length: int) -> bytes:
    """Return the answer to a refused request, with a mark in the place of its id."""
    error = refuse("the service has more requests than it can answer in time", retry)
    return write_answer(error, route, MARK.decode() * length, form)
