"""Waiting for work beside the event loop."""

import asyncio
import threading

from service.http.waiting import LITTLE, compute


def test_only_large_work_leaves_the_thread_of_the_event_loop():
    async def run():
        return [await compute(threading.get_ident, size) for size in (LITTLE, LITTLE + 1)]

    little, much = asyncio.run(run())
    assert little == threading.get_ident() != much
