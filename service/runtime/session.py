"""ONNX Runtime behind arrays: the only importer of onnxruntime.

Axes: B sources, R rows of a step, S source length, T target length or cache capacity, L layers,
H heads, D width of a head, M d_model, K best tokens.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np

from service.arrays import Feeds, FloatArray, IntArray
from service.bundle import Bundle, GraphName
from service.errors import StartupError
from service.runtime.binding import Binding
from service.runtime.cache import Cache, CrossCache
from service.runtime.providers import PROVIDERS, open_graph, usable_provider
from service.search.protocol import Candidates
from service.settings import Precision, Provider, Settings

MOST_BINDINGS = 64  # that a cache keeps
CACHED = 16 << 20  # bytes of weights that a step may read and still be faster on one core


class Session:
    """The graphs of one bundle at one precision, open on one provider."""

    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        """Raises StartupError."""
        precision = settings.precision
        name = usable_provider(bundle, settings.provider)
        if precision is Precision.auto:
            on_cpu = name == PROVIDERS[Provider.cpu] and "int8" in bundle.manifest.precisions
            precision = Precision.int8 if on_cpu else Precision.fp32
        if precision not in bundle.manifest.precisions:
            raise StartupError(f"{bundle.root} has no graphs of precision {precision}")
        self.precision: str = precision
        self._pad_id = bundle.manifest.pad_id
        self._config = bundle.manifest.config
        self.workers = 1
        if name == PROVIDERS[Provider.cpu]:
            self.workers = settings.workers or self._default_workers(settings.cores)
        self._graphs = {
            graph: open_graph(bundle.path(file), name, max(1, settings.cores - self.workers + 1))
            for graph, file in bundle.manifest.precisions[precision].items()
            if settings.opens(graph)
        }
        self.provider: str = name
        self._check_shapes()

    def supports(self, graph: GraphName) -> bool:
        return graph in self._graphs

    def new_cache(self, width: int) -> Cache:
        return Cache(self._config, width)

    def encode(self, sources: Sequence[IntArray]) -> tuple[list[FloatArray], CrossCache]:
        """-> memory (S, M) of each, and what cross-attention reads of them all."""
        ids, lengths = self._padded(sources)
        names = ["memory", *(f"cross_{name}" for name in self._keys_values)]
        feeds = {"source_ids": ids, "source_length": lengths}
        memory, *cross = self._run("encoder", names, feeds)
        return [memory[i, :length] for i, length in enumerate(lengths)], CrossCache(cross, lengths)

    def step(self, cache: Cache, tokens: IntArray, k: int, logits: bool = False) -> Candidates:
        """Every row reads its token (R,) at its position and moves on by one.

        Returns the k best that may come next, or all there are; and all logits if they are wanted.
        """
        last = int(cache.position.max())
        if last >= cache.capacity:
            cache.grow(last + 1)
        wanted = len(tokens), min(k, self._config.target_vocab_size), logits
        if wanted not in cache.bindings:
            if logits or len(cache.bindings) == MOST_BINDINGS:
                cache.bindings.clear()  # a buffer for all logits is large, there is one at most
            step, size = self._graphs["step"], self._config.target_vocab_size * logits
            cache.bindings[wanted] = Binding(step, cache, self._keys_values, wanted[1], size)
        candidates = cache.bindings[wanted].run(tokens, cache.position)
        cache.position += 1
        return candidates

    def attention(
        self, inputs: Sequence[IntArray], crosses: Sequence[CrossCache]
    ) -> list[tuple[FloatArray, FloatArray]]:
        """Decoder inputs (T,) and their sources, one each -> decoder attention (L, H, T, T) and
        cross-attention (L, H, T, S) of each."""
        feeds = self._forced(inputs, crosses)
        layers = self._config.num_decoder_layers
        kinds = ("decoder_attention", "cross_attention")
        names = [f"{kind}_{layer}" for kind in kinds for layer in range(layers)]
        weights = self._run("attention", names, feeds)
        lengths = zip(feeds["decoder_length"], feeds["source_length"], strict=True)
        return [
            (stacked(weights[:layers], i, t, t), stacked(weights[layers:], i, t, s))
            for i, (t, s) in enumerate(lengths)
        ]

    def score(
        self, inputs: Sequence[IntArray], targets: Sequence[IntArray], crosses: Sequence[CrossCache]
    ) -> list[FloatArray]:
        """Decoder inputs (T,), what they are to predict (T,), and their sources -> the log-prob of
        each target id, (T,)."""
        feeds = self._forced(inputs, crosses)
        feeds["target_ids"], lengths = self._padded(targets)
        (log_probs,) = self._run("score", ["token_log_probs"], feeds)
        return [log_probs[i, :length] for i, length in enumerate(lengths)]

    def _forced(self, inputs: Sequence[IntArray], crosses: Sequence[CrossCache]) -> Feeds:
        """What a pass over whole targets takes."""
        ids, lengths = self._padded(inputs)
        source_length = np.concatenate([cross.source_length for cross in crosses])
        feeds: Feeds = {
            "decoder_input_ids": ids,
            "decoder_length": lengths,
            "source_length": source_length,
        }
        for index, name in enumerate(self._keys_values):
            parts = [cross.keys_values[index] for cross in crosses]
            _, heads, _, head_width = parts[0].shape
            shape = (len(parts), heads, source_length.max(), head_width)
            feeds[f"cross_{name}"] = padded = np.zeros(shape, np.float32)
            for i, part in enumerate(parts):
                padded[i, :, : part.shape[2]] = part[0]
        return feeds

    def encoder_attention(self, sources: Sequence[IntArray]) -> list[FloatArray]:
        """-> (L, H, S, S) of each."""
        ids, lengths = self._padded(sources)
        names = [f"encoder_attention_{layer}" for layer in range(self._config.num_encoder_layers)]
        feeds = {"source_ids": ids, "source_length": lengths}
        weights = self._run("encoder_attention", names, feeds)
        return [stacked(weights, i, length, length) for i, length in enumerate(lengths)]

    def _default_workers(self, cores: int) -> int:
        """One a core, as long as the caches hold what each of them reads; beyond that, all cores
        share each product and the weights are read once (docs/adr/0005)."""
        size = self._config.step_weights * (1 if self.precision == Precision.int8 else 4)
        return cores if size <= CACHED else 1

    @property
    def _keys_values(self) -> list[str]:
        layers = range(self._config.num_decoder_layers)
        return [f"{part}_{layer}" for layer in layers for part in ("key", "value")]

    def _run(self, graph: GraphName, outputs: list[str], feeds: Feeds) -> list[FloatArray]:
        return cast("list[FloatArray]", self._graphs[graph].run(outputs, feeds))

    def _padded(self, rows: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
        """-> ids (B, longest) padded on the right, lengths (B,)."""
        lengths = np.array([len(row) for row in rows])
        ids = np.full((len(rows), lengths.max()), self._pad_id)
        for padded, row in zip(ids, rows, strict=True):
            padded[: len(row)] = row
        return ids, lengths

    def _check_shapes(self) -> None:
        """Raises StartupError if the step graph is not the one the configuration describes."""
        widths = {"key": self._config.d_qk, "value": self._config.d_v}
        expected: dict[str, tuple[str | int, ...]] = {
            "token": ("int64",),
            "position": ("int64",),
            "source_length": ("int64",),
            "k": ("int64", 1),
        }
        for name in self._keys_values:
            head = ("float", self._config.num_heads, widths[name.partition("_")[0]])
            expected[f"self_{name}"] = expected[f"cross_{name}"] = head
        found = {
            tensor.name: (
                tensor.type.removeprefix("tensor(").removesuffix(")"),
                *(axis for axis in tensor.shape if isinstance(axis, int)),
            )
            for tensor in self._graphs["step"].get_inputs()
        }
        if found != expected:
            raise StartupError(f"the step graph takes {found}, the configuration says {expected}")


def stacked(layers: Sequence[FloatArray], row: int, queries: int, keys: int) -> FloatArray:
    """One row of each layer's (B, H, T, S), without padding -> (L, H, queries, keys)."""
    return np.stack([layer[row, :, :queries, :keys] for layer in layers])
