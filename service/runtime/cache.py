"""The KV cache: keys and values of the live rows, in memory that the step graph updates in place.

An SSRU decoder has one state in the place of its own keys and values: one head of d_model, at one
position that each step overwrites.

Axes: L decoder layers, B sources, W rows per source, R = B x W rows, H heads, S source length,
T cache capacity, D head_dim (d_qk of keys, d_v of values).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from service.arrays import CacheArray, IntArray
from service.bundle.manifest import Config
from service.runtime.outputs import Outputs
from service.runtime.target_lists import TargetList

SOURCE_STEP, TARGET_STEP = 8, 16  # capacity for S and T grows by this many positions
UNLIMITED = 1 << 62  # positions that a state has room for
FEWEST_ROWS = 8
CacheType = type[np.float32] | type[np.float16]
KEPT_BYTES = 64 << 20  # never freed: allocating them again takes longer than a step


class Cross(Protocol):
    """A CrossCache, wherever it lies."""

    @property
    def keys_values(self) -> list[CacheArray]: ...
    @property
    def source_length(self) -> IntArray: ...
    def pick(self, sources: Sequence[int]) -> "Cross": ...


@dataclass(frozen=True, slots=True)
class CrossCache:
    """Cross-attention keys and values of B sources: key and value of each decoder layer in turn,
    (B, H, S, D), and the valid length of each source, (B,). `listed` are the tokens on the
    shortlist of each, if the model has shortlists."""

    keys_values: list[CacheArray]
    source_length: IntArray
    listed: Sequence[IntArray] = ()

    def pick(self, sources: Sequence[int]) -> "CrossCache":
        """Return a copy of these sources, cut to the longest of them."""
        source_length = self.source_length[sources]
        longest = source_length.max()
        arrays = [array[sources, :, :longest] for array in self.keys_values]
        listed = [self.listed[i] for i in sources] if self.listed else ()
        return CrossCache(arrays, source_length, listed)


class Cache:
    """The keys and values of one batch. Rows b * W to (b + 1) * W - 1 belong to source b.

    The arrays have room for more rows and positions than are in use, so that rows come and go
    without an allocation each time. Above KEPT_BYTES, memory that is mostly unused is freed.
    `bindings` holds what a session binds to this memory; it is emptied when the memory moves.
    """

    def __init__(
        self,
        config: Config,
        rows_per_source: int,
        dtype: CacheType,
        outputs: Outputs | None = None,
        target_list: TargetList | None = None,
    ) -> None:
        """With `outputs`, rows may have the tokens of their shortlists alone, with a `target_list`
        those of the list."""
        self.outputs = outputs
        self.target_list = target_list
        self.rows_per_source = rows_per_source
        self.sources = 0
        self.position = np.zeros(0, np.int64)  # (R,): where each row's next token goes
        self.bindings: dict[Any, Any] = {}
        self._layers = range(config.num_decoder_layers)
        self._source_length = np.zeros(0, np.int64)  # (>= B,)
        # keys and values of all layers: (L, >= R, H, T, D) and (L, >= B, H, >= S, D)
        self._self, self._cross = (
            [
                np.zeros((config.num_decoder_layers, 0, heads, 0, head_dim), dtype)
                for heads, head_dim in parts.values()
            ]
            for parts in (config.self_parts, config.cross_parts)
        )
        self._recurrent = config.recurrent

    @property
    def listed(self) -> Outputs | TargetList | None:
        """What holds the tokens that alone are scored; None if all are."""
        return self.outputs or self.target_list

    @property
    def source_length(self) -> IntArray:
        """Valid length of each source, (B,)."""
        return self._source_length[: self.sources]

    @property
    def capacity(self) -> int:
        """Positions a row has room for."""
        return UNLIMITED if self._recurrent else self._self[0].shape[3]

    @property
    def self_keys_values(self) -> list[CacheArray]:
        """Key and value, or state, of each layer in turn, (R, H, T, D); views, not copies."""
        rows = self.sources * self.rows_per_source
        return [array[layer, :rows] for layer in self._layers for array in self._self]

    @property
    def cross_keys_values(self) -> list[CacheArray]:
        """Key and value of each layer in turn, (B, H, S, D); views, not copies."""
        return [array[layer, : self.sources] for layer in self._layers for array in self._cross]

    def cross(self, source: int) -> CrossCache:
        """Copy the cross-attention cache of one source."""
        return CrossCache(self.cross_keys_values, self.source_length).pick([source])

    def insert(self, cross: Cross) -> None:
        """Append sources; their rows start at position 0."""
        if self.outputs:
            assert isinstance(cross, CrossCache)  # of the same session's encoder
            if self.outputs.insert(cross.listed):
                self.bindings = {}
        first, count = self.sources, self.sources + len(cross.source_length)
        longest = cross.keys_values[0].shape[2]
        self._make_room(count, max(longest, self.source_length.max(initial=1)), self.capacity)
        self.sources = count
        self.source_length[first:] = cross.source_length
        for array, new in zip(self.cross_keys_values, cross.keys_values, strict=True):
            array[first:, :, :longest] = new
        starts = np.zeros((count - first) * self.rows_per_source, np.int64)
        self.position = np.concatenate([self.position, starts])

    def reorder(self, parents: IntArray) -> None:
        """Let row r continue row parents[r], up to the last position that any row has written.
        parents (R,): the positions of rows stay as they are."""
        move(self._self, parents, self.position.max(initial=0))

    def compact(self, keep: IntArray) -> None:
        """Keep only these sources, in this order."""
        rows = (keep[:, None] * self.rows_per_source + np.arange(self.rows_per_source)).ravel()
        if len(keep):
            self.reorder(rows)
            move(self._cross, keep, self.source_length.max())
            self.source_length[: len(keep)] = self.source_length[keep]
        if self.outputs and self.outputs.compact(keep):
            self.bindings = {}
        self.sources, self.position = len(keep), self.position[rows]
        if self._is_large:
            longest = self.source_length.max(initial=0), self.position.max(initial=0)
            self._make_room(self.sources, *longest)

    def grow(self, capacity: int) -> None:
        """Make room for at least `capacity` positions a row."""
        self._make_room(self.sources, self.source_length.max(initial=0), capacity)

    def _make_room(self, sources: int, source_length: int, capacity: int) -> None:
        """Reallocate the arrays if they are too small, or large and mostly unused."""
        _, held_rows, _, held_capacity, _ = self._self[0].shape
        _, held_sources, _, held_length, _ = self._cross[0].shape
        self_size = (
            self._fit_rows(held_rows, sources * self.rows_per_source),
            1 if self._recurrent else fit_length(held_capacity, capacity, TARGET_STEP),
        )
        cross_size = (
            self._fit_rows(held_sources, sources),
            fit_length(held_length, source_length, SOURCE_STEP),
        )
        if self_size == (held_rows, held_capacity) and cross_size == (held_sources, held_length):
            return
        # Both are allocated before either is replaced: running out of memory must change nothing.
        rows = self.sources * self.rows_per_source
        self_arrays = [resized(array, *self_size, rows) for array in self._self]
        cross_arrays = [resized(array, *cross_size, self.sources) for array in self._cross]
        self.bindings, self._self, self._cross = {}, self_arrays, cross_arrays
        self._source_length = np.resize(self._source_length, cross_size[0])

    @property
    def _is_large(self) -> bool:
        return sum(array.nbytes for array in (*self._self, *self._cross)) > KEPT_BYTES

    def _fit_rows(self, held: int, needed: int) -> int:
        """Return how many rows to hold. If `held` is too few: twice `held`, which avoids a copy at
        every newcomer of a growing batch, or `needed` if that is more. If it is far too many:
        `needed`."""
        if needed > held:
            return max(needed, 2 * held)
        too_many = held > 4 * max(needed, FEWEST_ROWS) and self._is_large
        return needed if too_many else held


def fit_length(held: int, needed: int, step: int) -> int:
    """Return `needed` rounded up to a multiple of `step`, or `held` if 1 to 2 times as large."""
    rounded = -(-needed // step) * step
    return held if rounded <= held <= 2 * max(rounded, step) else rounded


def resized(array: CacheArray, rows: int, length: int, used: int) -> CacheArray:
    """Return `array` (L, rows, H, length, D) itself if it has that size, else a copy of its first
    `used` rows that is cut or padded with zeros. Unused rows may take memory too: NumPy asks for
    huge pages."""
    layers, held_rows, heads, held_length, head_dim = array.shape
    if (held_rows, held_length) == (rows, length):
        return array
    new = np.zeros((layers, rows, heads, length, head_dim), array.dtype)
    length = min(length, held_length)
    new[:, :used, :, :length] = array[:, :used, :, :length]
    return new


def move(arrays: Sequence[CacheArray], order: IntArray, length: int) -> None:
    """Replace each row i (axis 1) by row order[i], in the first `length` positions, in place.

    Rows that stay are not copied.
    """
    moved = np.flatnonzero(order != np.arange(len(order)))
    if not len(moved):
        return
    for array in arrays:
        array[:, moved, :, :length] = array[:, order[moved], :, :length]
