import asyncio
import threading

from service.http.waiting import LITTLE, compute


def test_much_is_computed_on_another_thread_than_the_event_loop():
    async def run():
        return [await compute(threading.get_ident, size) for size in (LITTLE, LITTLE + 1)]

    little, much = asyncio.run(run())
    assert little == threading.get_ident() != much
