"""The step graph bound to the memory of a KV cache, so that a step copies and allocates nothing.

Axes: R rows, K best tokens (of gates: kinds of attention), V target vocabulary, L layers, H heads.
"""

from math import prod
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from service.arrays import FloatArray, IntArray
from service.runtime.cache import Cache
from service.search.protocol import Candidates


class Binding:
    """Inputs and outputs of the step graph, for a fixed number of rows, K and set of outputs.

    Valid until the cache's memory moves; the cache then empties `Cache.bindings`.
    """

    def __init__(
        self,
        cache: Cache,
        step: ort.InferenceSession,
        names: tuple[list[str], list[str]],
        k: int,
        *,
        shape: tuple[int, ...],
        vocab_size: int | None,
        gates: FloatArray | None,
    ) -> None:
        """The names of both sides alternate key and value, layer by layer: self_key_0, ...

        `shape` is that of the tokens: (R,), or (R, N) if each row reads N, whose candidates are
        R x N rows. If `vocab_size` is given, the logits (R, V) are bound too; with None, ONNX
        Runtime allocates and frees them. `gates` have the shape of those that a gated graph takes.
        """
        rows, (self_names, cross_names) = prod(shape), names
        log_probs, ids = np.zeros((rows, k), np.float32), np.zeros((rows, k), np.int64)
        logits = None if vocab_size is None else np.zeros((rows, vocab_size), np.float32)
        self._candidates = Candidates(log_probs, ids, logits)
        self._token = np.zeros(shape, np.int64)
        self._position = np.zeros(len(cache.position), np.int64)
        self._step = step
        self._binding = step.io_binding()
        self._bind_input("token", self._token)
        self._bind_input("position", self._position)
        self._bind_input("source_length", cache.source_length)
        self._bind_input("k", np.array([k]))
        self._gates = None if gates is None else gates.copy()
        if self._gates is not None:
            self._bind_input("gates", self._gates)
        self._bind_output("top_log_probs", log_probs)
        if cache.outputs:
            self._bind_input("output_rows", cache.outputs.rows)
            self._bind_input("output_bias", cache.outputs.biases)
        self._bind_output("top_places" if cache.outputs else "top_ids", ids)
        if logits is not None:
            self._bind_output("logits", logits)
        for name, array in zip(cross_names, cache.cross_keys_values, strict=True):
            self._bind_input(name, array)
        for name, array in zip(self_names, cache.self_keys_values, strict=True):
            self._binding.bind_ortvalue_output(f"{name}_out", self._bind_input(name, array))

    def run(
        self, tokens: IntArray, position: IntArray, gates: FloatArray | None = None
    ) -> Candidates:
        """Read tokens at the positions (R,) of the rows, a gated graph with gates (R, K, L, H). The
        next run overwrites what is returned."""
        if self._gates is not None:
            self._gates[:] = gates
        self._token[:] = tokens
        self._position[:] = position
        self._step.run_with_iobinding(self._binding)
        return self._candidates

    def _bind_input(self, name: str, array: NDArray[Any]) -> ort.OrtValue:
        value = ort.OrtValue.ortvalue_from_numpy(array)
        self._binding.bind_ortvalue_input(name, value)
        return value

    def _bind_output(self, name: str, array: NDArray[Any]) -> None:
        self._binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))
