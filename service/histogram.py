"""A histogram that is cheap enough to update at every decoding step, and the buckets of metrics."""

from bisect import bisect_left
from collections.abc import Sequence

# Upper bounds of buckets. Seconds: from a step of a small model to a request that times out.
SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
ROWS = tuple(2.0**power for power in range(13))  # up to 4,096


class Histogram:
    """Counts observations by size. `counts` has one number for each bound, of observations up to it
    and above the one before, and a last one for those above all bounds.

    One thread may observe while another reads: a reader may miss the latest observation.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def __add__(self, other: "Histogram") -> "Histogram":
        """Return the counts of both, which have the same bounds."""
        total = Histogram(self.bounds)
        total.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        total.sum = self.sum + other.sum
        return total
