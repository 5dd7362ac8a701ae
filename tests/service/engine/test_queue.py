import dataclasses

import numpy as np

from service.engine.messages import Entry
from service.engine.queue import Queue
from service.engine.scheduler import Scheduler
from service.search.options import SearchOptions

SCHEDULER = Scheduler(
    max_queue=300,
    max_batch_tokens=4096,
    max_pass_tokens=4096,
    max_logits_bytes=1 << 20,
    target_vocab_size=32,
)


def entries(count, beam_size=1):
    search = SearchOptions(max_new_tokens=9, beam_size=beam_size)
    return [Entry(np.array([4, 5]), search) for _ in range(count)]


def test_abandoned_entries_take_no_share_and_no_room():
    """At any place in the queue."""
    queue, left = Queue(SCHEDULER, 2), entries(200)
    queue.put(wanted := entries(8))
    queue.put(left)
    for each in left:
        each.result.cancel()
    queue.put(more := entries(292))
    first = queue.take(0, [], busy=False)
    assert first == [*wanted, *more][:150]
    assert queue.take(1, [], busy=False) == [*wanted, *more][150:]


def test_many_rows_are_shared_out():
    queue = Queue(SCHEDULER, 2)
    queue.put(wanted := entries(12))
    queue.put(left := entries(9))
    for each in left:
        each.result.cancel()
    assert queue.take(0, [], busy=False) == wanted[:6]
    assert queue.take(1, [], busy=False) == wanted[6:]


def test_a_few_rows_gather_at_the_worker_that_decodes_most():
    queue = Queue(SCHEDULER, 2)
    queue.put(first := entries(12))
    held = [queue.take(worker, [], busy=False) for worker in (0, 1)]
    assert held == [first[:6], first[6:]]
    assert queue.take(1, held[1][1:], busy=True) == []  # one row has ended
    queue.put(more := entries(3))
    assert queue.take(1, held[1][1:], busy=True) == []
    assert queue.take(0, held[0], busy=True) == more


def test_a_few_rows_go_to_one_worker_together():
    queue = Queue(SCHEDULER, 2)
    queue.put(wanted := entries(11))
    assert queue.take(1, [], busy=False) == wanted


def test_a_few_rows_do_not_wait_for_a_worker_that_is_teacher_forcing():
    queue = Queue(SCHEDULER, 2)
    queue.put(entries(2))
    assert len(queue.take(0, [], busy=False)) == 2
    queue.put(more := entries(1))
    assert queue.take(1, [], busy=True) == []
    queue.occupy(0)
    assert queue.take(1, [], busy=True) == more


def test_a_few_rows_do_not_wait_for_a_worker_without_room():
    queue = Queue(dataclasses.replace(SCHEDULER, max_batch_tokens=24), 2)
    queue.put(entries(2))
    held = queue.take(0, [], busy=False)
    assert len(held) == 2
    queue.put(more := entries(1))
    assert queue.take(1, [], busy=True) == []
    assert queue.take(0, held, busy=True) == []
    assert queue.take(1, [], busy=True) == more


def test_a_worker_that_decodes_many_rows_leaves_new_ones_to_the_others():
    queue = Queue(SCHEDULER, 2)
    queue.put(entries(4, beam_size=4))
    held = [queue.take(worker, [], busy=False) for worker in (0, 1)]
    many = [*held[0], *held[1]]
    assert queue.take(0, many, busy=True) == []
    assert queue.take(1, [], busy=True) == []
    queue.put(more := entries(1))
    assert queue.take(0, many, busy=True) == []
    assert queue.take(1, [], busy=True) == more
