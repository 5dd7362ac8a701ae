"""ASGI middleware that lets requests in, and bounds the time and the bytes of each."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import Unparsable, shorten
from service.http.limits import (
    FREE,
    TIMEOUT_HEADER,
    Admission,
    Budget,
    Deadline,
    Place,
    Share,
    Terms,
)

DISCARDED = 64  # times the limit on bodies: up to so much is read of one that is too large


@dataclass(frozen=True, slots=True, eq=False)
class RequestLimits:
    """Limits on all requests; `bodies` and `answers` count the bytes of those in progress."""

    admission: Admission
    body_bytes: int
    bodies: Budget
    answers: Budget
    exempt: str  # POST requests for paths that begin so are always accepted


class Door:
    """ASGI middleware. Refuses a POST request with 429 if it would wait too long, and bounds the
    time and the bytes of every request.

    GET requests, such as probes, are never refused, nor are those that change the models: an
    operator may want to do that just then. Every request gets its deadline: `timeout` seconds after
    its arrival, or earlier if its header X-Request-Timeout says so.
    """

    def __init__(self, app: ASGIApp, limits: RequestLimits) -> None:
        self.app = app
        self.limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        admission, state = self.limits.admission, scope["state"]
        limit = self.limit(Headers(scope=scope).get(TIMEOUT_HEADER))
        counts = scope["method"] == "POST" and not scope["path"].startswith(self.limits.exempt)
        if counts:
            admission.check(limit)
        visit = Visit(self.limits, counts, receive, send)
        deadline = Deadline(admission.clock() + limit, limit)
        terms = state["terms"] = Terms(deadline, visit.aside)
        try:
            return await self.app(scope, visit.receive, visit.send)
        finally:
            visit.end()
            self.limits.answers.release(terms.share)
            for end in terms.at_end:
                end()
            del state["terms"]  # they refer to all of the request, which would refer to itself

    def limit(self, header: str | None) -> float:
        """Return the seconds that a request with this X-Request-Timeout may take. Raise
        Unparsable."""
        timeout = self.limits.admission.timeout
        if header is None:
            return timeout
        try:
            seconds = float(header)
        except ValueError:
            seconds = 0.0
        if not seconds > 0:
            raise Unparsable(
                f"{TIMEOUT_HEADER} is {shorten(header)!r}: give the seconds that you will wait,"
                " such as 2.5"
            )
        return min(seconds, timeout)


class Visit:
    """A request that was let in: its place, and the bytes of its body.

    It has a place from the end of its body to the beginning of its answer, unless it is aside: what
    is left to do then, to read it or to stream on, keeps no other waiting.

    Bodies of more than `body_bytes` are refused with 413, and slow ones with 408. FastAPI's own
    limit would not answer with a problem document. The rest of a body that is too large is read and
    discarded, up to DISCARDED times the limit: a client whose connection closes while it sends does
    not read the answer. Bodies that exceed the limit on those of all requests in progress are
    refused with 429.
    """

    def __init__(self, limits: RequestLimits, counts: bool, receive: Receive, send: Send) -> None:
        self._limits, self._counts = limits, counts
        self._receive, self._send = receive, send
        self._size, self._more = 0, True
        self._share = Share()
        self._place: Place | None = None
        self._end = asyncio.get_running_loop().time() + limits.admission.timeout

    async def receive(self) -> Message:
        message = await self._next_part()
        most, bodies = self._limits.body_bytes, self._limits.bodies
        if self._size > most:
            while self._more and self._size < DISCARDED * most:
                await self._next_part()
            detail = f"the body has more than {most} bytes, which is the limit: send less"
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
        if self._size > FREE and not bodies.add(self._share, self._size - self._share.nbytes):
            detail = f"the bodies of other requests take {bodies.held} bytes, and the"
            detail += f" limit is {bodies.limit}: try again later"
            raise HTTPException(HTTPStatus.TOO_MANY_REQUESTS, detail, {"Retry-After": "1"})
        whole = message["type"] == "http.request" and not self._more
        if self._counts and whole and not self._place:
            self._place = Place(self._limits.admission)
        return message

    async def _next_part(self) -> Message:
        try:
            async with asyncio.timeout_at(self._end if self._more else None):
                message = await self._receive()
        except TimeoutError as error:
            seconds = f"{self._limits.admission.timeout:g} seconds"
            detail = f"the body did not arrive within {seconds}: send it faster"
            raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, detail) from error
        self._size += len(message.get("body", b""))
        self._more = message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if self._place and message["type"] == "http.response.start":
            self._place.leave(completed=message["status"] < HTTPStatus.BAD_REQUEST)
        await self._send(message)

    @contextmanager
    def aside(self) -> Generator[None]:
        """Give up the place during the block, in which the request waits for memory: one that needs
        none does not wait for it."""
        if self._place:
            self._place.leave()
        try:
            yield
        finally:
            if self._place:
                self._place = Place(self._limits.admission)

    def end(self) -> None:
        if self._place:
            self._place.leave()
        self._limits.bodies.release(self._share)
