"""Which of the requests that wait come too late because of others, by counting every row."""

import math
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from service.engine.queue import LATE, Ahead, Waiting
from service.pace import FEW

ROWS = st.integers(1, 40) | st.integers(1, 4096)
REQUESTS = st.lists(st.tuples(ROWS, ROWS, st.integers(0, 300) | st.just(math.inf)), max_size=24)


def rows_until(requests, which):
    """Return how many rows are taken until the last one of a request, if all others that are in its
    last turn come before it."""
    turns = requests[which].all_rows
    return sum(min(each.all_rows, turns) for each in requests)


def is_delayed(request, earlier, row_seconds, now):
    """Return whether one of the earlier requests comes in time without the request, and not with
    it."""
    return request.all_rows > FEW and any(
        row_seconds * rows_until(earlier, i) <= each.until - now
        and LATE * row_seconds * rows_until([*earlier, request], i) > each.until - now
        for i, each in enumerate(earlier)
    )


@given(REQUESTS, st.sampled_from([0.01, 0.25, 1.0]), st.integers(0, 20))
def test_requests_that_are_counted_one_by_one_are_delayed_by_the_same_others(
    requests, row_seconds, now
):
    """As by requests that are counted together, and by the rule itself: a request is kept only if
    no one before it would be late."""
    kept, ahead = [], Ahead()
    for rows, coming, until in requests:
        request = Waiting(deque(), rows, coming % 50, until)
        before = sum(min(each.all_rows, request.all_rows) for each in kept)
        late = is_delayed(request, kept, row_seconds, now)
        for each in (ahead, Ahead(kept)):
            assert each.rows_before(request.all_rows) == before
            assert each.is_delayed(request, row_seconds, now) == late
        if not late:
            kept.append(request)
            ahead.add(request)
    assert [*ahead.rows] == [each.all_rows for each in kept]
