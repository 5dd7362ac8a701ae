"""Waiting for work beside the event loop."""

import asyncio
import math
import threading
import time
from types import SimpleNamespace

from anyio import CapacityLimiter
from fastapi import Request

from service.http.waiting import LARGE, LITTLE, Deadline, compute, compute_reading
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
