"""The step graph bound to the memory of a KV cache, so that a step copies and allocates nothing.

Axes: R rows, N tokens of a row, K best tokens (of gates: kinds of attention), V target vocabulary,
L layers, H heads, M d_model.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from service.arrays import FloatArray, IntArray
from service.runtime.cache import Cache
from service.search.protocol import Candidates


class Binding:
    """Inputs and outputs of the step graph, for tokens of one shape, a fixed K and set of outputs.

    Valid until the cache's memory moves; the cache then empties `Cache.bindings`.
    """

    def __init__(
        self,
        cache: Cache,
        graphs: Sequence[ort.InferenceSession],
        names: tuple[list[str], list[str]],
        k: int,
        *,
        shape: tuple[int, ...],
        vocab_size: int | None,
        gates: FloatArray | None,
    ) -> None:
        """`graphs` are the step or, if it ends in the hidden states (R, M), the step and the output
        projection. The names of both sides alternate key and value, layer by layer: self_key_0, ...

        `shape` is that of the tokens (R, N), whose candidates are R x N rows. If `vocab_size` is
        given, the logits (R x N, V) are bound too; with None, ONNX Runtime allocates and frees
        them. `gates` have the shape of those that a gated graph takes.
        """
        rows, (self_names, cross_names) = prod(shape), names
        log_probs, ids = np.zeros((rows, k), np.float32), np.zeros((rows, k), np.int64)
        logits = None if vocab_size is None else np.zeros((rows, vocab_size), np.float32)
        self._candidates = Candidates(log_probs, ids, logits)
        self._token = np.zeros(shape, np.int64)
        self._position = np.zeros(shape, np.int64)
        self._runs = [(graph, graph.io_binding()) for graph in graphs]
        step, output = self._runs[0][1], self._runs[-1][1]
        bind_input(step, "token", self._token)
        bind_input(step, "position", self._position)
        bind_input(step, "source_length", cache.source_length)
        self._gates = None if gates is None else gates.copy()
        if self._gates is not None:
            bind_input(step, "gates", self._gates)
        if output is not step:
            _, d_model = graphs[0].get_outputs()[0].shape
            hidden = np.zeros((rows, d_model), np.float32)
            step.bind_ortvalue_output("hidden", bind_input(output, "hidden", hidden))
        bind_input(output, "k", np.array([k]))
        bind_output(output, "top_log_probs", log_probs)
        if cache.outputs:
            bind_input(output, "output_rows", cache.outputs.rows)
            bind_input(output, "output_bias", cache.outputs.biases)
        bind_output(output, "top_places" if cache.listed else "top_ids", ids)
        if logits is not None:
            bind_output(output, "logits", logits)
        for name, array in zip(cross_names, cache.cross_keys_values, strict=True):
            bind_input(step, name, array)
        for name, array in zip(self_names, cache.self_keys_values, strict=True):
            step.bind_ortvalue_output(f"{name}_out", bind_input(step, name, array))

    def run(
        self, tokens: IntArray, position: IntArray, gates: FloatArray | None = None
    ) -> Candidates:
        """Read tokens (R, N) at their positions (R, N), a gated graph with gates (R, K, L, H). The
        next run overwrites what is returned."""
        if self._gates is not None:
            self._gates[:] = gates
        self._token[:] = tokens
        self._position[:] = position
        for graph, binding in self._runs:
            graph.run_with_iobinding(binding)
        return self._candidates


def bind_input(binding: ort.IOBinding, name: str, array: NDArray[Any]) -> ort.OrtValue:
    value = ort.OrtValue.ortvalue_from_numpy(array)
    binding.bind_ortvalue_input(name, value)
    return value


def bind_output(binding: ort.IOBinding, name: str, array: NDArray[Any]) -> None:
    binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))
