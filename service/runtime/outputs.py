"""The tokens that the targets of a source may have, and the rows of the output projection for those
that the sources of a batch may have.

One product with the tokens of all sources serves the batch. It is at most as large as that of all
tokens, but for padding. A bias of -inf takes away from each source what is not on its own
shortlist, so its answer does not depend on the others.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np

from service.arrays import FloatArray, IntArray
from service.bundle.files import check_size
from service.bundle.manifest import Config
from service.errors import StartupError
from service.runtime.reference import LARGEST_REFERENCE, read_arrays, reading

PADDED = 128  # columns are held in multiples of this: as many candidates as a search may ask for
SPARE = 4  # the columns that are held may be this many times as many as are needed
Gather = Callable[[IntArray], tuple[FloatArray, FloatArray]]  # ids (N,) -> rows (N, M), biases (N,)


class Shortlists:
    """Axes: V source vocabulary, N listed tokens."""

    def __init__(self, offsets: IntArray, tokens: IntArray, always: IntArray) -> None:
        """Token s of a source (V,) lists tokens[offsets[s]] to tokens[offsets[s + 1] - 1]; every
        source lists `always`."""
        self._offsets, self._tokens, self._always = offsets, tokens, always

    def of(self, source: IntArray, required: Collection[int] = ()) -> IntArray:
        """Return the tokens on the shortlist of a source and those that its target must be able to
        have, in ascending order."""
        bounds = self._offsets[source].tolist(), self._offsets[source + 1].tolist()
        lists = [self._tokens[first:last] for first, last in zip(*bounds, strict=True)]
        more = np.array([*required], np.int64)
        return np.unique(np.concatenate([self._always, more, *lists]))


def read_shortlists(path: Path, config: Config, needed: Sequence[int]) -> Shortlists:
    """Return the shortlists. Raise StartupError if they contradict the vocabularies, or if one may
    lack an id of `needed`."""
    check_size(path, LARGEST_REFERENCE)
    with reading(path, "convert the model again"):
        arrays = read_arrays(path)
        offsets, tokens, always = (
            arrays[name].astype(np.int64) for name in ("offsets", "tokens", "always")
        )
    if not (
        offsets.shape == (config.source_vocab_size + 1,)
        and (np.diff(offsets) >= 0).all()
        and (offsets[0], offsets[-1]) == (0, tokens.size)
    ):
        raise StartupError(
            f"{path}: offsets must be {config.source_vocab_size + 1} numbers that ascend from 0 to"
            f" {tokens.size}, the number of tokens: convert the model again"
        )
    for name, ids in (("tokens", tokens), ("always", always)):
        if ids.ndim != 1 or (
            ids.size and not 0 <= ids.min() <= ids.max() < config.target_vocab_size
        ):
            raise StartupError(
                f"{path}: {name} must be ids below {config.target_vocab_size}: convert the model"
                " again"
            )
    if missing := {*needed}.difference(always.tolist()):
        raise StartupError(
            f"{path}: always lacks {min(missing)}, which ends targets: convert the model again"
        )
    return Shortlists(offsets, tokens, always)


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
        used = slice(self._used)
        return scattered(logits[:, used], self.tokens[used], len(self._column))

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
        most = min(len(tokens) + spare, len(self._column))
        columns = -(-most // PADDED) * PADDED
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


def scattered(logits: FloatArray, tokens: IntArray, vocab_size: int) -> FloatArray:
    """Return logits of all tokens (R, V) from those of some (R, N): -inf for the others."""
    found = np.full((len(logits), vocab_size), -np.inf, np.float32)
    found[:, tokens] = logits
    return found
