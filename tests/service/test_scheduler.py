from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import Overloaded
from service.scheduler import Scheduler


@dataclass(eq=False)
class Waiting:
    tokens: int
    abandoned: bool = False


def scheduler(queue=100, batch=100, one_pass=100):
    return Scheduler[Waiting](queue, batch, one_pass)


def test_a_request_is_queued_whole_or_refused_whole():
    queue = scheduler(queue=3)
    queue.put([Waiting(1), Waiting(1)])
    with pytest.raises(Overloaded, match=r"2 sources wait already and 2 more .* limit is 3"):
        queue.put([Waiting(1), Waiting(1)])
    assert len(queue.waiting) == 2
    queue.put([Waiting(1)])
    assert len(queue.waiting) == 3


@given(
    sizes=st.lists(st.integers(1, 60), max_size=30),
    held=st.lists(st.integers(1, 60), max_size=5),
    batch=st.integers(1, 200),
    one_pass=st.integers(1, 200),
)
def test_admission_keeps_order_and_budgets_and_never_stands_still(sizes, held, batch, one_pass):
    queue, running = scheduler(1000, batch, one_pass), [Waiting(size) for size in held]
    entries = [Waiting(size) for size in sizes]
    queue.put(entries)
    admitted = queue.admit(running)
    assert [*admitted, *queue.waiting] == entries
    if admitted and (len(admitted) > 1 or running):
        assert sum(e.tokens for e in [*running, *admitted]) <= batch
        assert len(admitted) * max(e.tokens for e in admitted) <= one_pass
    assert admitted or running or not entries


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=30), one_pass=st.integers(1, 200))
def test_a_pass_takes_the_first_entries_within_its_budget(sizes, one_pass):
    entries = [Waiting(size) for size in sizes]
    chosen = scheduler(one_pass=one_pass).one_pass(entries)
    assert chosen == entries[: len(chosen)]
    assert len(chosen) >= 1
    assert len(chosen) == 1 or len(chosen) * max(sizes[: len(chosen)]) <= one_pass


def test_the_abandoned_leave_the_queue():
    queue, stays = scheduler(), Waiting(1)
    queue.put([Waiting(1, abandoned=True), stays, Waiting(1, abandoned=True)])
    queue.remove_abandoned()
    assert list(queue.waiting) == [stays]
