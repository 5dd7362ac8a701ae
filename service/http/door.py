"""Admission control: refuse a request with 429 when those in progress would make it wait too long.

Work that nobody can wait for would only delay the others.
"""

import time
from collections.abc import Callable
from http import HTTPStatus

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import HeedError, Unparsable, shorten
from service.http.problems import answer_heed_error
from service.http.waiting import TIMEOUT_HEADER, Deadline
from service.pace import FEW, Pace, refuse

SHORT = 2.0  # seconds that a request may be expected to wait where many are in progress


class Door:
    """Refuses a POST request with 429 if it would wait too long.

    Up to `most` requests may be in progress if they will be completed within `timeout` seconds;
    more if they will be within SHORT seconds. A request is in progress from the end of its body to
    the end of its answer. GET requests, such as probes, are never refused.

    Every request gets its deadline: `timeout` seconds after its arrival, or earlier if its header
    X-Request-Timeout says so.
    """

    def __init__(
        self,
        app: ASGIApp,
        most: int,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app = app
        self.most = most
        self.timeout = timeout
        self.clock = clock
        self.inside = 0  # requests in progress
        self.pace = Pace()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request = Request(scope)
        try:
            limit = self.limit(request.headers.get(TIMEOUT_HEADER))
            if is_post := scope["method"] == "POST":
                self.check(limit)
        except HeedError as error:
            response = await answer_heed_error(request, error)
            return await response(scope, receive, send)
        request.state.deadline = Deadline(self.clock() + limit, limit)
        return await (self._count if is_post else self.app)(scope, receive, send)

    def limit(self, header: str | None) -> float:
        """Return the seconds that a request with this X-Request-Timeout may take."""
        if header is None:
            return self.timeout
        try:
            seconds = float(header)
        except ValueError:
            seconds = 0.0
        if not seconds > 0:
            raise Unparsable(
                f"{TIMEOUT_HEADER} is {shorten(header)!r}: give the seconds that you will wait,"
                " such as 2.5"
            )
        return min(seconds, self.timeout)

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the request from the end of its body to the end of its answer."""
        counted = served = False

        async def receive_and_count() -> Message:
            nonlocal counted
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body") and not counted:
                counted = True
                self.inside += 1
                self.pace.enter(self.clock(), self.inside)
            return message

        async def send_and_look(message: Message) -> None:
            nonlocal served
            if message["type"] == "http.response.start":
                served = message["status"] < HTTPStatus.BAD_REQUEST  # errors take no time
            await send(message)

        try:
            await self.app(scope, receive_and_count, send_and_look)
        finally:
            if counted:
                self.inside -= 1
            if counted and served:
                self.pace.leave(self.clock(), self.inside)

    def check(self, limit: float) -> None:
        """Raise Overloaded if a request that may take `limit` seconds cannot be accepted now."""
        if self.inside < min(FEW, self.most):
            return
        now = self.clock()
        wait = self.pace.wait(now, self.inside, self.inside)
        if self.inside < self.most:
            if wait is None or wait <= limit:
                return
            raise refuse(
                f"the requests in progress take about {wait:.0f} seconds, and this request has"
                f" {limit:g}",
                wait - limit,
            )
        moves = now - self.pace.completed <= SHORT
        if wait is not None and wait <= SHORT and moves:
            return
        raise refuse(
            f"{self.inside} requests are in progress, and the limit is {self.most}",
            (wait or 0.0) - SHORT,
        )
