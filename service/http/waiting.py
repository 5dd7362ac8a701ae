"""Waiting for work without holding up the event loop."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter
from fastapi import Request
from starlette.concurrency import run_in_threadpool

from service.errors import (
    Abandoned,
    DeadlineExceeded,
    Overloaded,
)
from service.settings import Settings

LITTLE = 64  # characters to read, or tokens to write: done about as soon as a thread is woken


MOST_WAITING = 32  # requests that hold their bodies while they wait for a core


Result = TypeVar("Result")


async def compute(work: Callable[[], Result], size: int) -> Result:
    """Off the event loop, unless it is done about as soon as handed over."""
    return work() if size <= LITTLE else await run_in_threadpool(work)


def settings_of(request: Request) -> Settings:
    return request.app.state.settings


async def finish(request: Request, work: "asyncio.Future[Result]") -> Result:
    """Raises Abandoned when the client leaves, DeadlineExceeded when time is up; the work is then
    cancelled."""
    limit = settings_of(request).timeout
    gone = asyncio.ensure_future(request.receive())  # the body is read: what comes is the end
    try:
        await asyncio.wait({work, gone}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        if gone.done():
            raise Abandoned("the client closed the connection")
        raise DeadlineExceeded(f"not done within {limit:g} seconds; send less or try again later")
    finally:
        gone.cancel()
        work.cancel()


async def in_turn(request: Request, work: Callable[[], Result]) -> Result:
    """Computes on a thread, as many at once as there are cores for it. What has begun is finished:
    its size is bounded.

    Raises Overloaded if too many wait for a turn, and what `finish` raises while it waits.
    """
    limiter: CapacityLimiter = request.app.state.limiter
    if limiter.statistics().tasks_waiting >= MOST_WAITING:
        raise Overloaded(f"{MOST_WAITING} requests wait already, which is the limit")
    turn = object()
    await finish(request, asyncio.ensure_future(limiter.acquire_on_behalf_of(turn)))
    try:
        return await run_in_threadpool(work)
    finally:
        limiter.release_on_behalf_of(turn)
