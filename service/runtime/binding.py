"""The step graph bound to the memory of a KV cache."""

from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from service.arrays import IntArray
from service.runtime.cache import Cache
from service.search.protocol import Candidates


class Binding:
    """The step graph tied to a cache's memory and to buffers for what goes in and comes out."""

    def __init__(
        self,
        step: ort.InferenceSession,
        cache: Cache,
        keys_values: list[str],
        k: int,
        vocabulary: int,
    ) -> None:
        """`vocabulary`: its size where all logits are wanted, else 0."""
        rows = len(cache.position)
        logits = np.zeros((rows, vocabulary), np.float32) if vocabulary else None
        log_probs, ids = np.zeros((rows, k), np.float32), np.zeros((rows, k), np.int64)
        self.candidates = Candidates(log_probs, ids, logits)
        self.token = np.zeros(rows, np.int64)
        self.position = np.zeros(rows, np.int64)
        self._step = step
        self._binding = step.io_binding()
        self._bind_input("token", self.token)
        self._bind_input("position", self.position)
        self._bind_input("source_length", cache.source_length)
        self._bind_input("k", np.array([k]))
        self._bind_output("top_log_probs", log_probs)
        self._bind_output("top_ids", ids)
        if logits is not None:
            self._bind_output("logits", logits)
        memory = zip(keys_values, cache.self_keys_values, cache.cross_keys_values, strict=True)
        for name, own, cross in memory:
            self._bind_input(f"cross_{name}", cross)
            value = self._bind_input(f"self_{name}", own)
            self._binding.bind_ortvalue_output(f"self_{name}_out", value)  # the same memory

    def run(self, tokens: IntArray, position: IntArray) -> Candidates:
        self.token[:] = tokens
        self.position[:] = position
        self._step.run_with_iobinding(self._binding)
        return self.candidates

    def _bind_input(self, name: str, array: NDArray[Any]) -> ort.OrtValue:
        value = ort.OrtValue.ortvalue_from_numpy(array)
        self._binding.bind_ortvalue_input(name, value)
        return value

    def _bind_output(self, name: str, array: NDArray[Any]) -> None:
        self._binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))
