"""The encoder graphs bound to a device: keys and values are written where the cache reads them.

Axes: L decoder layers, B sources, H heads, S source length, D head_dim, M d_model.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import onnxruntime as ort

from service.arrays import Feeds, FloatArray, IntArray
from service.bundle.manifest import Config
from service.runtime.cache import SOURCE_STEP, fit_length
from service.runtime.device.cache import DeviceCross, Mover
from service.runtime.providers import Device, open_graph

FINITE = Path(__file__).with_name("finite.onnx")  # tests/write_move.py


class DeviceEncoder:
    """Runs an encoder graph, and leaves on the device what nobody reads in the host's memory."""

    def __init__(self, config: Config, pad_id: int, device: Device, mover: Mover) -> None:
        self._config = config
        self._pad_id = pad_id
        self._mover = mover
        self._finite = open_graph(FINITE, device.provider)

    def run(
        self, graph: ort.InferenceSession, feeds: Feeds, cross_names: Sequence[str]
    ) -> tuple[ort.OrtValue, DeviceCross]:
        """Return the memory (B, >= S, M) and the cross-attention cache, both on the device.

        Sources are padded to the length that a cache wants, as far as there are positions, so that
        their keys and values need not move. The names alternate key and value, layer by layer:
        cross_key_0, cross_value_0, ...
        """
        feeds = {**feeds, "source_ids": self._padded(feeds["source_ids"])}
        binding = graph.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("memory", self._mover.device)
        layers, (count, length) = self._config.num_decoder_layers, feeds["source_ids"].shape
        values = [
            self._mover.allocate([layers, count, heads, length, head_dim])
            for heads, head_dim in self._config.cross_parts.values()
        ]
        cross = DeviceCross(values, feeds["source_length"], self._mover)
        for name, block in zip(cross_names, cross.blocks, strict=True):
            place = self._mover.device, 0, self._mover.dtype
            binding.bind_output(name, *place, block.shape, block.address)
        binding.synchronize_inputs()
        graph.run_with_iobinding(binding)
        return binding.get_outputs()[0], cross

    def _padded(self, ids: IntArray) -> IntArray:
        length = min(fit_length(0, ids.shape[1], SOURCE_STEP), self._config.max_source_length)
        padding = (0, 0), (0, length - ids.shape[1])
        return np.pad(ids, padding, constant_values=self._pad_id)

    def is_finite(self, memory: ort.OrtValue) -> bool:
        """Return whether no number (B, S, M) is NaN or infinite, without copying them all."""
        binding = self._finite.io_binding()
        binding.bind_ortvalue_input("numbers", memory)
        binding.bind_output("zero")
        self._finite.run_with_iobinding(binding)
        return cast("FloatArray", binding.get_outputs()[0].numpy()) == 0
