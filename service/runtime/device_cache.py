"""The KV cache in the memory of a device, for providers that compute there (docs/adr/0015).

Axes: L decoder layers, B sources, W rows per source, R = B x W rows, H heads, S source length,
T cache capacity, D head_dim (d_qk of keys, d_v of values).
"""

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
    CrossCache,
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

    def pick(self, old: ort.OrtValue, order: IntArray) -> ort.OrtValue:
        """Return rows order[0], order[1], ... of `old`."""
        return self._run(old, old, order, 0, self.device, join=False)

    def join(
        self,
        old: ort.OrtValue,
        new: ort.OrtValue | CacheArray,
        order: IntArray,
        length: int,
        device: str = "",
    ) -> ort.OrtValue:
        """Return rows `order` of those of `old` followed by those of `new`, of which each is cut or
        padded with zeros to `length` positions. `device` is where the result lies, if not here."""
        return self._run(old, new, order, length, device or self.device, join=True)

    def _run(
        self,
        old: ort.OrtValue,
        new: ort.OrtValue | CacheArray,
        order: IntArray,
        length: int,
        device: str,
        *,
        join: bool,
    ) -> ort.OrtValue:
        binding = self._graph.io_binding()
        binding.bind_cpu_input("join", np.array(join))
        binding.bind_cpu_input("order", np.ascontiguousarray(order))
        binding.bind_cpu_input("length", np.array([length]))
        binding.bind_ortvalue_input("old", old)
        if isinstance(new, np.ndarray):
            binding.bind_cpu_input("new", new)
        else:
            binding.bind_ortvalue_input("new", new)
        binding.bind_output("moved", device)
        binding.synchronize_inputs()
        self._graph.run_with_iobinding(binding)
        return binding.get_outputs()[0]


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
        self._mover = mover
        self._layers = config.num_decoder_layers
        self._shapes = [*config.self_parts.values()]
        self._recurrent = config.recurrent
        # Keys and values of all layers: (L, R, H, T, D) and (L, B, H, >= S, D); none without rows.
        self._self: list[ort.OrtValue] = []
        self._cross: list[ort.OrtValue] = []

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
        return self._blocks(self._self)

    @property
    def cross_blocks(self) -> list[Block]:
        """Where key and value of each layer in turn lie."""
        return self._blocks(self._cross)

    def cross(self, source: int) -> CrossCache:
        """Copy the cross-attention cache of one source to the host."""
        source_length, order = self.source_length[[source]], np.array([source])
        length = int(source_length[0])
        arrays = [
            self._mover.join(each, each, order, length, "cpu").numpy() for each in self._cross
        ]
        layers = range(self._layers)
        return CrossCache([array[layer] for layer in layers for array in arrays], source_length)

    def insert(self, cross: CrossCache) -> None:
        """Append sources; their rows start at position 0."""
        count = len(cross.source_length) * self.rows_per_source
        source_length = np.concatenate([self.source_length, cross.source_length])
        empty = [
            np.zeros((self._layers, count, heads, 1, head_dim), self.dtype)
            for heads, head_dim in self._shapes
        ]
        new = [np.stack(cross.keys_values[place::2]) for place in range(2)]  # (L, N, H, S, D)
        longest = fit_length(length_of(self._cross), int(source_length.max()), SOURCE_STEP)
        length = self._fit(max(length_of(self._self), 1))
        self_values = self._joined(self._self, empty, length)
        self._replace(self_values, self._joined(self._cross, new, longest))
        self.source_length = source_length
        self.position = np.concatenate([self.position, np.zeros(count, np.int64)])

    def reorder(self, parents: IntArray) -> None:
        """Let row r continue row parents[r] of the same source; parents (R,)."""
        if (parents != np.arange(len(parents))).any():
            self._replace([self._mover.pick(each, parents) for each in self._self], self._cross)
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

    def _joined(
        self, old: list[ort.OrtValue], new: list[CacheArray], length: int
    ) -> list[ort.OrtValue]:
        """Append rows. Without old ones, the new ones take their place and are picked once."""
        if not old:
            on_device = [ort.OrtValue.ortvalue_from_numpy(each, self.device) for each in new]
            return self._moved(on_device, np.arange(new[0].shape[1]), length)
        order = np.arange(old[0].shape()[1] + new[0].shape[1])
        pairs = zip(old, new, strict=True)
        return [self._mover.join(before, after, order, length) for before, after in pairs]

    def _moved(
        self, values: list[ort.OrtValue], order: IntArray, length: int
    ) -> list[ort.OrtValue]:
        """Pick rows, and give them `length` positions."""
        if length == length_of(values):
            return [self._mover.pick(each, order) for each in values]
        return [self._mover.join(each, each, order, length) for each in values]

    def _blocks(self, values: list[ort.OrtValue]) -> list[Block]:
        found: list[Block] = []
        for layer in range(self._layers):
            for value in values:
                _, *shape = value.shape()
                size = prod(shape) * np.dtype(self.dtype).itemsize  # bytes of a layer
                found.append(Block(value.data_ptr() + layer * size, shape))
        return found


def length_of(values: list[ort.OrtValue]) -> int:
    """Return T of keys and values (L, R, H, T, D); 0 if there are none."""
    return values[0].shape()[3] if values else 0
