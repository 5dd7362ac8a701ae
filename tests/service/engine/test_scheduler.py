import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.scheduler import Scheduler, Size
from service.errors import Overloaded

Sizes = st.lists(
    st.builds(
        lambda source, rows, target: Size(source, rows, source + target),
        st.integers(1, 60),
        st.sampled_from([1, 1, 2, 5]),
        st.integers(0, 60),
    ),
    max_size=30,
)
Budget = st.integers(1, 2000)


def held(sizes):
    """Padded positions: rows of one width are padded to the longest of them."""
    widths = {size.rows for size in sizes}
    batches = [[size for size in sizes if size.rows == width] for width in widths]
    return sum(len(b) * b[0].rows * max(size.positions for size in b) for b in batches)


def test_a_request_is_queued_whole_or_refused_whole():
    scheduler = Scheduler(max_queue=3, max_batch_tokens=1, max_pass_tokens=1)
    scheduler.check_queue(waiting=2, new=1)
    with pytest.raises(Overloaded, match=r"2 rows .* wait already and 2 more .* limit is 3"):
        scheduler.check_queue(waiting=2, new=2)


@given(waiting=Sizes, running=Sizes, batch=Budget, one_pass=Budget)
def test_admission_fills_its_budgets_of_padded_positions(waiting, running, batch, one_pass):
    def fits(count):
        new = waiting[:count]
        return held([*running, *new]) <= batch and count * max(s.source for s in new) <= one_pass

    admitted = Scheduler(9, batch, one_pass).admit(waiting, running)
    assert admitted <= len(waiting)
    if running or admitted > 1:
        assert admitted == 0 or fits(admitted)
    if admitted < len(waiting):
        assert not fits(admitted + 1)


@given(waiting=Sizes.filter(bool), batch=Budget, one_pass=Budget)
def test_an_idle_worker_always_takes_something(waiting, batch, one_pass):
    assert Scheduler(9, batch, one_pass).admit(waiting, []) >= 1


@given(waiting=Sizes, budget=Budget, cost=st.integers(1, 70))
def test_a_position_that_costs_more_makes_a_pass_smaller(waiting, budget, cost):
    admitted = Scheduler(9, 10**6, budget, pass_cost=cost).admit(waiting, [])
    assert admitted == Scheduler(9, 10**6, budget // cost).admit(waiting, [])


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=30), budget=st.integers(1, 400))
def test_a_pass_takes_as_many_as_its_budget_holds(sizes, budget):
    count = Scheduler(9, 9, budget).one_pass(sizes, delays=False)
    assert count == 1 or count * max(sizes[:count]) <= budget
    assert count == len(sizes) or (count + 1) * max(sizes[: count + 1]) > budget
    assert Scheduler(9, 9, 8 * budget).one_pass(sizes, delays=True) == count
