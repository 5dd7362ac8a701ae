import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.scheduler import MAX_LOGITS_BYTES, Job, JobSize, PassSize, Scheduler
from service.errors import PassFailed
from service.wire import Answer, Entry

Sizes = st.lists(
    st.builds(
        lambda source, rows, target: JobSize(source, rows, source + target),
        st.integers(1, 60),
        st.sampled_from([1, 1, 2, 5]),
        st.integers(0, 60),
    ),
    max_size=30,
)
Budget = st.integers(1, 2000)
SCHEDULER = Scheduler(
    max_batch_tokens=10**6,
    max_pass_tokens=10**6,
    max_logits_bytes=10**9,
    target_vocab_size=32,
)


def scheduler(**changed):
    return dataclasses.replace(SCHEDULER, **changed)


def held(sizes):
    """Padded positions: sources with equally many rows are padded to the longest of them."""
    counts = {size.rows for size in sizes}
    batches = [[size for size in sizes if size.rows == count] for count in counts]
    return sum(len(b) * b[0].rows * max(size.positions for size in b) for b in batches)


@given(waiting=Sizes, running=Sizes, batch=Budget, one_pass=Budget)
def test_admission_fills_its_budgets_of_padded_positions(waiting, running, batch, one_pass):
    def fits(count):
        new = waiting[:count]
        encoded = count * max(s.source for s in new) * (2 if running else 1)
        decoded = held([*running, *new])
        return (count == 1 or encoded <= one_pass) and (
            decoded <= batch or (count == 1 and not running)
        )

    admitted = scheduler(max_batch_tokens=batch, max_pass_tokens=one_pass).admit(waiting, running)
    assert admitted <= len(waiting)
    assert admitted == 0 or fits(admitted)
    if admitted < len(waiting):
        assert not fits(admitted + 1)


@given(waiting=Sizes, running=Sizes, vocabulary=st.integers(1, 60_000), rows=st.integers(1, 99))
def test_rows_that_run_together_fit_the_budget_for_their_logits(waiting, running, vocabulary, rows):
    """A step computes a float32 logit for every row and token."""

    def fits(count):
        together = [*running, *waiting[:count]]
        return sum(size.rows for size in together) * vocabulary * 4 <= budget

    budget = rows * vocabulary * 4
    limits = {"max_logits_bytes": budget, "target_vocab_size": vocabulary}
    admitted = scheduler(**limits).admit(waiting, running)
    assert admitted == 0 or fits(admitted) or (not running and admitted == 1)
    assert admitted == len(waiting) or not fits(admitted + 1)


@pytest.mark.parametrize(("vocabulary", "least", "most"), [(32, 4096, 4096), (58_000, 1000, 1200)])
def test_a_large_vocabulary_limits_the_rows_of_a_model(vocabulary, least, most):
    """A small one leaves that to the other budgets."""
    limits = {"max_logits_bytes": MAX_LOGITS_BYTES, "target_vocab_size": vocabulary}
    rows = [JobSize(1, 1, 2)] * 4096
    assert least <= scheduler(**limits).admit(rows, []) <= most


@given(waiting=Sizes.filter(bool), batch=Budget, one_pass=Budget, logits=Budget)
def test_an_idle_worker_always_takes_something(waiting, batch, one_pass, logits):
    limits = {"max_pass_tokens": one_pass, "max_logits_bytes": logits}
    assert scheduler(max_batch_tokens=batch, **limits).admit(waiting, []) >= 1


@given(waiting=Sizes, budget=Budget, cost=st.integers(1, 70))
def test_a_position_that_costs_more_makes_a_pass_smaller(waiting, budget, cost):
    admitted = scheduler(max_pass_tokens=budget, pass_cost=cost).admit(waiting, [])
    assert admitted == scheduler(max_pass_tokens=budget // cost).admit(waiting, [])


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=30), budget=st.integers(1, 400))
def test_a_pass_takes_as_many_as_its_budget_holds(sizes, budget):
    passes = [PassSize(positions, 0) for positions in sizes]
    count = scheduler(max_pass_tokens=budget).one_pass(passes, delays=False)
    assert count == 1 or count * max(sizes[:count]) <= budget
    assert count == len(sizes) or (count + 1) * max(sizes[: count + 1]) > budget
    assert scheduler(max_pass_tokens=2 * budget).one_pass(passes, delays=True) == count


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=30), rows=st.integers(1, 400))
def test_a_pass_that_scores_fits_the_budget_for_its_logits(sizes, rows):
    """Scoring computes a float32 logit for every position of a target and every token."""
    limits = {"max_logits_bytes": 4 * 58_000 * rows, "target_vocab_size": 58_000}
    passes = [PassSize(2 * scored, scored) for scored in sizes]
    count = scheduler(max_pass_tokens=10**6, **limits).one_pass(passes, delays=False)
    assert count == 1 or count * max(sizes[:count]) <= rows
    assert count == len(sizes) or (count + 1) * max(sizes[: count + 1]) > rows


@pytest.mark.parametrize(
    "end",
    [
        lambda job: job.result.cancel(),
        lambda job: job.finish(Answer()),
        lambda job: job.finish(PassFailed("it failed")),
        lambda job: (job.finish(Answer()), job.result.cancel()),
        lambda job: (job.result.cancel(), job.finish(Answer())),
    ],
)
def test_a_job_is_abandoned_once_it_has_an_outcome(end):
    job = Job(Entry(np.array([5, 6])))
    assert not job.abandoned
    end(job)
    assert job.abandoned
    assert job.result.done()
