"""Refuse requests at the door when those inside already take long: work that nobody can wait for
would only delay the others."""

import math
import time
from collections.abc import Callable
from http import HTTPStatus

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import Overloaded
from service.http.problems import answer_heed_error

FEW = 16  # requests inside that are always let in, and below which their rate says little
SHORT = 2.0  # seconds that a request may be expected to wait where many are inside
WINDOW = 0.5  # seconds over which requests are counted
FORGET = 10.0  # seconds with few inside after which a rate no longer counts
LONGEST_RETRY = 60  # seconds


class Pace:
    """Requests that leave in a second, measured while at least FEW are inside: with fewer, it would
    say how many arrive."""

    def __init__(self) -> None:
        self._rate: float | None = None
        self._count, self._since = 0, 0.0  # requests that have left since then
        self._quiet = 0.0  # when fewer than FEW were inside last

    def enter(self, now: float, inside: int) -> None:
        """Begin to count when FEW are inside."""
        if inside != FEW:
            return
        if now - self._quiet > FORGET:
            self._rate = None
        self._count, self._since = 0, now

    def leave(self, now: float, inside: int) -> None:
        """Count a request that leaves `inside` others.

        A rate needs FEW of them: requests that are computed together also leave together.
        """
        if inside < FEW:
            self._quiet = now
            return
        self._count += 1
        elapsed = now - self._since
        if self._count >= FEW and elapsed >= WINDOW:
            rate = self._count / elapsed
            self._rate = rate if self._rate is None else (self._rate + rate) / 2
            self._count, self._since = 0, now

    def wait(self, inside: int) -> float | None:
        """Return the seconds until all inside have left; None if the rate is not known."""
        return inside / self._rate if self._rate else None


class Door:
    """Refuses a POST request with 429 if it would wait too long for those inside.

    Up to `most` may be inside if they will have left within `timeout` seconds; more if they will
    within SHORT seconds. GET requests, such as probes, are never refused.
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
        self.inside = 0
        self.pace = Pace()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self.app(scope, receive, send)
        if refusal := self.refusal():
            response = await answer_heed_error(Request(scope), refusal)
            return await response(scope, receive, send)
        served = False

        async def look(message: Message) -> None:
            nonlocal served
            if message["type"] == "http.response.start":
                served = message["status"] < HTTPStatus.BAD_REQUEST  # refusals say nothing of work
            await send(message)

        self.inside += 1
        self.pace.enter(self.clock(), self.inside)
        try:
            await self.app(scope, receive, look)
        finally:
            self.inside -= 1
            if served:
                self.pace.leave(self.clock(), self.inside)

    def refusal(self) -> Overloaded | None:
        """Return why a request cannot be let in now; None if it can."""
        if self.inside < FEW:
            return None
        wait = self.pace.wait(self.inside)
        limit = self.timeout if self.inside < self.most else SHORT
        if (wait or 0.0) <= limit and (wait or self.inside < self.most):
            return None
        expected = f" and take about {wait:.0f} seconds more" if wait else ""
        error = Overloaded(
            f"{self.inside} requests are being answered{expected}; the limit is {self.most}, or"
            f" {limit:g} seconds: try again later"
        )
        error.retry_after = min(max(1, math.ceil((wait or 0.0) - limit)), LONGEST_RETRY)
        return error
