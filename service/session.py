"""ONNX Runtime behind arrays: the only importer of onnxruntime.

Axes: B sources, W rows a source, R = B x W rows, S source length, T target length or cache
capacity, L layers, H heads, D head_dim, M d_model, K candidates.
"""

from collections.abc import Sequence
from functools import cache as once
from typing import Any, NamedTuple, cast

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from service.bundle import Bundle, Graph
from service.errors import StartupError
from service.settings import Provider

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]

PROVIDERS = {
    Provider.cpu: "CPUExecutionProvider",
    Provider.cuda: "CUDAExecutionProvider",
    Provider.tensorrt: "TensorrtExecutionProvider",
}


@once
def start_runtime(threads: int) -> None:
    """One thread pool for all sessions of the process: two pools spin on each other's cores.

    Raises RuntimeError from a second call with another number.
    """
    ort.set_global_thread_pool_sizes(threads, 1)
    if PROVIDERS[Provider.cuda] in ort.get_available_providers():
        ort.preload_dlls()  # CUDA and cuDNN as pip installed them


def provider_name(wanted: Provider) -> str:
    """Raises StartupError if a provider asked for by name is not in this ONNX Runtime."""
    available = ort.get_available_providers()
    if wanted is Provider.auto:
        wanted = Provider.cuda if PROVIDERS[Provider.cuda] in available else Provider.cpu
    if PROVIDERS[wanted] not in available:
        names = [provider.value for provider, name in PROVIDERS.items() if name in available]
        raise StartupError(f"provider {wanted.value} is not here; available: {', '.join(names)}")
    return PROVIDERS[wanted]


class Encoded(NamedTuple):
    """One source, encoded: memory (S, M); key and value of each decoder layer in turn (H, S, D)."""

    memory: FloatArray
    cross: list[FloatArray]


class Candidates(NamedTuple):
    """The best next tokens of each row, best first, (R, K). Valid until the next step."""

    log_probs: FloatArray
    ids: IntArray


