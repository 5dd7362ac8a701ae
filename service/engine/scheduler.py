"""Which entries run together. Pure policy: it sees how many rows and positions each entry may come
to hold, and no tensor, queue or clock.

Rows of a batch are padded to the longest, so budgets are in padded positions. In a pass that is no
step a position may cost more than one: additive and Gaussian scores hold a vector for every pair.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from service.errors import Overloaded

DELAY = 8  # a position costs so much in a pass for which other rows wait


class Size(NamedTuple):
    """Positions of a source, the rows that decode it, and the most positions of one of them,
    source and target together."""

    source: int
    rows: int
    positions: int


@dataclass(frozen=True, slots=True)
class Scheduler:
    max_queue: int
    max_batch_tokens: int
    max_pass_tokens: int
    pass_cost: int = 1

    def check_queue(self, waiting: int, new: int) -> None:
        """Rows of a request are queued all or none. Raises Overloaded if they do not fit."""
        if waiting + new > self.max_queue:
            raise Overloaded(
                f"{waiting} rows (sources, times their beams or samples) wait already and {new}"
                f" more were sent; the limit is {self.max_queue}"
            )

    def admit(self, waiting: Iterable[Size], running: Iterable[Size]) -> int:
        """How many of the first waiting may be encoded now and then decoded with the running.

        An entry larger than a budget runs alone.
        """
        rows: dict[int, int] = {}  # by width: rows of one width are padded to the longest of them
        longest: dict[int, int] = {}

        def add(size: Size) -> int:
            rows[size.rows] = rows.get(size.rows, 0) + size.rows
            longest[size.rows] = max(longest.get(size.rows, 0), size.positions)
            return sum(count * longest[width] for width, count in rows.items())

        for size in running:
            add(size)
        alone, admitted, longest_source = not rows, 0, 0
        for size in waiting:
            longest_source = max(longest_source, size.source)
            encoded = longest_source * (admitted + 1)
            fits = add(size) <= self.max_batch_tokens and self._fits_a_pass(encoded)
            if not fits and not (alone and admitted == 0):
                break
            admitted += 1
        return admitted

    def one_pass(self, entries: Iterable[int], delays: bool) -> int:
        """How many of the first entries one pass over targets may hold; one at least, and few where
        it delays rows that wait for their next token."""
        longest = count = 0
        for tokens in entries:
            longest = max(longest, tokens)
            positions = longest * (count + 1) * (DELAY if delays else 1)
            if count and not self._fits_a_pass(positions):
                break
            count += 1
        return count

    def _fits_a_pass(self, positions: int) -> bool:
        return positions * self.pass_cost <= self.max_pass_tokens
