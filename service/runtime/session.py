"""The graphs of a bundle as methods over NumPy arrays.

Axes: B sources, R rows of a step, N tokens that a row reads, S source length, T target length,
L layers, H heads, M d_model, K best tokens.

Gates (B, L, H) of the encoder, and (B or R, K, L, H) of the K kinds of attention in the decoder,
are factors of the heads' outputs. Only methods that get them use the gated graphs.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import repeat
from math import isnan
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from service.arrays import Feeds, FloatArray, IntArray
from service.bundle.manifest import SHORTLISTED, Bundle, DecoderAttention, GraphName
from service.errors import PassFailed
from service.runtime.attended import AttendedBatch, AttendedRow
from service.runtime.binding import Binding
from service.runtime.cache import Cache, CacheType, Cross, CrossCache
from service.runtime.device.binding import DeviceBinding, DeviceBindings
from service.runtime.device.cache import DeviceCache, Mover
from service.runtime.device.encoder import DeviceEncoder
from service.runtime.outputs import Outputs, Shortlists, read_shortlists
from service.runtime.providers import (
    PROVIDERS,
    LazyGraph,
    cache_device,
    choose_precision,
    describe_graph,
    open_graph,
    share_cores,
    usable_provider,
)
from service.runtime.signatures import check_signature, expected_tensors
from service.runtime.target_lists import TargetList, read_target_lists
from service.search.protocol import Candidates
from service.settings.settings import Precision, Provider, Settings

Array = TypeVar("Array", bound=NDArray[Any])
# others take memory for a pass now and then
USED_OFTEN = {"encoder", "step", "shortlisted_step", "draft_step", "hidden_step", "output"}
MOST_BINDINGS = 64  # bindings that one cache keeps
CACHE_TYPES: dict[CacheType, str] = {np.float32: "float", np.float16: "float16"}  # of ONNX Runtime
STEPS: set[GraphName] = {"step", "shortlisted_step", "hidden_step", "draft_step"}
WITH_LISTS: set[GraphName] = {"hidden_step", "output"}  # in the place of those without
WITHOUT_LISTS: set[GraphName] = {"step", "draft_step"}
NOT_FINITE = (
    "the model computed NaN or infinity: its weights are damaged, or overflow at this precision;"
    " serve it with HEED_PRECISION=fp32, or export it again"
)


class Session:
    """The graphs of one bundle, at one precision, on one provider.

    Those of attention and scores are opened on first use, because they hold weights of their own.
    Any number of threads may call it; a cache belongs to one of them.
    """

    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        """Raise StartupError if the bundle lacks the precision, the provider is not usable, or
        a graph is not the one that the configuration describes."""
        name = usable_provider(bundle, settings.provider)
        self.on_cpu = name == PROVIDERS[Provider.cpu]
        precision = choose_precision(bundle, settings.precision, self.on_cpu)
        self.precision: str = precision
        self.provider: str = name
        self._cache_type: CacheType = np.float16 if precision == Precision.fp16 else np.float32
        self._pad_id = bundle.manifest.pad_id
        self._config = config = bundle.manifest.config
        layers = range(config.num_decoder_layers)
        self._self_names = [f"self_{part}_{i}" for i in layers for part in config.self_parts]
        self._cross_names = [f"cross_{part}_{i}" for i in layers for part in config.cross_parts]
        self._mover: Mover | None = None
        self._device_encoder: DeviceEncoder | None = None
        if device := cache_device(name):
            self._mover = Mover(device, self._cache_type)
            self._device_encoder = DeviceEncoder(config, self._pad_id, device, self._mover)
        graphs = bundle.manifest.precisions[precision]
        self.shortlists: Shortlists | None = None
        if bundle.manifest.shortlists and self.on_cpu and graphs.keys() >= SHORTLISTED:
            path = bundle.path(bundle.manifest.shortlists)
            self.shortlists = read_shortlists(path, self._config, bundle.manifest.eos_ids)
        workers = settings.workers if self.on_cpu else 1
        may_twice = bundle.manifest.target_lists is None  # their output projections open once
        shares = share_cores(self._step_bytes, settings.cores, workers, may_twice=may_twice)
        self.workers, threads, beside = shares
        self._twice = beside is not None
        self.target_lists: dict[tuple[int, ...], TargetList] = {}  # by the ids of the language
        if self.on_cpu:
            open_output = partial(self._lazy, "output", threads=threads)
            self.target_lists = read_target_lists(bundle, precision, open_output)
        unused = WITHOUT_LISTS if self.target_lists else WITH_LISTS
        if self._mover:
            unused = unused | SHORTLISTED | {"draft_step"}
        self._graphs: dict[GraphName, LazyGraph] = {
            graph: self._lazy(graph, bundle.path(file), threads)
            for graph, file in graphs.items()
            if settings.opens(graph) and graph not in unused
        }
        self._beside: dict[GraphName, LazyGraph] = {  # for workers that are not alone
            graph: self._lazy(graph, bundle.path(file), beside)
            for graph, file in graphs.items()
            if beside and graph in STEPS & self._graphs.keys()
        }
        self._check_signatures(bundle)
        self._device_bindings: DeviceBindings | None = None
        if self._mover:
            names = self._self_names, self._cross_names
            self._device_bindings = DeviceBindings(self.open("step"), *names)

    @property
    def _step_bytes(self) -> int:
        """Bytes of the weights that a step reads on a CPU."""
        weights = self._config.step_weights
        if self.shortlists:  # a step reads a small part of the output projection
            weights -= self._config.d_model * self._config.target_vocab_size
        # ONNX Runtime computes fp16 at fp32 on a CPU, so that it holds 4 bytes a weight too.
        return weights * (1 if self.precision == Precision.int8 else 4)

    def _lazy(self, graph: GraphName, path: Path, threads: int) -> LazyGraph:
        # A run that is captured computes three times: a state would read its token three times
        capture = graph == "step" and not self._config.recurrent
        # Threads that spin would take the core from another worker
        spin = graph in STEPS or not self._twice
        options = {"arena": graph in USED_OFTEN, "spin": spin, "capture": capture}
        return LazyGraph(partial(open_graph, path, self.provider, threads, **options))

    def supports(self, graph: GraphName) -> bool:
        return graph in self._graphs

    def open(self, graph: GraphName) -> ort.InferenceSession:
        """Return the graph's session. Raise PassFailed if the graph was opened and is wrong."""
        lazy = self._graphs[graph]
        return lazy.checked or lazy.open()

    def check_on_opening(self, graph: GraphName, check: Callable[[], str | None]) -> None:
        """Let `check` return what is wrong with the graph as soon as it is open."""
        if graph in self._graphs:
            self._graphs[graph].check = check

    def new_cache(
        self, rows_per_source: int, shortlisted: bool = False, language: tuple[int, ...] = ()
    ) -> Cache | DeviceCache:
        """Return an empty cache in the memory that the provider computes in. If `shortlisted`, its
        steps score the tokens on the shortlists of the sources alone; with the ids of a `language`
        those of its list."""
        if self._mover:
            return DeviceCache(self._config, rows_per_source, self._mover)
        outputs = None
        if shortlisted:
            sizes = self._config.d_model, self._config.target_vocab_size
            outputs = Outputs(self._gather, *sizes)
        target_list = self.target_lists[language] if language else None
        return Cache(self._config, rows_per_source, self._cache_type, outputs, target_list)

    def lists(self, language: tuple[int, ...], required: Collection[int]) -> bool:
        """Return whether a list with these tokens has the ids of the language."""
        listed = self.target_lists.get(language)
        return listed is not None and listed.holds(required)

    def encode(
        self,
        sources: Sequence[IntArray],
        gates: FloatArray | None = None,
        wants_memory: bool = True,
        required: Sequence[Collection[int]] = (),
    ) -> tuple[list[FloatArray], Cross]:
        """Return the memory (S, M) of each source, if it is wanted, and the cross-attention cache
        of all sources. A model with shortlists puts the tokens that are `required` of the target of
        each source on its shortlist."""
        feeds = self._sources(sources, gates)
        lengths = feeds["source_length"]
        graph: GraphName = "encoder" if gates is None else "gated_encoder"
        if self._device_encoder:
            found, kept = self._device_encoder.run(self.open(graph), feeds, self._cross_names)
            if not self._device_encoder.is_finite(found):
                raise PassFailed(NOT_FINITE)
            return unpadded(found.numpy(), lengths) if wants_memory else [], kept
        memory, *cross = self._run(graph, ["memory", *self._cross_names], feeds)
        listed: list[IntArray] = []
        if self.shortlists:
            listed = [*map(self.shortlists.of, sources, required or repeat(()))]
        return unpadded(memory, lengths), CrossCache([*cross], lengths, listed)

    def step(
        self,
        cache: Cache | DeviceCache,
        tokens: IntArray,
        k: int,
        logits: bool = False,
        gates: FloatArray | None = None,
        *,
        alone: bool = True,
    ) -> Candidates:
        """Read a token (R,) a row at its position, and move every row on by one.

        Returns the `k` best next tokens, or the whole vocabulary if it is smaller, and on demand
        all logits. The next step overwrites them. A worker that is not `alone` uses the threads
        that the others leave, unless it has gates; the numbers are the same.
        """
        graph: GraphName = "hidden_step" if self.target_lists else "step"
        if gates is not None:
            graph = "gated_step"
        elif isinstance(cache, Cache) and cache.outputs:
            graph = "shortlisted_step"
        candidates = self._step(graph, cache, tokens[:, None], k, logits, gates, alone)
        cache.position += 1
        return candidates

    def draft_step(
        self,
        cache: Cache | DeviceCache,
        tokens: IntArray,
        k: int,
        logits: bool = False,
        *,
        alone: bool = True,
    ) -> Candidates:
        """Read N tokens (R, N) a row from its position on, and leave it to the caller by how many
        each row moves on. Returns what `step` does, after each token: R x N rows.

        All positions of a single row must exist. Of several, the shorter ones may be filled up.
        """
        graph: GraphName = "step" if 1 in tokens.shape else "draft_step"
        return self._step(graph, cache, tokens, k, logits, None, alone)

    def _step(
        self,
        graph: GraphName,
        cache: Cache | DeviceCache,
        tokens: IntArray,
        k: int,
        logits: bool,
        gates: FloatArray | None,
        alone: bool,
    ) -> Candidates:
        """Read N tokens (R, N) a row. Returns the candidates after each: R x N rows."""
        count = tokens.shape[1]
        needed = int(cache.position.max()) + count
        if needed > cache.capacity:
            cache.grow(needed)
        position = cache.position[:, None]  # (R, N)
        if count > 1:
            position = self._positions(cache, count)
        listed = cache.listed if isinstance(cache, Cache) else None
        vocab_size = len(listed.tokens) if listed else self._config.target_vocab_size
        k = min(k, vocab_size)
        opened = self.open(graph)  # and checked
        if not alone and graph in self._beside:
            opened = self._beside[graph].checked or self._beside[graph].open()
        key = opened, tokens.shape, k, logits
        if key not in cache.bindings:
            if logits or len(cache.bindings) == MOST_BINDINGS:
                cache.bindings.clear()  # a buffer for all logits is large: keep at most one
            size = vocab_size if logits else None
            cache.bindings[key] = self._bind(cache, graph, opened, tokens.shape, k, size, gates)
        candidates = cache.bindings[key].run(tokens, position, gates)
        if isnan(candidates.log_probs.sum()):  # they are at most 0, so infinities give no NaN
            raise PassFailed(NOT_FINITE)
        if not listed:
            return candidates
        all_logits = None if candidates.logits is None else listed.scatter(candidates.logits)
        return Candidates(candidates.log_probs, listed.tokens[candidates.ids], all_logits)

    def _positions(self, cache: Cache | DeviceCache, count: int) -> IntArray:
        """Return the next positions (R, N) of each row. Of several rows, those beyond the last one
        that exists are of tokens that fill up a row."""
        positions = cache.position[:, None] + np.arange(count)
        if len(positions) == 1:
            return positions
        return np.minimum(positions, self._config.max_target_length - 1)

    def _bind(
        self,
        cache: Cache | DeviceCache,
        graph: GraphName,
        opened: ort.InferenceSession,
        shape: tuple[int, ...],
        k: int,
        vocab_size: int | None,
        gates: FloatArray | None,
    ) -> Binding | DeviceBinding:
        """Bind a graph to a cache for tokens of this shape."""
        if isinstance(cache, Cache):
            names, graphs = (self._self_names, self._cross_names), [opened]
            if graph == "hidden_step":
                listed = cache.target_list
                graphs.append(listed.output.open() if listed else self.open("output"))
            return Binding(cache, graphs, names, k, shape=shape, vocab_size=vocab_size, gates=gates)
        assert self._device_bindings
        return self._device_bindings.bind(cache, opened, k, vocab_size)

    def _gather(self, ids: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the rows (U, M) of the output projection for U ids, and their biases (U,)."""
        rows, biases = self._run("output_rows", ["output_rows", "output_bias"], {"ids": ids})
        return rows, biases

    def attention(
        self,
        inputs: Sequence[IntArray],
        crosses: Sequence[Cross],
        gates: FloatArray | None = None,
    ) -> list[dict[DecoderAttention, AttendedRow]]:
        """Return decoder attention (L, H, T, T), if there is any, and cross-attention (L, H, T, S)
        of each target.

        `inputs` are decoder input ids (T,); `crosses` are their sources, one each.
        """
        feeds = self._teacher_forcing(inputs, crosses)
        graph: GraphName = "attention"
        if gates is not None:
            graph, feeds["gates"] = "gated_decoder", gates
            feeds["target_ids"] = feeds["decoder_input_ids"]
        kinds, layers = self._config.decoder_kinds, self._config.num_decoder_layers
        # The log-probs are not needed here, but NaN anywhere reaches them.
        found = self._attend(graph, kinds, layers, feeds, "token_log_probs")
        lengths = zip(feeds["decoder_length"], feeds["source_length"], strict=True)
        return [
            {
                kind: each.of(i, t, s if kind == "cross" else t)
                for kind, each in zip(kinds, found, strict=True)
            }
            for i, (t, s) in enumerate(lengths)
        ]

    def encoder_attention(
        self, sources: Sequence[IntArray], gates: FloatArray | None = None
    ) -> list[AttendedRow]:
        """Return encoder attention (L, H, S, S) of each source."""
        feeds = self._sources(sources, gates)
        graph: GraphName = "encoder_attention" if gates is None else "gated_encoder"
        layers = self._config.num_encoder_layers
        (found,) = self._attend(graph, ["encoder"], layers, feeds, "memory")
        return [found.of(i, size, size) for i, size in enumerate(feeds["source_length"])]

    def _attend(
        self, graph: GraphName, kinds: Sequence[str], layers: int, feeds: Feeds, last: str
    ) -> list[AttendedBatch]:
        """Return what a graph computes of each of these kinds of attention. A gated graph also has
        the output `last`, which NaN anywhere reaches (`_run`)."""
        gates = feeds.get("gates")
        parts = ["attention"] if gates is None else ["attention", "value_norms"]
        names = [f"{kind}_{part}_{i}" for kind in kinds for part in parts for i in range(layers)]
        found = self._run(graph, names if gates is None else [*names, last], feeds)
        size = len(parts) * layers
        split = [found[size * k : size * (k + 1)] for k in range(len(kinds))]
        if gates is None:
            return [AttendedBatch(each) for each in split]
        own = gates.reshape(len(gates), len(kinds), layers, -1)  # (B, K, L, H)
        return [
            AttendedBatch(each[:layers], each[layers:], own[:, k]) for k, each in enumerate(split)
        ]

    def score(
        self,
        inputs: Sequence[IntArray],
        targets: Sequence[IntArray],
        crosses: Sequence[Cross],
        gates: FloatArray | None = None,
    ) -> list[FloatArray]:
        """Return the log-prob (T,) of each id of `targets` (T,) after the decoder input in the same
        place of `inputs` (T,)."""
        feeds = self._teacher_forcing(inputs, crosses)
        feeds["target_ids"], lengths = self._padded(targets)
        graph: GraphName = "score"
        if gates is not None:
            graph, feeds["gates"] = "gated_decoder", gates
        (log_probs,) = self._run(graph, ["token_log_probs"], feeds)
        return [log_probs[i, :length] for i, length in enumerate(lengths)]

    def _sources(self, sources: Sequence[IntArray], gates: FloatArray | None) -> Feeds:
        """Return the inputs of a pass over sources."""
        ids, lengths = self._padded(sources)
        feeds: Feeds = {"source_ids": ids, "source_length": lengths}
        return feeds if gates is None else {**feeds, "gates": gates}

    def _teacher_forcing(self, inputs: Sequence[IntArray], crosses: Sequence[Cross]) -> Feeds:
        """Return the inputs of a pass over whole targets: padded decoder ids and padded sources."""
        ids, lengths = self._padded(inputs)
        source_length = np.concatenate([cross.source_length for cross in crosses])
        feeds: Feeds = {
            "decoder_input_ids": ids,
            "decoder_length": lengths,
            "source_length": source_length,
        }
        keys_values = zip(*(cross.keys_values for cross in crosses), strict=True)
        for name, parts in zip(self._cross_names, keys_values, strict=True):  # (1, H, S, D) each
            _, heads, _, head_dim = parts[0].shape
            shape = (len(parts), heads, source_length.max(), head_dim)
            feeds[name] = padded = np.zeros(shape, parts[0].dtype)
            for i, part in enumerate(parts):
                padded[i, :, : part.shape[2]] = part[0]
        return feeds

    def _run(self, graph: GraphName, outputs: list[str], feeds: Feeds) -> list[FloatArray]:
        """Raise PassFailed if the last output has NaN or infinity: those of a layer spread to the
        next ones."""
        arrays = cast("list[FloatArray]", self.open(graph).run(outputs, feeds))
        last = arrays[-1]
        total = last.sum(dtype=np.float32)  # keys and values may be float16
        if not (np.isfinite(total) or np.isfinite(last).all()):  # a sum may overflow
            raise PassFailed(NOT_FINITE)
        return arrays

    def _padded(self, rows: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
        """Return ids (B, longest), padded on the right, and lengths (B,)."""
        lengths = np.array([len(row) for row in rows])
        ids = np.full((len(rows), lengths.max()), self._pad_id)
        for padded, row in zip(ids, rows, strict=True):
            padded[: len(row)] = row
        return ids, lengths

    def _check_signatures(self, bundle: Bundle) -> None:
        """Raise StartupError if a graph is not the one the configuration describes.

        Graphs that are opened later are only described: their weights would take memory.
        """
        files = bundle.manifest.precisions[self.precision]
        decoding = {"encoder", "hidden_step", "shortlisted_step" if self.shortlists else "step"}
        for graph in self._graphs:
            path = bundle.path(files[graph])
            session = self.open(graph) if graph in decoding else describe_graph(path)
            wanted = expected_tensors(graph, self._config, CACHE_TYPES[self._cache_type])
            check_signature(path, session, graph, wanted)
        for graph, again in self._beside.items():
            if graph in decoding:
                again.open()


def unpadded(rows: Array, lengths: IntArray) -> list[Array]:
    """Return each row, such as (S, M) of (B, longest, M), without padding."""
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]
