"""The KV cache in the memory of a device, for providers that compute there (docs/adr/0015).

Axes: L decoder layers, B sources, W rows per source, R = B x W rows, H heads, S source length,
T cache capacity, D head_dim (d_qk of keys, d_v of values).
"""

from collections.abc import Sequence
from itertools import zip_longest
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort

from service.arrays import CacheArray, IntArray
from service.bundle.manifest import Config
from service.runtime.cache import (
    SOURCE_STEP,
    TARGET_STEP,
    UNLIMITED,
    CacheType,
    Cross,
    fit_length,
)
from service.runtime.providers import Device, open_graph

# Graphs that move rows (tests/write_move.py)
MOVE: dict[CacheType, Path] = {
    np.float16: Path(__file__).with_name("move_float16.onnx"),
    np.float32: Path(__file__).with_name("move_float32.onnx"),
}


class Block(NamedTuple):
    """The address of one layer's keys or values on the device, and their shape (R, H, T, D)."""

    address: int
    shape: list[int]


class Mover:
    """Moves the rows of keys or values (L, R, H, T, D), without a way through host memory."""

    def __init__(self, device: Device, dtype: CacheType) -> None:
        self.device = device.memory
        self.dtype: CacheType = dtype
        self._graph = open_graph(MOVE[dtype], device.provider)

    def pick(
        self, old: ort.OrtValue, order: IntArray, into: ort.OrtValue | None = None
    ) -> ort.OrtValue:
        """Return rows order[0], order[1], ... of `old`, in the memory of `into` if it is given."""
        return self._run(old, old, order, 0, join=False, into=into)

    def join(
        self,
        old: ort.OrtValue,
        new: ort.OrtValue,
        order: IntArray,
        length: int,
    ) -> ort.OrtValue:
        """Return rows `order` of those of `old` followed by those of `new`, of which each is cut or
        padded with zeros to `length` positions."""
        return self._run(old, new, order, length, join=True)

    def allocate(self, shape: list[int]) -> ort.OrtValue:
        """Return memory for keys or values, which holds anything."""
        return ort.OrtValue.ortvalue_from_shape_and_type(shape, self.dtype, self.device)

    def zeros(self, shape: list[int]) -> ort.OrtValue:
        """Return zeros, copied from the host: for small shapes."""
        return ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, self.dtype), self.device)

    def _run(
        self,
        old: ort.OrtValue,
        new: ort.OrtValue,
        order: IntArray,
        length: int,
        *,
        join: bool,
        into: ort.OrtValue | None = None,
    ) -> ort.OrtValue:
        binding = self._graph.io_binding()
        binding.bind_cpu_input("join", np.array(join))
        binding.bind_cpu_input("order", np.ascontiguousarray(order))
        binding.bind_cpu_input("length", np.array([length]))
        binding.bind_ortvalue_input("old", old)
        binding.bind_ortvalue_input("new", new)
        if into:
            binding.bind_ortvalue_output("moved", into)
        else:
            binding.bind_output("moved", self.device)
        binding.synchronize_inputs()
        self._graph.run_with_iobinding(binding)
        return into or binding.get_outputs()[0]


class DeviceCross:
    """What `service.runtime.cache.CrossCache` holds of B sources, but on a device: keys and values
    (L, B, H, >= S, D), and the valid length of each source, (B,)."""

    def __init__(self, values: list[ort.OrtValue], source_length: IntArray, mover: Mover) -> None:
        self.values = values
        self.source_length = source_length
        self._mover = mover

    @property
    def blocks(self) -> list[Block]:
        """Where key and value of each layer in turn lie."""
        return blocks_of(self.values, self._mover.dtype)

    @property
    def keys_values(self) -> list[CacheArray]:
        """Key and value of each layer in turn, (B, H, S, D), copied to the host."""
        longest = int(self.source_length.max())
        arrays = [value.numpy()[:, :, :, :longest] for value in self.values]
        return [array[layer] for layer in range(len(arrays[0])) for array in arrays]

    def pick(self, sources: Sequence[int]) -> "DeviceCross":
        """Return a copy of these sources, on the device."""
        order = np.array(sources)
        values = [self._mover.pick(value, order) for value in self.values]
        return DeviceCross(values, self.source_length[order], self._mover)


