"""Waiting for work beside the event loop."""

import asyncio
import gc
import math
import threading
import time
import weakref
from types import SimpleNamespace

from anyio import CapacityLimiter
from fastapi import Request

from service.errors import PassFailed
from service.http.record import Record
from service.http.waiting import LARGE, LITTLE, Deadline, compute, compute_reading, wait_for
from service.settings import Settings


def test_only_large_work_leaves_the_thread_of_the_event_loop():
    async def run():
        return [await compute(threading.get_ident, size) for size in (LITTLE, LITTLE + 1)]

    little, much = asyncio.run(run())
    assert little == threading.get_ident() != much


def test_large_reading_is_done_one_at_a_time():
    inside = most = 0

    def work():
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.01)
        inside -= 1
        return threading.get_ident()

    async def run(size):
        state = SimpleNamespace(reading=CapacityLimiter(1), settings=Settings())
        scope = {"type": "http", "app": SimpleNamespace(state=state)}
        scope["state"] = {"deadline": Deadline(math.inf, math.inf)}
        request = Request(scope, asyncio.Event().wait)  # the client stays
        return await asyncio.gather(*(compute_reading(request, work, size) for _ in range(5)))

    assert threading.get_ident() not in asyncio.run(run(LARGE + 1))
    assert most == 1
    asyncio.run(run(LARGE))
    assert most > 1


def test_a_reported_error_does_not_keep_its_request():
    """Its frames hold the work that failed, which holds the error."""

    async def wait_for_a_failure():
        scope = {"type": "http", "state": {"deadline": Deadline(time.monotonic() + 60, 60)}}
        request = Request(scope, asyncio.Event().wait)
        work = asyncio.get_running_loop().create_future()
        work.set_exception(PassFailed("the model failed"))
        record = Record()
        try:
            await wait_for(request, work)
        except PassFailed as error:
            record.error = error
        record.forget_error()
        return weakref.ref(work), weakref.ref(request)

    gc.disable()
    try:
        kept = asyncio.run(wait_for_a_failure())
        assert [each() for each in kept] == [None, None]
    finally:
        gc.enable()
