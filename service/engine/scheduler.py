"""Decide which jobs run together. A pure policy: it sees how many rows and positions each job
may come to hold, but no tensor, queue or clock.

Rows of a batch are padded to the longest, so budgets count padded positions. In an encoder or
teacher-forcing pass a position may count several times: additive and Gaussian scores hold a vector
for every pair of positions.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_LOGITS_BYTES = 256 << 20  # of all workers; a step allocates once or twice as much more
DELAY = 2  # weight of a position in a pass that delays rows being decoded


class JobSize(NamedTuple):
    """Positions of a source; the rows that decode it; and the most positions of one of these rows,
    source and target together."""

    source: int
    rows: int
    positions: int


class PassSize(NamedTuple):
    """Positions of a job in a teacher-forcing pass, and how many of them get logits: those of a
    target that is scored."""

    positions: int
    scored: int


@dataclass(slots=True)
class Held:
    """Rows that a worker holds, by rows per source. Jobs with the same number are one batch, so
    their rows are padded to the longest of them."""

    rows: dict[int, int] = field(default_factory=dict[int, int])
    longest: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, size: JobSize) -> None:
        self.rows[size.rows] = self.rows.get(size.rows, 0) + size.rows
        self.longest[size.rows] = max(self.longest.get(size.rows, 0), size.positions)

    @property
    def positions(self) -> int:
        return sum(rows * self.longest[per_source] for per_source, rows in self.rows.items())


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The budgets of a model, per worker unless noted, and which jobs fit into them."""

    max_batch_tokens: int  # padded positions that are decoded
    max_pass_tokens: int  # padded positions of one encoder or teacher-forcing pass
    max_logits_bytes: int  # float32 logits of a step (every row) or a scoring pass (every position)
    target_vocab_size: int
    pass_cost: int = 1  # how many times each position of a pass counts

    def admit(self, waiting: Iterable[JobSize], running: Iterable[JobSize]) -> int:
        """Return how many of the first waiting jobs may be encoded now and then decoded along with
        the running ones. A job that is too large to be decoded with others runs alone. A pass
        encodes at least one job, and few if it delays rows that wait for their next token."""
        held = Held()
        for size in running:
            held.add(size)
        delays, admitted, longest_source = bool(held.rows), 0, 0
        for size in waiting:
            held.add(size)
            longest_source = max(longest_source, size.source)
            encoded = longest_source * (admitted + 1)
            if admitted and not self._fits_a_pass(encoded, delays):
                break
            if not self._can_decode(held) and (delays or admitted):
                break
            admitted += 1
        return admitted

    def one_pass(self, sizes: Iterable[PassSize], delays: bool) -> int:
        """Return how many of the first jobs one teacher-forcing pass may hold: at least one, and
        few if the pass delays rows that wait for their next token."""
        longest = longest_scored = count = 0
        for size in sizes:
            longest = max(longest, size.positions)
            longest_scored = max(longest_scored, size.scored)
            fits = self._fits_a_pass(longest * (count + 1), delays)
            if count and not (fits and self._fit_logits(longest_scored * (count + 1))):
                break
            count += 1
        return count

    def _can_decode(self, held: Held) -> bool:
        rows = sum(held.rows.values())
        return held.positions <= self.max_batch_tokens and self._fit_logits(rows)

    def _fit_logits(self, rows: int) -> bool:
        return 4 * rows * self.target_vocab_size <= self.max_logits_bytes

    def _fits_a_pass(self, positions: int, delays: bool) -> bool:
        cost = self.pass_cost * (DELAY if delays else 1)
        return positions * cost <= self.max_pass_tokens
