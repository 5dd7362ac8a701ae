"""Keys and values of the live rows, in memory that the step graph reads and writes in place.

Axes: B sources, W rows a source, R = B x W rows, S source length, T cache capacity, H heads, D the
width of a head: d_qk of keys, d_v of values.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.bundle import Config

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
Cross = list[FloatArray]  # key and value of each decoder layer in turn, (H, S, D)

LENGTH_STEP = 16  # positions by which room for S and T is made
FEWEST_ROWS = 8
KEPT = 64 << 20  # bytes that are never given back: new memory costs more than a step


class Encoded(NamedTuple):
    """One source, encoded: memory (S, M), and what cross-attention reads of it."""

    memory: FloatArray
    cross: Cross


class Cache:
    """Rows r * width to (r + 1) * width - 1 belong to source r.

    There is room for more rows and positions than are in use, so that rows come and go without a
    new allocation each time; beyond KEPT it is given back when half of it would do. `bindings`
    are what a session ties to the memory of so many rows; they go when the memory moves.
    """

    def __init__(self, config: Config, width: int) -> None:
        self.width = width
        self.sources = 0
        self._source_length = np.zeros(0, np.int64)  # (>= B,)
        self.position = np.zeros(0, np.int64)  # (R,): where each row's next token goes
        empty = [
            np.zeros((0, config.num_heads, 0, width), np.float32)
            for width in (config.d_qk, config.d_v)
        ]
        self._self = empty * config.num_decoder_layers  # (>= R, H, T, D)
        self._cross = empty * config.num_decoder_layers  # (>= B, H, >= S, D)
        self.bindings: dict[Any, Any] = {}

    @property
    def source_length(self) -> IntArray:
        """(B,)"""
        return self._source_length[: self.sources]

    @property
    def capacity(self) -> int:
        """Positions a row has room for."""
        return self._self[0].shape[2]

    @property
    def self_keys_values(self) -> list[FloatArray]:
        """Key and value of each layer in turn, (R, H, T, D)."""
        return [array[: self.sources * self.width] for array in self._self]

    @property
    def cross_keys_values(self) -> list[FloatArray]:
        """Key and value of each layer in turn, (B, H, S, D)."""
        return [array[: self.sources] for array in self._cross]

    def cross(self, source: int) -> Cross:
        """A copy of what one source's rows read, without padding."""
        return [array[source, :, : self.source_length[source]].copy() for array in self._cross]

    @property
    def _written(self) -> list[FloatArray]:
        """What any row has written of its keys and values."""
        longest = self.position.max(initial=0)
        return [array[:, :, :longest] for array in self._self]

    def insert(self, crosses: Sequence[Cross]) -> None:
        """Append sources; their rows start at position 0."""
        new = [cross[0].shape[1] for cross in crosses]
        longest = max(*new, self.source_length.max(initial=1))
        first, count = self.sources, self.sources + len(new)
        self._make_room(count, longest, self.capacity)
        self.sources = count
        self.source_length[first:] = new
        for i, cross in enumerate(crosses, first):
            for array, part in zip(self._cross, cross, strict=True):
                array[i, :, : part.shape[1]] = part
        starts = np.zeros(len(crosses) * self.width, np.int64)
        self.position = np.concatenate([self.position, starts])

    def reorder(self, parents: IntArray) -> None:
        """(R,): row r goes on from row parents[r] of the same source."""
        move(self._written, parents)
        self.position = self.position[parents]

    def compact(self, keep: IntArray) -> None:
        """Only these sources stay, in this order."""
        rows = (keep[:, None] * self.width + np.arange(self.width)).ravel()
        move(self._written, rows)
        move(self._cross, keep)
        self.source_length[: len(keep)] = self.source_length[keep]
        self.sources, self.position = len(keep), self.position[rows]
        if self._is_large:
            longest = self.source_length.max(initial=0), self.position.max(initial=0)
            self._make_room(self.sources, *longest)

    def grow(self, capacity: int) -> None:
        """Room for at least `capacity` positions a row."""
        self._make_room(self.sources, self.source_length.max(initial=0), capacity)

    def _make_room(self, sources: int, source_length: int, capacity: int) -> None:
        held, rows = self._cross[0].shape, sources * self.width
        own = self._fit_rows(len(self._self[0]), rows), fit_length(self.capacity, capacity)
        cross = self._fit_rows(held[0], sources), fit_length(held[2], source_length)
        if own == self._self[0].shape[:3:2] and cross == held[:3:2]:
            return
        own_memory = [resized(array, *own) for array in self._self]
        cross_memory = [resized(array, *cross) for array in self._cross]
        self.bindings, self._self, self._cross = {}, own_memory, cross_memory
        self._source_length = np.resize(self._source_length, cross[0])

    @property
    def _is_large(self) -> bool:
        return sum(array.nbytes for array in (*self._self, *self._cross)) > KEPT

    def _fit_rows(self, held: int, needed: int) -> int:
        """The next number of rows: twice what is needed when it is too few or far too many."""
        too_many = held > 4 * max(needed, FEWEST_ROWS) and self._is_large
        return held if needed <= held and not too_many else 2 * needed


def fit_length(held: int, needed: int) -> int:
    rounded = -(-needed // LENGTH_STEP) * LENGTH_STEP
    return held if rounded <= held <= 2 * max(rounded, LENGTH_STEP) else rounded


def resized(array: FloatArray, rows: int, length: int) -> FloatArray:
    """`array` (rows, H, length, D) itself if it has that size, else a copy of what fits."""
    if array.shape[0] == rows and array.shape[2] == length:
        return array
    new = np.zeros((rows, array.shape[1], length, array.shape[3]), array.dtype)
    rows, length = min(rows, array.shape[0]), min(length, array.shape[2])
    new[:rows, :, :length] = array[:rows, :, :length]
    return new


def move(arrays: Sequence[FloatArray], order: IntArray) -> None:
    """In place: row i becomes what row order[i] was. Rows that stay are not copied."""
    moved = np.flatnonzero(order != np.arange(len(order)))
    for array in arrays if len(moved) else ():
        array[moved] = array[order[moved]]
