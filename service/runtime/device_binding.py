"""The step graph bound to a KV cache on a device, so that a step moves only tokens and candidates.

Axes: R rows, K best tokens (of gates: kinds of attention), V target vocabulary, L layers, H heads.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
import onnxruntime as ort

from service.arrays import FloatArray, IntArray
from service.runtime.device_cache import DeviceCache
from service.search.protocol import Candidates


class DeviceBinding:
    """Inputs and outputs of the step graph, for a fixed number of rows, K and set of outputs.

    ONNX Runtime copies an input from the host to a device when it is bound, not when the graph
    runs. Tokens, positions and gates are therefore bound again before every run; all else stays
    the same until the cache moves, which then empties `DeviceCache.bindings`. It also copies a
    cache to the host when it is bound, if an operator reads it there: CUDA has no
    GroupQueryAttention of float32. Such caches are bound again, too.
    """

    def __init__(
        self,
        cache: DeviceCache,
        step: ort.InferenceSession,
        self_names: list[str],
        cross_names: list[str],
        k: int,
        *,
        vocab_size: int | None,
        on_host: Collection[str],
    ) -> None:
        """The names alternate key and value, layer by layer: self_key_0, self_value_0, ...

        If `vocab_size` is given, the logits (R, V) are copied to the host too. `on_host` are the
        inputs that the graph reads in the host's memory (`inputs_on_host`).
        """
        rows = len(cache.position)
        log_probs, ids = np.zeros((rows, k), np.float32), np.zeros((rows, k), np.int64)
        logits = None if vocab_size is None else np.zeros((rows, vocab_size), np.float32)
        self._candidates = Candidates(log_probs, ids, logits)
        self._step = step
        self._binding = step.io_binding()
        self._binding.bind_cpu_input("source_length", cache.source_length)
        self._binding.bind_cpu_input("k", np.array([k]))
        self._bind_output("top_log_probs", log_probs)
        self._bind_output("top_ids", ids)
        if logits is not None:
            self._bind_output("logits", logits)
        self._copied: list[tuple[Any, ...]] = []  # arguments of bind_input, for caches
        on_device = cache.device, 0, cache.dtype
        for name, block in zip(cross_names, cache.cross_blocks, strict=True):
            self._binding.bind_input(name, *on_device, block.shape, block.address)
        for name, block in zip(self_names, cache.self_blocks, strict=True):
            given = name, *on_device, block.shape, block.address
            self._binding.bind_input(*given)
            if name in on_host:
                self._copied.append(given)
            # the same memory: the graph writes in place
            self._binding.bind_output(f"{name}_out", *given[1:])

    def run(
        self, tokens: IntArray, position: IntArray, gates: FloatArray | None = None
    ) -> Candidates:
        """Read tokens (R,) at their positions (R,), a gated graph with gates (R, K, L, H). The next
        run overwrites what is returned."""
        self._binding.bind_cpu_input("token", np.ascontiguousarray(tokens))
        self._binding.bind_cpu_input("position", position)
        if gates is not None:
            self._binding.bind_cpu_input("gates", gates)
        for given in self._copied:
            self._binding.bind_input(*given)
        self._binding.synchronize_inputs()
        self._step.run_with_iobinding(self._binding)
        return self._candidates

    def _bind_output(self, name: str, array: FloatArray | IntArray) -> None:
        self._binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))


def inputs_on_host(graph: ort.InferenceSession) -> set[str]:
    """Return the names of the inputs that the graph reads in the host's memory."""
    places = zip(graph.get_inputs(), graph.get_input_memory_infos(), strict=True)
    return {value.name for value, memory in places if memory.name == "Cpu"}