class DeviceCache:
    """The keys and values of one batch, as `service.runtime.cache.Cache` holds them, but on a
    device. Every move makes new values of exactly the rows in use: a device copies its own memory
    in less time than a step takes.

    The capacities for S and T are multiples of SOURCE_STEP and TARGET_STEP, so that the address of
    every layer is a multiple of 16 bytes, as vector instructions want it.
    """

    def __init__(self, config: Config, rows_per_source: int, mover: Mover) -> None:
        self.rows_per_source = rows_per_source
        self.position = np.zeros(0, np.int64)  # (R,): where each row's next token goes
        self.source_length = np.zeros(0, np.int64)  # (B,); replaced, never changed in place
        self.bindings: dict[Any, Any] = {}
        self.device = mover.device
        self.dtype: CacheType = mover.dtype
        self.mover = mover
        self._layers = config.num_decoder_layers
        self._shapes = [*config.self_parts.values()]
        self._recurrent = config.recurrent
        # Keys and values of all layers: (L, R, H, T, D) and (L, B, H, >= S, D); none without rows.
        self._self: list[ort.OrtValue] = []
        self._cross: list[ort.OrtValue] = []
        # What `_self` was before beams were reordered. Both take turns, so that bindings come back.
        self._spare: list[ort.OrtValue] = []

    @property
    def sources(self) -> int:
        return len(self.source_length)

    @property
    def capacity(self) -> int:
        """Positions a row has room for."""
        return UNLIMITED if self._recurrent else length_of(self._self)

    @property
    def self_blocks(self) -> list[Block]:
        """Where key and value, or state, of each layer in turn lie."""
        return blocks_of(self._self, self.dtype)

    @property
    def cross_blocks(self) -> list[Block]:
        """Where key and value of each layer in turn lie."""
        return blocks_of(self._cross, self.dtype)

    @property
    def place(self) -> tuple[Any, ...]:
        """The addresses and shapes of all values: what is bound there suits any cache with them."""
        return tuple((each.data_ptr(), *each.shape()) for each in (*self._self, *self._cross))

    def cross(self, source: int) -> DeviceCross:
        """Copy the cross-attention cache of one source, on the device."""
        return DeviceCross(self._cross, self.source_length, self.mover).pick([source])

    def insert(self, cross: Cross) -> None:
        """Append sources; their rows start at position 0. The first ones are not copied, if they
        have room for S as this cache wants it."""
        assert isinstance(cross, DeviceCross)  # of the same session's encoder
        held, count = len(self.position), len(cross.source_length) * self.rows_per_source
        source_length = np.concatenate([self.source_length, cross.source_length])
        row = [self.mover.zeros([self._layers, 1, heads, 1, size]) for heads, size in self._shapes]
        length = self._fit(max(length_of(self._self), 1))
        starts = np.concatenate([np.arange(held), np.full(count, held)])  # each starts as `row`
        self_values = self._joined(self._self, row, starts, length)
        cross_values = cross.values
        longest = fit_length(length_of(self._cross), int(source_length.max()), SOURCE_STEP)
        if self._cross or length_of(cross_values) != longest:
            every = np.arange(len(source_length))
            cross_values = self._joined(self._cross, cross_values, every, longest)
        self._replace(self_values, cross_values)
        self.source_length = source_length
        self.position = np.concatenate([self.position, np.zeros(count, np.int64)])

    def reorder(self, parents: IntArray) -> None:
        """Let row r continue row parents[r] of the same source; parents (R,)."""
        old = self._self
        pairs = zip_longest(old, self._spare)
        moved = [self.mover.pick(each, parents, spare) for each, spare in pairs]
        self._replace(moved, self._cross)
        self._spare = old
        self.position = self.position[parents]

    def compact(self, keep: IntArray) -> None:
        """Keep only these sources, in this order."""
        rows = (keep[:, None] * self.rows_per_source + np.arange(self.rows_per_source)).ravel()
        position, source_length = self.position[rows], self.source_length[keep]
        if len(keep):
            length = self._fit(max(int(position.max()), 1))
            longest = fit_length(length_of(self._cross), int(source_length.max()), SOURCE_STEP)
            self_values = self._moved(self._self, rows, length)
            self._replace(self_values, self._moved(self._cross, keep, longest))
        else:
            self._replace([], [])
        self.position, self.source_length = position, source_length

    def grow(self, capacity: int) -> None:
        """Make room for at least `capacity` positions a row."""
        wanted = self._fit(capacity)
        if wanted != length_of(self._self):
            rows = np.arange(len(self.position))
            self._replace(self._moved(self._self, rows, wanted), self._cross)

    def _fit(self, needed: int) -> int:
        """Return the positions to hold where at least `needed` are."""
        if self._recurrent:
            return 1
        return fit_length(length_of(self._self), needed, TARGET_STEP)

    def _replace(self, self_values: list[ort.OrtValue], cross_values: list[ort.OrtValue]) -> None:
        """Take new values; they exist by now, so that running out of memory changes nothing."""
        self.bindings, self._self, self._cross = {}, self_values, cross_values
        self._spare = []

    def _joined(
        self, old: list[ort.OrtValue], new: list[ort.OrtValue], order: IntArray, length: int
    ) -> list[ort.OrtValue]:
        """Return rows `order` of the old and the new ones; without old ones, of the new."""
        pairs = zip(old or new, new, strict=True)
        return [self.mover.join(before, after, order, length) for before, after in pairs]

    def _moved(
        self, values: list[ort.OrtValue], order: IntArray, length: int
    ) -> list[ort.OrtValue]:
        """Pick rows, and give them `length` positions."""
        if length == length_of(values):
            return [self.mover.pick(each, order) for each in values]
        return [self.mover.join(each, each, order, length) for each in values]


def blocks_of(values: list[ort.OrtValue], dtype: CacheType) -> list[Block]:
    """Return where key and value, or state, of each layer in turn lie."""
    shapes = [value.shape() for value in values]
    layers = range(shapes[0][0] if shapes else 0)
    return [
        Block(value.data_ptr() + layer * prod(shape) * np.dtype(dtype).itemsize, shape)
        for layer in layers
        for value, (_, *shape) in zip(values, shapes, strict=True)
    ]


def length_of(values: list[ort.OrtValue]) -> int:
    """Return T of keys and values (L, R, H, T, D); 0 if there are none."""
    return values[0].shape()[3] if values else 0
