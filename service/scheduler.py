"""Which entries run together. Pure policy: it sees how many positions each entry may come to hold,
source and target together, and no tensor, queue or clock.

Rows of a batch are padded to the longest, so budgets are in padded positions. In a pass that is no
step a position may cost more than one: additive and Gaussian scores hold a vector for every pair.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.errors import Overloaded


@dataclass(frozen=True, slots=True)
class Scheduler:
    max_queue: int
    max_batch_tokens: int
    max_pass_tokens: int
    pass_cost: int = 1

    def check_queue(self, waiting: int, new: int) -> None:
        """A request is queued whole or not at all. Raises Overloaded if it does not fit."""
        if waiting + new > self.max_queue:
            raise Overloaded(
                f"{waiting} sources wait already and {new} more were sent; the limit is"
                f" {self.max_queue}"
            )

    def admit(self, waiting: Iterable[int], running: Sequence[int]) -> int:
        """How many of the first waiting may be encoded now and then decoded with the running.

        An entry larger than a budget runs alone.
        """
        longest, count = max(running, default=0), len(running)
        longest_new = admitted = 0
        for tokens in waiting:
            longest, longest_new = max(longest, tokens), max(longest_new, tokens)
            held, encoded = longest * (count + admitted + 1), longest_new * (admitted + 1)
            fits = held <= self.max_batch_tokens and self._fits_a_pass(encoded)
            if not fits and count + admitted > 0:
                break
            admitted += 1
        return admitted

    def one_pass(self, entries: Iterable[int]) -> int:
        """How many of the first entries one pass that is no step may hold; one at least."""
        longest = count = 0
        for tokens in entries:
            longest = max(longest, tokens)
            if count and not self._fits_a_pass(longest * (count + 1)):
                break
            count += 1
        return count

    def _fits_a_pass(self, positions: int) -> bool:
        return positions * self.pass_cost <= self.max_pass_tokens
