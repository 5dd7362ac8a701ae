"""The encoder graphs bound to a device: keys and values are written where the cache reads them.

Axes: L decoder layers, B sources, H heads, S source length, D head_dim, M d_model.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import onnxruntime as ort

from service.arrays import Feeds, FloatArray
from service.bundle.manifest import Config
from service.runtime.device_cache import DeviceCross, Mover
from service.runtime.providers import Device, open_graph

FINITE = Path(__file__).with_name("finite.onnx")  # tests/write_move.py


class DeviceEncoder:
    """Runs an encoder graph, and leaves on the device what nobody reads in the host's memory."""

    def __init__(self, config: Config, device: Device, mover: Mover) -> None:
        self._sizes = config.num_decoder_layers, [*config.cross_parts.values()]
        self._mover = mover
        self._finite = open_graph(FINITE, device.provider)

    def run(
        self, graph: ort.InferenceSession, feeds: Feeds, cross_names: Sequence[str]
    ) -> tuple[ort.OrtValue, DeviceCross]:
        """Return the memory (B, S, M) and the cross-attention cache, both on the device.

        The names alternate key and value, layer by layer: cross_key_0, cross_value_0, ...
        """
        binding = graph.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("memory", self._mover.device)
        layers, parts = self._sizes
        count, length = feeds["source_ids"].shape
        cross = DeviceCross(
            [
                self._mover.allocate([layers, count, heads, length, head_dim])
                for heads, head_dim in parts
            ],
            feeds["source_length"],
            self._mover,
        )
        for name, block in zip(cross_names, cross.blocks, strict=True):
            place = self._mover.device, 0, self._mover.dtype
            binding.bind_output(name, *place, block.shape, block.address)
        binding.synchronize_inputs()
        graph.run_with_iobinding(binding)
        return binding.get_outputs()[0], cross

    def is_finite(self, memory: ort.OrtValue) -> bool:
        """Return whether no number (B, S, M) is NaN or infinite, without copying them all."""
        binding = self._finite.io_binding()
        binding.bind_ortvalue_input("numbers", memory)
        binding.bind_output("zero")
        self._finite.run_with_iobinding(binding)
        return cast("FloatArray", binding.get_outputs()[0].numpy()) == 0
