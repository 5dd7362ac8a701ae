"""Admission control: refuse a request with 429 when those in progress would make it wait too long.

Work that nobody can wait for would only delay the others.
"""

import math
import time
from collections.abc import Callable
from http import HTTPStatus

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import Overloaded
from service.http.problems import answer_heed_error

FEW = 16  # requests in progress that refuse no other, and below which their rate says little
SHORT = 2.0  # seconds that a request may be expected to wait where many are in progress
WINDOW = 0.5  # seconds over which requests are counted
FORGET = 10.0  # seconds after which a rate no longer counts, unless requests are being counted
LONGEST_RETRY = 60  # seconds


class Pace:
    """Requests that are completed in a second, measured while at least FEW are in progress: with
    fewer, it would say how many arrive."""

    def __init__(self) -> None:
        self._rate: float | None = None
        self._measured = 0.0  # when
        self._count, self._since = 0, 0.0  # requests completed since then
        self.completed = 0.0  # when the last one was

    def enter(self, now: float, inside: int) -> None:
        """Begin to count when FEW are in progress."""
        if inside == FEW:
            self._count, self._since = 0, now

    def leave(self, now: float, inside: int) -> None:
        """Count a completed request that leaves `inside` others in progress.

        A rate needs FEW of them: requests that are computed together also end together.
        """
        self.completed = now
        if inside < FEW:
            self._count = 0
            return
        self._count += 1
        elapsed = now - self._since
        if self._count >= FEW and elapsed >= WINDOW:
            rate = self._count / elapsed
            self._rate = rate if self._rate is None else (self._rate + rate) / 2
            self._count, self._since, self._measured = 0, now, now

    def wait(self, now: float, inside: int) -> float | None:
        """Return the seconds until all in progress are completed; None if the rate is not known."""
        if now - self._measured > FORGET and not self._count:
            self._rate = None
        return inside / self._rate if self._rate else None


class Door:
    """Refuses a POST request with 429 if it would wait too long.

    Up to `most` requests may be in progress if they will be completed within `timeout` seconds;
    more if they will be within SHORT seconds. A request is in progress from the end of its body to
    the end of its answer. GET requests, such as probes, are never refused.
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
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self.app(scope, receive, send)
        if refusal := self.refusal():
            response = await answer_heed_error(Request(scope), refusal)
            return await response(scope, receive, send)
        return await self._count(scope, receive, send)

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

    def refusal(self) -> Overloaded | None:
        """Return why a request cannot be accepted now; None if it can."""
        if self.inside < min(FEW, self.most):
            return None
        now = self.clock()
        wait = self.pace.wait(now, self.inside)
        if self.inside < self.most:
            if wait is None or wait <= self.timeout:
                return None
            return refuse(
                f"the requests in progress take about {wait:.0f} seconds, and the limit is"
                f" {self.timeout:g}",
                wait - self.timeout,
            )
        moves = now - self.pace.completed <= SHORT
        if wait is not None and wait <= SHORT and moves:
            return None
        return refuse(
            f"{self.inside} requests are in progress, and the limit is {self.most}",
            (wait or 0.0) - SHORT,
        )


def refuse(why: str, seconds: float) -> Overloaded:
    """Return an error that tells the client to come back after so many seconds."""
    retry = min(max(1, math.ceil(seconds)), LONGEST_RETRY)
    error = Overloaded(f"{why}: try again in {retry} second{'s' * (retry > 1)}")
    error.retry_after = retry
    return error
