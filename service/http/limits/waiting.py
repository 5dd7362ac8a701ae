"""Wait for work without blocking the event loop, with a deadline and a concurrency limit."""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from anyio import CapacityLimiter, WouldBlock
from fastapi import Request
from starlette.concurrency import run_in_threadpool

from service.errors import Abandoned, DeadlineExceeded, Overloaded
from service.settings.settings import Settings

TIMEOUT_HEADER = "X-Request-Timeout"
LITTLE = 64  # characters to read or tokens to write: quicker than waking a thread
SMALL = 1 << 11  # bytes, characters or ids to read: some milliseconds at most
LARGE = 1 << 16  # the same: where it matters what those that wait take of the memory
CLASSES = (SMALL, LARGE)  # of reading: of up to so much, and of more
MOST_WAITING = 32  # requests that hold large bodies in memory while they wait for a core

Result = TypeVar("Result")


class Deadline(NamedTuple):
    """When a request must have been answered, in seconds of time.monotonic(), and how many seconds
    after its arrival that is."""

    at: float
    limit: float

    @property
    def left(self) -> float:
        """Seconds until then, at least 0."""
        return max(0.0, self.at - time.monotonic())


def deadline_of(request: Request) -> Deadline:
    """Return the deadline that Door has set."""
    return request.state.deadline


def settings_of(request: Request) -> Settings:
    return request.app.state.settings


async def compute(work: Callable[[], Result], size: int) -> Result:
    """Run `work` in a thread, or inline when it is too small to be worth the switch."""
    return work() if size <= LITTLE else await run_in_threadpool(work)


async def compute_reading(request: Request, work: Callable[[], Result], size: int) -> Result:
    """Run `work`, which reads `size` bytes, characters or ids: inline if it is LITTLE, else in a
    thread, one at a time of each of the CLASSES.

    Most of it holds the interpreter's lock: several at once would take no less time, and would
    keep the lock from the event loop. Raise Overloaded if it is LARGE and MOST_WAITING such
    requests wait already, and the errors of `wait_for` while waiting.
    """
    if size <= LITTLE:
        return work()
    limiter: CapacityLimiter = request.app.state.reading[bisect_left(CLASSES, size)]
    if size > LARGE:
        check_line(limiter)
    return await limited(request, limiter, work)


async def wait_for(request: Request, work: "asyncio.Future[Result]") -> Result:
    """Wait for `work` and return its result. Cancel it if the wait ends early.

    Raise Abandoned when the client disconnects, DeadlineExceeded at the deadline of the request.
    The body must have been read: the next message from the client is then its disconnect.
    """
    deadline = deadline_of(request)
    gone = asyncio.ensure_future(request.receive())
    try:
        first = asyncio.FIRST_COMPLETED
        await asyncio.wait({work, gone}, timeout=deadline.left, return_when=first)
        if work.done():
            return work.result()
        if gone.done():
            raise Abandoned("the client closed the connection")
        raise too_late(request)
    finally:
        gone.cancel()
        work.cancel()


def too_late(request: Request) -> DeadlineExceeded:
    """Return the error of a request that is not answered by its deadline."""
    limit, longest = deadline_of(request).limit, settings_of(request).timeout
    setting = "X-Request-Timeout" if limit < longest else "HEED_TIMEOUT"
    return DeadlineExceeded(
        f"the request, with its wait for others, took longer than its limit of {limit:g} seconds:"
        f" send less, raise {setting}, or try again later"
    )


async def compute_limited(request: Request, work: Callable[[], Result]) -> Result:
    """Run `work` in a thread, with at most settings.cores of these at once in the process.

    Work that has begun always runs to its end: its size is bounded. Raise Overloaded if
    MOST_WAITING requests wait already, and the errors of `wait_for` while waiting.
    """
    check_line(request.app.state.limiter)
    return await limited(request, request.app.state.limiter, work)


def check_line(limiter: CapacityLimiter) -> None:
    """Raise Overloaded if MOST_WAITING requests wait for this limiter."""
    if limiter.statistics().tasks_waiting >= MOST_WAITING:
        raise Overloaded(
            f"{MOST_WAITING} requests wait for a core already, which is the limit: try again later"
        )


async def limited(request: Request, limiter: CapacityLimiter, work: Callable[[], Result]) -> Result:
    """Run `work` in a thread as soon as `limiter` lets it."""
    borrower = object()  # stands for this request: another task may wait for the limiter
    try:
        limiter.acquire_on_behalf_of_nowait(borrower)
    except WouldBlock:
        await wait_for(request, asyncio.ensure_future(limiter.acquire_on_behalf_of(borrower)))
    try:
        return await run_in_threadpool(work)
    finally:
        limiter.release_on_behalf_of(borrower)
