"""ASGI middleware that lets requests in, and bounds the time and the bytes of each.

Requests for hosts that this service is not are refused, which stops DNS rebinding: a page of
another site whose name resolves to this machine could otherwise read every answer.

Admission control refuses a request with 429 when those in progress would make it wait too long:
work that nobody can wait for would only delay the others.
"""

import asyncio
import ipaddress
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from itertools import takewhile

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import Misdirected, Unparsable, shorten
from service.http.limits import FREE, TIMEOUT_HEADER, Budget, Deadline, Share, Terms
from service.pace import FEW, Pace, refuse
from service.settings.settings import Settings

# Names that requests may be for
LOCAL = ["localhost", "*.localhost"]
ANY_HOST = ["*"]
DISCARDED = 64  # times the limit on bodies: up to so much is read of one that is too large
SHORT_WAIT = 0.25  # seconds that a request may be expected to wait where many are in progress
RECENT = 1.0  # seconds without a completed request after which a rate says nothing


def hosts_of(settings: Settings) -> Sequence[str]:
    """Return the names that requests may be for, in lower case: by default localhost names if bound
    to loopback, else any."""
    named = [host.lower() for host in settings.allowed_hosts]
    return named or (LOCAL if is_loopback(settings.host) else ANY_HOST)


def is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


class HostCheck:
    """Refuses with 421 a request whose Host is not among `hosts`, or an IP address.

    A request of HTTP/1.0 without Host, which no browser sends, is accepted.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = Headers(scope=scope).getlist("host")
            if wrong := [host for host in given if not allows(self.hosts, host)]:
                raise self.refusal(shorten(host_name(wrong[0])))
        await self.app(scope, receive, send)

    def refusal(self, name: str) -> Misdirected:
        known = ", ".join(self.hosts)
        return Misdirected(
            f"this service does not answer for the host {name!r}: use its IP address or {known},"
            " or name the host in HEED_ALLOWED_HOSTS"
        )


def allows(hosts: Iterable[str], given: str) -> bool:
    """Return whether a Host header is among `hosts`, or an IP address: only a name can be made to
    lead elsewhere, and probes use addresses."""
    name = host_name(given)
    return any(
        name == host or host == "*" or (host.startswith("*.") and name.endswith(host[1:]))
        for host in hosts
    ) or is_address(name)  # which takes longest


def host_name(host: str) -> str:
    """Return a Host header in lower case, without its port and the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def is_address(name: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return False


class Admission:
    """Counts the requests in progress and decides whether one more can be accepted.

    A request is in progress until its answer begins: nobody waits for what is only read. Nor does
    a new request wait for as many as one of the last FEW completed ones has overtaken: large ones,
    which take turns with it. If it is large itself, the queue of its model refuses it, which knows
    rows. Requests that wait for memory are not in progress either.

    Up to `most` requests may be in progress if they will be completed within `timeout` seconds;
    more if they will be within SHORT_WAIT seconds and one was within the last RECENT seconds.
    """

    def __init__(
        self, most: int, timeout: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most = most
        self.timeout = timeout
        self.clock = clock
        self.few = min(FEW, most)  # in progress: with fewer, any other request is accepted
        self.inside = 0  # requests in progress
        self.places: dict[Place, None] = {}  # of these, in their order
        self.overtaken = deque[int](maxlen=FEW)  # by each of the last that were completed
        self.pace = Pace()

    @property
    def crowded(self) -> bool:
        """Whether so many are in progress that another one may be refused."""
        return self.inside >= self.few

    def late(self, limit: float, coming: int = 0) -> float | None:
        """Return the seconds by which a request that may take `limit` seconds would come too late,
        after `coming` others that have no place yet. Return None if it can be accepted."""
        inside = self.inside + coming
        if inside < self.few:
            return None
        now = self.clock()
        wait = self.pace.wait(now, inside, inside)
        if inside < self.most:
            if wait is None or wait <= limit:
                return None
            ahead = max(0, inside - max(self.overtaken, default=0))
            wait *= ahead / inside
            return None if wait <= limit else wait - limit
        moves = now - self.pace.completed <= RECENT
        if wait is not None and wait <= SHORT_WAIT and moves:
            return None
        return (wait or 0.0) - SHORT_WAIT

    def check(self, limit: float) -> None:
        """Raise Overloaded if a request that may take `limit` seconds cannot be accepted now."""
        late = self.late(limit)
        if late is None:
            return
        if self.inside < self.most:
            raise refuse(
                f"the requests in progress take about {late + limit:.0f} seconds, and this request"
                f" has {limit:g}",
                late,
            )
        raise refuse(f"the limit of {self.most} requests in progress is reached", late)


class Place:
    """The place of a request among those in progress, from when it is made until `leave`."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        admission.inside += 1
        admission.places[self] = None
        if admission.inside >= FEW:  # else no rate is measured
            admission.pace.enter(admission.clock(), admission.inside)

    def leave(self, completed: bool = False) -> None:
        """Give up the place, at the first call. Errors take no time: they do not count as pace."""
        admission = self._admission
        if self not in admission.places:
            return
        if completed:
            before = takewhile(lambda place: place is not self, admission.places)
            admission.overtaken.append(sum(1 for _ in before))
        del admission.places[self]
        admission.inside -= 1
        if completed:
            admission.pace.leave(admission.clock(), admission.inside)


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
            terms.end(self.limits.answers)
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