class Cache:
    """Keys and values of the live rows, in memory that the step graph reads and writes in place.

    Rows r * width to (r + 1) * width - 1 belong to source r. Memory is kept for more rows and
    positions than are in use, so that rows come and go without a new allocation each time.
    """

    positions_at_a_time = 16

    def __init__(self, layers: int, num_heads: int, head_dim: int, width: int) -> None:
        self.width = width
        self.source_length = np.zeros(0, np.int64)  # (B,)
        self.position = np.zeros(0, np.int64)  # (R,): where each row's next token goes
        empty = np.zeros((0, num_heads, 0, head_dim), np.float32)
        self._own = [empty] * (2 * layers)  # (>= R, H, T, D)
        self._cross = [empty] * (2 * layers)  # (>= B, H, >= S, D)
        self.binding: Binding | None = None

    @property
    def sources(self) -> int:
        return len(self.source_length)

    @property
    def capacity(self) -> int:
        """Positions a row has room for."""
        return self._own[0].shape[2]

    @property
    def own(self) -> list[FloatArray]:
        return [array[: self.sources * self.width] for array in self._own]

    @property
    def cross(self) -> list[FloatArray]:
        return [array[: self.sources] for array in self._cross]

    def insert(self, encoded: Sequence[Encoded]) -> None:
        """Append sources; their rows start at position 0."""
        first, count = self.sources, self.sources + len(encoded)
        lengths = np.array([len(source.memory) for source in encoded])
        self._own = [enlarged(array, count * self.width, 0) for array in self._own]
        self._cross = [enlarged(array, count, int(lengths.max())) for array in self._cross]
        for i, source in enumerate(encoded, first):
            for array, new in zip(self._cross, source.cross, strict=True):
                array[i, :, : new.shape[1]] = new
        self.source_length = np.concatenate([self.source_length, lengths])
        rows = np.zeros(len(encoded) * self.width, np.int64)
        self.position = np.concatenate([self.position, rows])
        self.binding = None

    def reorder(self, parents: IntArray) -> None:
        """(R,): row r goes on from row parents[r] of the same source."""
        self._move(self._own, parents)
        self.position[:] = self.position[parents]

    def compact(self, keep: IntArray) -> None:
        """Only these sources stay, in this order."""
        rows = (keep[:, None] * self.width + np.arange(self.width)).ravel()
        self._move(self._own, rows)
        self._move(self._cross, keep)
        self.source_length = self.source_length[keep]
        self.position = self.position[rows]
        self.binding = None

    def grow(self, capacity: int) -> None:
        """Room for at least `capacity` positions a row."""
        step = self.positions_at_a_time
        capacity = -(-capacity // step) * step
        self._own = [enlarged(array, len(array), capacity) for array in self._own]
        self.binding = None

    @staticmethod
    def _move(arrays: Sequence[FloatArray], order: IntArray) -> None:
        moved = np.flatnonzero(order != np.arange(len(order)))
        for array in arrays if len(moved) else ():
            array[moved] = array[order[moved]]


def enlarged(array: FloatArray, rows: int, length: int) -> FloatArray:
    """`array` (rows, H, length, D) itself if it is large enough, else a copy in one that is."""
    rows = rows if rows <= len(array) else max(rows, 2 * len(array))
    shape = (max(rows, len(array)), array.shape[1], max(length, array.shape[2]), array.shape[3])
    if shape == array.shape:
        return array
    larger = np.zeros(shape, array.dtype)
    larger[: array.shape[0], :, : array.shape[2]] = array
    return larger


class Session:
    """The graphs of one bundle at one precision, open on one provider."""

    def __init__(self, bundle: Bundle, precision: str, wanted: Provider) -> None:
        options = ort.SessionOptions()
        options.use_per_session_threads = False
        name = provider_name(wanted)
        self.precision = precision
        self._pad_id = bundle.manifest.pad_id
        self._config = bundle.manifest.config
        self._graphs = {
            graph: ort.InferenceSession(str(bundle.path(file)), options, providers=[name])
            for graph, file in bundle.manifest.precisions[precision].items()
        }
        self.provider: str = self._graphs["step"].get_providers()[0]
        if self.provider != name and wanted is not Provider.auto:
            raise StartupError(f"{name} is installed but found no device it can use")
        self._check_shapes()

    def supports(self, graph: Graph) -> bool:
        return graph in self._graphs

    def new_cache(self, width: int) -> Cache:
        config = self._config
        return Cache(config.num_decoder_layers, config.num_heads, config.head_dim, width)

    def encode(self, sources: Sequence[IntArray]) -> list[Encoded]:
        ids, lengths = self._padded(sources)
        memory, *cross = self._run("encoder", source_ids=ids, source_length=lengths)
        return [
            Encoded(memory[i, :length], [array[i, :, :length] for array in cross])
            for i, length in enumerate(lengths)
        ]

    def step(self, cache: Cache, tokens: IntArray, k: int) -> Candidates:
        """Every row reads its token (R,) at its position and moves on by one."""
        rows = len(tokens)
        if cache.capacity <= (last := int(cache.position.max())):
            cache.grow(last + 1)
        if cache.binding is None or cache.binding.log_probs.shape != (rows, k):
            cache.binding = Binding(self._graphs["step"], cache, rows, k)
        return cache.binding.run(tokens, cache.position)

    def attention(
        self, targets: Sequence[IntArray], encoded: Sequence[Encoded]
    ) -> list[tuple[FloatArray, FloatArray]]:
        """Decoder inputs (T,) over their encoded sources -> decoder attention (L, H, T, T) and
        cross-attention (L, H, T, S) of each."""
        ids, lengths = self._padded(targets)
        source_length = np.array([len(source.memory) for source in encoded])
        shape = (len(encoded), self._config.num_heads, source_length.max(), self._config.head_dim)
        feeds: dict[str, FloatArray] = {}
        for index in range(2 * self._config.num_decoder_layers):
            cross = np.zeros(shape, np.float32)
            for row, source in zip(cross, encoded, strict=True):
                row[:, : len(source.memory)] = source.cross[index]
            feeds[f"cross_{('key', 'value')[index % 2]}_{index // 2}"] = cross
        weights = self._run(
            "attention",
            decoder_input_ids=ids,
            decoder_length=lengths,
            source_length=source_length,
            **feeds,
        )
        layers = self._config.num_decoder_layers
        return [
            (stacked(weights[:layers], i, t, t), stacked(weights[layers:], i, t, s))
            for i, (t, s) in enumerate(zip(lengths, source_length, strict=True))
        ]

    def encoder_attention(self, sources: Sequence[IntArray]) -> list[FloatArray]:
        """-> (L, H, S, S) of each."""
        ids, lengths = self._padded(sources)
        weights = self._run("encoder_attention", source_ids=ids, source_length=lengths)
        return [stacked(weights, i, length, length) for i, length in enumerate(lengths)]

    def _run(self, graph: Graph, **feeds: NDArray[Any]) -> list[FloatArray]:
        return cast("list[FloatArray]", self._graphs[graph].run(None, feeds))

    def _padded(self, rows: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
        """-> ids (B, longest) padded on the right, lengths (B,)."""
        lengths = np.array([len(row) for row in rows])
        ids = np.full((len(rows), lengths.max()), self._pad_id)
        for padded, row in zip(ids, rows, strict=True):
            padded[: len(row)] = row
        return ids, lengths

    def _check_shapes(self) -> None:
        """Raises StartupError if the step graph is not the one the configuration describes."""
        config = self._config
        head = ("float", config.num_heads, config.head_dim)
        expected: dict[str, tuple[str | int, ...]] = {
            "token": ("int64",),
            "position": ("int64",),
            "source_length": ("int64",),
            "k": ("int64", 1),
        }
        for layer in range(config.num_decoder_layers):
            for kind in ("self_key", "self_value", "cross_key", "cross_value"):
                expected[f"{kind}_{layer}"] = head
        found = {
            tensor.name: (
                tensor.type.removeprefix("tensor(").removesuffix(")"),
                *(axis for axis in tensor.shape if isinstance(axis, int)),
            )
            for tensor in self._graphs["step"].get_inputs()
        }
        if found != expected:
            raise StartupError(f"the step graph takes {found}, the configuration says {expected}")


class Binding:
    """The step graph tied to a cache's memory and to buffers for what goes in and comes out."""

    def __init__(self, step: ort.InferenceSession, cache: Cache, rows: int, k: int) -> None:
        self.token = np.zeros(rows, np.int64)
        self.position = np.zeros(rows, np.int64)
        self.log_probs = np.zeros((rows, k), np.float32)
        self.ids = np.zeros((rows, k), np.int64)
        self._step = step
        self._binding = step.io_binding()
        inputs = {"token": self.token, "position": self.position, "k": np.array([k])}
        inputs["source_length"] = cache.source_length
        outputs: dict[str, NDArray[Any]] = {"top_log_probs": self.log_probs, "top_ids": self.ids}
        for index, (own, cross) in enumerate(zip(cache.own, cache.cross, strict=True)):
            name = f"{('key', 'value')[index % 2]}_{index // 2}"
            inputs[f"self_{name}"] = outputs[f"self_{name}_out"] = own
            inputs[f"cross_{name}"] = cross
        values = {id(array): ort.OrtValue.ortvalue_from_numpy(array) for array in inputs.values()}
        for name, array in inputs.items():
            self._binding.bind_ortvalue_input(name, values[id(array)])
        for name, array in outputs.items():
            value = values.get(id(array)) or ort.OrtValue.ortvalue_from_numpy(array)
            self._binding.bind_ortvalue_output(name, value)

    def run(self, tokens: IntArray, position: IntArray) -> Candidates:
        self.token[:] = tokens
        self.position[:] = position
        self._step.run_with_iobinding(self._binding)
        position += 1
        return Candidates(self.log_probs, self.ids)


def stacked(layers: Sequence[FloatArray], row: int, queries: int, keys: int) -> FloatArray:
    """One row of each layer's (B, H, T, S), without padding -> (L, H, queries, keys)."""
    return np.stack([layer[row, :, :queries, :keys] for layer in layers])
