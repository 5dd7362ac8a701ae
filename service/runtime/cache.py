"""Keys and values of the live rows, in memory that the step graph reads and writes in place.

Axes: B sources, W rows a source, R = B x W rows, S source length, T cache capacity, H heads, D the
width of a head: d_qk of keys, d_v of values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.arrays import FloatArray, IntArray
from service.bundle import Config

SOURCE_STEP, TARGET_STEP = 8, 16  # positions by which room for S and T is made
FEWEST_ROWS = 8
KEPT = 64 << 20  # bytes that are never given back: new memory costs more than a step


@dataclass(frozen=True, slots=True)
class CrossCache:
    """What cross-attention reads of B sources: key and value of each decoder layer in turn, (B, H,
    S, D), and how many of the S positions are a source's own (B,)."""

    keys_values: list[FloatArray]
    source_length: IntArray

    def pick(self, sources: Sequence[int]) -> "CrossCache":
        """A copy of these."""
        source_length = self.source_length[sources]
        longest = source_length.max()
        return CrossCache(
            [array[sources, :, :longest] for array in self.keys_values], source_length
        )


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
        self._layers = range(config.num_decoder_layers)
        self._self, self._cross = (
            [
                np.zeros((config.num_decoder_layers, 0, config.num_heads, 0, width), np.float32)
                for width in (config.d_qk, config.d_v)
            ]
            for _ in range(2)
        )  # keys and values of all layers, (L, >= R, H, T, D) and (L, >= B, H, >= S, D)
        self.bindings: dict[Any, Any] = {}

    @property
    def source_length(self) -> IntArray:
        """(B,)"""
        return self._source_length[: self.sources]

    @property
    def capacity(self) -> int:
        """Positions a row has room for."""
        return self._self[0].shape[3]

    @property
    def self_keys_values(self) -> list[FloatArray]:
        """Key and value of each layer in turn, (R, H, T, D)."""
        rows = self.sources * self.width
        return [array[layer, :rows] for layer in self._layers for array in self._self]

    @property
    def cross_keys_values(self) -> list[FloatArray]:
        """Key and value of each layer in turn, (B, H, S, D)."""
        return [array[layer, : self.sources] for layer in self._layers for array in self._cross]

    def cross(self, source: int) -> CrossCache:
        """What one source's rows read."""
        return CrossCache(self.cross_keys_values, self.source_length).pick([source])

    def insert(self, cross: CrossCache) -> None:
        """Append sources; their rows start at position 0."""
        first, count = self.sources, self.sources + len(cross.source_length)
        longest = cross.keys_values[0].shape[2]
        self._make_room(count, max(longest, self.source_length.max(initial=1)), self.capacity)
        self.sources = count
        self.source_length[first:] = cross.source_length
        for held, new in zip(self.cross_keys_values, cross.keys_values, strict=True):
            held[first:, :, :longest] = new
        starts = np.zeros((count - first) * self.width, np.int64)
        self.position = np.concatenate([self.position, starts])

    def reorder(self, parents: IntArray) -> None:
        """(R,): row r goes on from row parents[r] of the same source."""
        self._move_rows(parents)
        self.position = self.position[parents]

    def compact(self, keep: IntArray) -> None:
        """Only these sources stay, in this order."""
        rows = (keep[:, None] * self.width + np.arange(self.width)).ravel()
        if len(keep):
            self._move_rows(rows)
            move(self._cross, keep, None)
            self.source_length[: len(keep)] = self.source_length[keep]
        self.sources, self.position = len(keep), self.position[rows]
        if self._is_large:
            longest = self.source_length.max(initial=0), self.position.max(initial=0)
            self._make_room(self.sources, *longest)

    def grow(self, capacity: int) -> None:
        """Room for at least `capacity` positions a row."""
        self._make_room(self.sources, self.source_length.max(initial=0), capacity)

    def _move_rows(self, order: IntArray) -> None:
        """What any row has written of its keys and values."""
        move(self._self, order, self.position.max(initial=0))

    def _make_room(self, sources: int, source_length: int, capacity: int) -> None:
        _, held_rows, _, held_capacity, _ = self._self[0].shape
        _, held_sources, _, held_length, _ = self._cross[0].shape
        own = (
            self._fit_rows(held_rows, sources * self.width),
            fit_length(held_capacity, capacity, TARGET_STEP),
        )
        cross = (
            self._fit_rows(held_sources, sources),
            fit_length(held_length, source_length, SOURCE_STEP),
        )
        if own == (held_rows, held_capacity) and cross == (held_sources, held_length):
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


def fit_length(held: int, needed: int, step: int) -> int:
    rounded = -(-needed // step) * step
    return held if rounded <= held <= 2 * max(rounded, step) else rounded


def resized(array: FloatArray, rows: int, length: int) -> FloatArray:
    """`array` (L, rows, H, length, D) itself if it has that size, else a copy of what fits."""
    layers, held_rows, heads, held_length, width = array.shape
    if (held_rows, held_length) == (rows, length):
        return array
    new = np.zeros((layers, rows, heads, length, width), array.dtype)
    rows, length = min(rows, held_rows), min(length, held_length)
    new[:, :rows, :, :length] = array[:, :rows, :, :length]
    return new


def move(arrays: Sequence[FloatArray], order: IntArray, length: int | None) -> None:
    """In place: row i (axis 1) becomes what row order[i] was, in its first `length` positions. Rows
    that stay are not copied."""
    moved = np.flatnonzero(order != np.arange(len(order)))
    for array in arrays if len(moved) else ():
        array[:, moved, :, :length] = array[:, order[moved], :, :length]
