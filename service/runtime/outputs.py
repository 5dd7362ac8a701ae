"""The rows of the output projection for the tokens that the sources of a batch may have.

One product with the tokens of all sources serves the batch, whose size is that of the vocabulary
at most. A bias of -inf takes away from each source what is not on its own shortlist, so its answer
does not depend on the others.
"""

from collections.abc import Callable, Sequence

import numpy as np

from service.arrays import FloatArray, IntArray

PADDED = 128  # columns are held in multiples of this: as many candidates as a search may ask for
SPARE = 4  # the columns that are held may be this many times as many as are needed
Gather = Callable[[IntArray], tuple[FloatArray, FloatArray]]  # ids (N,) -> rows (N, M), biases (N,)


class Outputs:
    """Axes: B sources, U columns: a token of some source each, or none; V vocabulary, M d_model."""

    def __init__(self, gather: Gather, d_model: int, vocab_size: int) -> None:
        self.tokens = np.zeros(0, np.int64)  # (U,): 0 where there is none
        self.rows = np.zeros((0, d_model), np.float32)  # (U, M)
        self._gather = gather
        self._column = np.full(vocab_size, -1)  # (V,): of each token; -1: none
        self._used = 0  # columns that have a token: the first ones
        self._bias = np.zeros(0, np.float32)  # (U,)
        self._of_source = np.zeros((0, 0), np.float32)  # (>= B, U)
        self._listed: list[IntArray] = []  # of each source

    @property
    def biases(self) -> FloatArray:
        """The bias of each column for each source, (B, U): -inf where it may not have the token."""
        return self._of_source[: len(self._listed)]

    def insert(self, listed: Sequence[IntArray]) -> bool:
        """Append sources that may have these tokens. Return whether the memory has moved."""
        first = len(self._listed)
        self._listed += listed
        if not first:
            self._forget()
        new = self._unknown(listed)
        if self._used + len(new) > len(self.tokens) or self._is_sparse:
            self._rebuild()
            return True
        self._add(new)
        moved = self._make_room()
        self._fill(first)
        return moved

    def compact(self, keep: IntArray) -> bool:
        """Keep only these sources, in this order. Return whether the memory has moved."""
        moved = np.flatnonzero(keep != np.arange(len(keep)))
        self._of_source[moved] = self._of_source[keep[moved]]
        self._listed = [self._listed[i] for i in keep.tolist()]
        if not (self._listed and self._is_sparse):
            return False
        self._rebuild()
        return True

    def scatter(self, logits: FloatArray) -> FloatArray:
        """Return logits of all tokens (R, V) from those of the columns (R, U)."""
        found = np.full((len(logits), len(self._column)), -np.inf, np.float32)
        found[:, self.tokens[: self._used]] = logits[:, : self._used]
        return found

    @property
    def _is_sparse(self) -> bool:
        """Return whether most columns cannot be needed by the sources that are left."""
        needed = sum(map(len, self._listed))
        return len(self.tokens) > SPARE * max(needed, PADDED)

    def _unknown(self, listed: Sequence[IntArray]) -> IntArray:
        """Return those of these tokens that have no column."""
        tokens = np.unique(np.concatenate(listed)) if len(listed) > 1 else listed[0]
        return tokens[self._column[tokens] < 0]

    def _forget(self) -> None:
        self._column[self.tokens[: self._used]] = -1
        self._used = 0

    def _rebuild(self) -> None:
        """Give columns to the tokens of all sources, and to no others, with room for a few more."""
        self._forget()
        tokens = self._unknown(self._listed)
        spare = len(tokens) // 4 if len(self._listed) > 1 else 0
        columns = -(-(len(tokens) + spare) // PADDED) * PADDED
        self.tokens = np.zeros(columns, np.int64)
        self.rows = np.zeros((columns, self.rows.shape[1]), np.float32)
        self._bias = np.full(columns, -np.inf, np.float32)
        self._of_source = np.zeros((0, columns), np.float32)
        self._add(tokens)
        self._make_room()
        self._fill(0)

    def _add(self, tokens: IntArray) -> None:
        if not len(tokens):
            return
        columns = slice(self._used, self._used + len(tokens))
        self.rows[columns], self._bias[columns] = self._gather(tokens)
        self.tokens[columns] = tokens
        self._column[tokens] = np.arange(columns.start, columns.stop)
        self._used = columns.stop

    def _make_room(self) -> bool:
        """Make room for the biases of all sources. Return whether the memory has moved."""
        held, needed = len(self._of_source), len(self._listed)
        if needed <= held:
            return False
        new = np.empty((max(needed, 2 * held), len(self.tokens)), np.float32)
        new[:held] = self._of_source
        self._of_source = new
        return True

    def _fill(self, first: int) -> None:
        """Write the biases of all sources from `first` on."""
        for source in range(first, len(self._listed)):
            row, columns = self._of_source[source], self._column[self._listed[source]]
            row.fill(-np.inf)
            row[columns] = self._bias[columns]
