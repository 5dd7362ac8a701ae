"""The step graph bound to a KV cache on a device, so that a step moves only tokens and candidates.

Axes: R rows, K best tokens (of gates: kinds of attention), V target vocabulary, L layers, H heads.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from service.arrays import FloatArray, IntArray
from service.runtime.device.cache import DeviceCache
from service.runtime.providers import captures
from service.search.protocol import Candidates

MOST_KEPT = 64  # bindings that are kept for later caches
MOST_CAPTURED = 256  # ONNX Runtime never frees a captured graph, of 0.5 MB on an H200
OFTEN = 16  # runs after which a binding is worth capturing, which takes 4 ms
ROOM = 64  # captured graphs after which a binding must be used twice as often


class DeviceBinding:
    """Inputs and outputs of the step graph, for a fixed number of rows, K and set of outputs.

    ONNX Runtime copies an input from the host to a device when it is bound, not when the graph
    runs. Tokens, positions and lengths are therefore values on the device, which are written before
    a run; gates are bound again. It also copies a cache to the host when it is bound, if an
    operator reads it there: CUDA has no GroupQueryAttention of float32. Such caches are bound
    again, too.
    """

    def __init__(
        self,
        cache: DeviceCache,
        step: ort.InferenceSession,
        names: tuple[list[str], list[str]],
        k: int,
        *,
        vocab_size: int | None,
        on_host: Collection[str],
    ) -> None:
        """The names, of self-attention and cross-attention, alternate key and value, layer by
        layer: self_key_0, self_value_0, ...

        If `vocab_size` is given, the logits (R, V) are copied to the host too. `on_host` are the
        inputs that the graph reads in the host's memory (`inputs_on_host`).
        """
        rows = len(cache.position)
        self.runs = self.uncaptured_runs = 0  # that succeeded
        self._step = step
        self._device = cache.device
        self._binding = step.io_binding()
        self._options = run_options(-1)
        self._token = self._bind_input("token", np.zeros((rows, 1), np.int64))
        self._position = self._bind_input("position", np.zeros((rows, 1), np.int64))
        self._source_length = self._bind_input("source_length", cache.source_length)
        self._binding.bind_cpu_input("k", np.array([k]))
        self._log_probs = self._bind_output("top_log_probs", np.zeros((rows, k), np.float32))
        self._ids = self._bind_output("top_ids", np.zeros((rows, k), np.int64))
        self._logits = None
        if vocab_size is not None:
            self._logits = self._bind_output("logits", np.zeros((rows, vocab_size), np.float32))
        self._copied: list[tuple[Any, ...]] = []  # arguments of bind_input, for caches
        self_names, cross_names = names
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

    def capture(self, number: int) -> None:
        """Let CUDA capture the next run, which therefore computes three times, and replay it in
        later ones. No other binding has the number."""
        self._options = run_options(number)
        self.uncaptured_runs = self.runs

    def set_lengths(self, source_length: IntArray) -> None:
        """Let later runs attend to sources of these lengths (B,)."""
        self._source_length.update_inplace(source_length)

    def run(
        self, tokens: IntArray, position: IntArray, gates: FloatArray | None = None
    ) -> Candidates:
        """Read tokens (R, 1) at their positions (R, 1), a gated graph with gates (R, K, L, H)."""
        self._token.update_inplace(np.ascontiguousarray(tokens))
        self._position.update_inplace(position)
        if gates is not None:
            self._binding.bind_cpu_input("gates", gates)
        for given in self._copied:
            self._binding.bind_input(*given)
        self._binding.synchronize_inputs()
        self._step.run_with_iobinding(self._binding, self._options)
        self.runs += 1
        logits = None if self._logits is None else self._logits.numpy()
        return Candidates(self._log_probs.numpy(), self._ids.numpy(), logits)

    def _bind_input(self, name: str, array: IntArray) -> ort.OrtValue:
        value = ort.OrtValue.ortvalue_from_numpy(array, self._device)
        self._binding.bind_ortvalue_input(name, value)
        return value

    def _bind_output(self, name: str, array: NDArray[Any]) -> ort.OrtValue:
        value = ort.OrtValue.ortvalue_from_numpy(array, self._device)
        self._binding.bind_ortvalue_output(name, value)
        return value


class DeviceBindings:
    """Binds the graphs of a step, and keeps bindings by where their caches lie: the memory that a
    cache has left often comes back to a later one of the same sizes, and so does its binding.

    A binding that is used often is captured, if CUDA can: it then starts all kernels at once.
    """

    def __init__(
        self, step: ort.InferenceSession, self_names: list[str], cross_names: list[str]
    ) -> None:
        """`step` is the graph whose bindings are kept; others have the same inputs on the host."""
        self._step = step
        self._names = self_names, cross_names
        self._on_host = inputs_on_host(step)
        self._kept: dict[Any, DeviceBinding] = {}  # the last used one is the last
        self._captured: dict[Any, DeviceBinding] = {}
        self._most_captured = MOST_CAPTURED if captures(step) else 0

    def bind(
        self, cache: DeviceCache, graph: ort.InferenceSession, k: int, vocab_size: int | None
    ) -> DeviceBinding:
        """Bind a graph to a cache, or find what was bound to the same memory."""
        key = k, cache.place
        is_kept = graph is self._step and vocab_size is None  # a buffer for all logits is large
        if is_kept and (found := self._find(key)):
            found.set_lengths(cache.source_length)
            return found
        given = cache, graph, self._names, k
        binding = DeviceBinding(*given, vocab_size=vocab_size, on_host=self._on_host)
        if is_kept:
            self._kept[key] = binding
            if len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return binding

    def _find(self, key: Any) -> DeviceBinding | None:
        if captured := self._captured.get(key):
            if captured.runs > captured.uncaptured_runs:
                return captured
            self._most_captured = 0  # the run that captured it failed
            del self._captured[key]
        binding = self._kept.pop(key, None)
        if binding is None:
            return None
        count = len(self._captured)
        if count < self._most_captured and binding.runs >= OFTEN << count // ROOM:
            self._captured[key] = binding
            binding.capture(count + 1)
        else:
            self._kept[key] = binding
        return binding


def run_options(number: int) -> Any:
    """Return options with which CUDA captures a run under this number; with -1 it never does."""
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(number))
    return options


def inputs_on_host(graph: ort.InferenceSession) -> set[str]:
    """Return the names of the inputs that the graph reads in the host's memory."""
    places = zip(graph.get_inputs(), graph.get_input_memory_infos(), strict=True)
    return {value.name for value, memory in places if memory.name == "Cpu"}
