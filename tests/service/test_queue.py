import asyncio

import numpy as np

from service.entry import Entry
from service.queue import Queue
from service.scheduler import Scheduler

SCHEDULER = Scheduler(max_queue=300, max_batch_tokens=4096, max_pass_tokens=4096)


def entries(count):
    return [Entry(source_ids=np.array([4, 5])) for _ in range(count)]


def test_what_nobody_waits_for_any_more_takes_no_share_and_no_place():
    """Wherever in the queue it stands."""

    async def run():
        queue, left = Queue(SCHEDULER, 2), entries(200)
        queue.put(wanted := entries(8))
        queue.put(left)
        for each in left:
            each.result.cancel()
        queue.put(more := entries(292))
        first = queue.take(0, [], busy=False)
        assert first == [*wanted, *more][:150]
        assert queue.take(1, [], busy=False) == [*wanted, *more][150:]

    asyncio.run(run())


def test_few_are_shared_out_too():
    async def run():
        queue = Queue(SCHEDULER, 2)
        queue.put(wanted := entries(3))
        queue.put(left := entries(9))
        for each in left:
            each.result.cancel()
        assert queue.take(0, [], busy=False) == wanted[:2]
        assert queue.take(1, [], busy=False) == wanted[2:]

    asyncio.run(run())
