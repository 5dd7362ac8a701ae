"""The graphs of a bundle (docs/bundle.md), as wrappers around the network.

The modules of model.network stay the only definition of the network. A wrapper names the inputs and
outputs. Where no attention weights are returned, it passes ONNX_KERNEL, which attends with ONNX
operators. An SSRU decoder has a state in the place of keys and values, and no decoder attention.

Gated graphs have a gate for each head, and return the value norms. With all gates 1 they compute
the numbers of the others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import onnx
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.onnx.ops import symbolic_multi_out

from model.export.graphs.exporter import Axes, GraphSpec, export_graph
from model.export.graphs.kernel import (
    DRAFT_KERNEL,
    ONNX_KERNEL,
    OPSET,
    OnnxKernel,
    ScanKernel,
    WeighingKernel,
)
from model.export.graphs.rewrite import drop_zero_biases, merge_products
from model.network.attention import KeysValues
from model.network.gates import (
    cross_attentions,
    decoder_attentions,
    decoder_gates,
    encoder_attentions,
    encoder_gates,
    step_gates,
)
from model.network.ssru import State
from model.network.transformer import Decoded, LayerCache, Transformer

SOURCES, SOURCE, TARGET = Dim("sources"), Dim("source"), Dim("target")
ROWS, CAPACITY, READ = Dim("rows"), Dim("capacity"), Dim("read")

SOURCE_AXES: Axes = {"source_ids": {0: SOURCES, 1: SOURCE}, "source_length": {0: SOURCES}}
# no two sizes are equal: the exporter would take them for one axis
SOURCE_EXAMPLE = torch.full((2, 5), 1), torch.tensor([5, 4])
SCAN_KERNEL = ScanKernel()


class ModelGraph(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model


class EncoderGraph(ModelGraph):
    def forward(self, source_ids: Tensor, source_length: Tensor) -> list[Tensor]:
        memory, _ = self.model.encoder(source_ids, source_length, ONNX_KERNEL)
        return [memory, *flat(self.model.decoder.cross(memory))]


class StepGraph(ModelGraph):
    def forward(
        self, token: Tensor, position: Tensor, source_length: Tensor, k: Tensor, *caches: Tensor
    ) -> list[Tensor]:
        return run_step(self.model, token, position, source_length, k, caches, ONNX_KERNEL)


class DraftStepGraph(ModelGraph):
    def forward(
        self, token: Tensor, position: Tensor, source_length: Tensor, k: Tensor, *caches: Tensor
    ) -> list[Tensor]:
        return run_step(self.model, token, position, source_length, k, caches, DRAFT_KERNEL)


class AttentionGraph(ModelGraph):
    def forward(
        self,
        decoder_input_ids: Tensor,
        decoder_length: Tensor,
        source_length: Tensor,
        *cross: Tensor,
    ) -> list[Tensor]:
        decoded = self.model.decoder(
            decoder_input_ids, decoder_length, paired(cross), source_length, SCAN_KERNEL
        )
        return [*decoded.decoder_attention, *decoded.cross_attention]


class ScoreGraph(ModelGraph):
    def forward(
        self,
        decoder_input_ids: Tensor,
        decoder_length: Tensor,
        source_length: Tensor,
        target_ids: Tensor,
        *cross: Tensor,
    ) -> Tensor:
        decoded = self.model.decoder(
            decoder_input_ids, decoder_length, paired(cross), source_length, SCAN_KERNEL
        )
        return log_probs_of(self.model, decoded.hidden, target_ids)


class EncoderAttentionGraph(ModelGraph):
    def forward(self, source_ids: Tensor, source_length: Tensor) -> list[Tensor]:
        return [layer.weights for layer in self.model.encoder(source_ids, source_length)[1]]


class GatedEncoderGraph(ModelGraph):
    def forward(self, source_ids: Tensor, source_length: Tensor, gates: Tensor) -> list[Tensor]:
        kernel = WeighingKernel(encoder_gates(self.model, gates))
        memory, layers = self.model.encoder(source_ids, source_length, kernel)
        attended = zip(encoder_attentions(self.model), layers, strict=True)
        norms = [attention.value_norms(layer.cache.values) for attention, layer in attended]
        cross = flat(self.model.decoder.cross(memory))
        return [memory, *cross, *(layer.weights for layer in layers), *norms]


class GatedStepGraph(ModelGraph):
    def forward(
        self,
        token: Tensor,
        position: Tensor,
        source_length: Tensor,
        k: Tensor,
        gates: Tensor,
        *caches: Tensor,
    ) -> list[Tensor]:
        kernel = OnnxKernel(step_gates(self.model, gates))
        return run_step(self.model, token, position, source_length, k, caches, kernel)


class GatedDecoderGraph(ModelGraph):
    def forward(
        self,
        decoder_input_ids: Tensor,
        decoder_length: Tensor,
        source_length: Tensor,
        target_ids: Tensor,
        gates: Tensor,
        *cross: Tensor,
    ) -> list[Tensor]:
        memory = paired(cross)
        kernel = ScanKernel(decoder_gates(self.model, gates))
        decoded = self.model.decoder(
            decoder_input_ids, decoder_length, memory, source_length, kernel
        )
        own = zip(decoder_attentions(self.model), decoded.cache, strict=False)  # none of an SSRU
        attended = [*own, *zip(cross_attentions(self.model), memory, strict=True)]
        norms = [attention.value_norms(read.values) for attention, read in attended]
        weights = [*decoded.decoder_attention, *decoded.cross_attention]
        return [*weights, *norms, log_probs_of(self.model, decoded.hidden, target_ids)]


def run_step(
    model: Transformer,
    token: Tensor,
    position: Tensor,
    source_length: Tensor,
    k: Tensor,
    caches: tuple[Tensor, ...],
    kernel: OnnxKernel,
) -> list[Tensor]:
    step = decode_step(model, token, position, source_length, caches, kernel)
    logits = model.generator(step.hidden)  # (R * N, V)
    return [*best(logits, k), logits, *flat(step.cache)]


def decode_step(
    model: Transformer,
    token: Tensor,
    position: Tensor,
    source_length: Tensor,
    caches: tuple[Tensor, ...],
    kernel: OnnxKernel,
) -> Decoded:
    """Read N tokens (R, N) a row at their positions (R, N), one after the other."""
    count = len(cache_names("self", model))
    own, cross = own_caches(model, caches[:count]), paired(caches[count:])
    flattened = token.flatten(), position.flatten()
    return model.decoder.step(*flattened, own, cross, source_length, kernel)


def best(logits: Tensor, k: Tensor) -> Sequence[Tensor]:
    """Return the k (1,) largest log-probs of each row, (R, K), and their places in the logits
    (R, V).

    `topk` takes a number: a device would send `k` to the host at each step, and could not capture
    the step for that reason.
    """
    shape = logits.size(0), cast("int", k.item())
    return symbolic_multi_out(
        "TopK",
        (logits.log_softmax(-1), k),
        {"axis": -1},
        dtypes=[logits.dtype, torch.int64],
        shapes=[shape, shape],
        version=OPSET,
    )


def log_probs_of(model: Transformer, hidden: Tensor, target_ids: Tensor) -> Tensor:
    logits = model.generator(hidden)  # (B, T, V)
    chosen = logits.gather(-1, target_ids.unsqueeze(-1)).squeeze(-1)  # (B, T)
    return chosen - logits.logsumexp(-1)  # (B, T)


def encoder_graph(model: Transformer) -> GraphSpec:
    outputs = ["memory", *cache_names("cross", model)]
    return GraphSpec(EncoderGraph(model), SOURCE_EXAMPLE, SOURCE_AXES, outputs)


def step_graph(model: Transformer) -> GraphSpec:
    return spec_of_step(model, StepGraph(model), read=1 if model.config.recurrent else 3)


def draft_step_graph(model: Transformer) -> GraphSpec:
    return spec_of_step(model, DraftStepGraph(model), read=3)


def spec_of_step(model: Transformer, module: ModelGraph, read: int) -> GraphSpec:
    """Return a spec of a step whose rows read so many tokens in the example. With 1, they always
    read one."""
    rows, capacity = 6, 11
    own = flat(model.empty_cache(rows, capacity))
    capacity_axis = {} if model.config.recurrent else {2: CAPACITY}
    position = torch.arange(rows * read).view(rows, read) % capacity
    token = position % model.config.target_vocab_size  # one tensor twice is one input
    example = (token, position, SOURCE_EXAMPLE[1], torch.tensor([1]), *own, *cross_example(model))
    token_axes = {0: ROWS} if read == 1 else {0: ROWS, 1: READ}
    inputs: Axes = {
        "token": token_axes,
        "position": token_axes,
        "source_length": {0: SOURCES},
        "k": None,
        **{name: {0: ROWS} | capacity_axis for name in cache_names("self", model)},
        **{name: {0: SOURCES, 2: SOURCE} for name in cache_names("cross", model)},
    }
    written = [f"{name}_out" for name in cache_names("self", model)]
    outputs = ["top_log_probs", "top_ids", "logits", *written]
    return GraphSpec(module, example, inputs, outputs)


def attention_graph(model: Transformer) -> GraphSpec:
    target_ids, target_length = torch.full((2, 7), 1), torch.tensor([7, 6])
    example = (target_ids, target_length, SOURCE_EXAMPLE[1], *cross_example(model))
    inputs: Axes = {
        "decoder_input_ids": {0: SOURCES, 1: TARGET},
        "decoder_length": {0: SOURCES},
        "source_length": {0: SOURCES},
        **{name: {0: SOURCES, 2: SOURCE} for name in cache_names("cross", model)},
    }
    return GraphSpec(AttentionGraph(model), example, inputs, decoder_outputs("attention", model))


def score_graph(model: Transformer) -> GraphSpec:
    """Take the inputs of the attention graph, and `target_ids` after `source_length`."""
    attention = attention_graph(model)
    target_ids = attention.example[0] + 1  # one tensor twice is one input
    axes = attention.inputs["decoder_input_ids"]
    spec = with_inputs(attention, "source_length", {"target_ids": (axes, target_ids)})
    return replace(spec, module=ScoreGraph(model), outputs=["token_log_probs"])


def encoder_attention_graph(model: Transformer) -> GraphSpec:
    outputs = encoder_outputs("attention", model)
    return GraphSpec(EncoderAttentionGraph(model), SOURCE_EXAMPLE, SOURCE_AXES, outputs)


def gated_encoder_graph(model: Transformer) -> GraphSpec:
    """Take the inputs of the encoder graph and gates (B, L, H)."""
    plain, config = encoder_graph(model), model.config
    gates = torch.ones(2, config.num_encoder_layers, config.num_heads)
    weights, norms = (encoder_outputs(each, model) for each in ("attention", "value_norms"))
    return GraphSpec(
        GatedEncoderGraph(model),
        (*plain.example, gates),
        {**plain.inputs, "gates": {0: SOURCES}},
        [*plain.outputs, *weights, *norms],
    )


def gated_step_graph(model: Transformer) -> GraphSpec:
    """Take the inputs of the step graph, and after `k` gates (R, K, L, H)."""
    module = GatedStepGraph(model)
    return gated(module, spec_of_step(model, module, read=1), "k", ROWS)


def gated_decoder_graph(model: Transformer) -> GraphSpec:
    """Take the inputs of the score graph, and after `target_ids` gates (B, K, L, H)."""
    weights, norms = (decoder_outputs(each, model) for each in ("attention", "value_norms"))
    spec = gated(GatedDecoderGraph(model), score_graph(model), "target_ids", SOURCES)
    return replace(spec, outputs=[*weights, *norms, *spec.outputs])


def gated(module: ModelGraph, plain: GraphSpec, before: str, rows: Dim) -> GraphSpec:
    """Return a spec of a decoder with gates (rows, K, L, H) after the input `before`, for the K
    kinds of attention that it has."""
    config = module.model.config
    count = plain.example[0].size(0)
    kinds = len(decoder_kinds(module.model))
    gates = torch.ones(count, kinds, config.num_decoder_layers, config.num_heads)
    return replace(with_inputs(plain, before, {"gates": ({0: rows}, gates)}), module=module)


def with_inputs(
    plain: GraphSpec, before: str, added: Mapping[str, tuple[dict[int, Dim] | None, Tensor]]
) -> GraphSpec:
    """Return a spec with more inputs after `before`, each with its free axes and an example."""
    place = [*plain.inputs].index(before) + 1
    names, axes = [*plain.inputs.items()], [(name, each) for name, (each, _) in added.items()]
    tensors = [tensor for _, tensor in added.values()]
    return replace(
        plain,
        inputs=dict([*names[:place], *axes, *names[place:]]),
        example=(*plain.example[:place], *tensors, *plain.example[place:]),
    )


def encoder_outputs(what: str, model: Transformer) -> list[str]:
    return [f"encoder_{what}_{layer}" for layer in range(model.config.num_encoder_layers)]


def decoder_outputs(what: str, model: Transformer) -> list[str]:
    layers = range(model.config.num_decoder_layers)
    return [f"{kind}_{what}_{layer}" for kind in decoder_kinds(model) for layer in layers]


def decoder_kinds(model: Transformer) -> list[str]:
    """Return the kinds of attention that the decoder has."""
    return ["cross"] if model.config.recurrent else ["decoder", "cross"]


def cache_names(side: str, model: Transformer) -> list[str]:
    """Names of keys and values, or of states, in the order of `flat`."""
    layers = range(model.config.num_decoder_layers)
    parts = ["state"] if side == "self" and model.config.recurrent else ["key", "value"]
    return [f"{side}_{part}_{layer}" for layer in layers for part in parts]


def flat(layers: Sequence[LayerCache]) -> list[Tensor]:
    return [tensor for kept in layers for tensor in kept]


def own_caches(model: Transformer, tensors: tuple[Tensor, ...]) -> Sequence[LayerCache]:
    """Return what each layer keeps of the target, from the list that `flat` made."""
    return [*map(State, tensors)] if model.config.recurrent else paired(tensors)


def paired(tensors: tuple[Tensor, ...]) -> list[KeysValues]:
    """Return the keys and values of each layer from the list that `flat` made."""
    return [KeysValues(*tensors[i : i + 2]) for i in range(0, len(tensors), 2)]


@torch.no_grad()
def cross_example(model: Transformer) -> list[Tensor]:
    memory = torch.zeros(*SOURCE_EXAMPLE[0].shape, model.config.d_model)  # (B, S, M)
    return flat(model.decoder.cross(memory))


GRAPHS = {
    "encoder": encoder_graph,
    "step": step_graph,
    "draft_step": draft_step_graph,
    "attention": attention_graph,
    "score": score_graph,
    "encoder_attention": encoder_attention_graph,
    "gated_encoder": gated_encoder_graph,
    "gated_step": gated_step_graph,
    "gated_decoder": gated_decoder_graph,
}


def export_graphs(
    model: Transformer,
    progress: Callable[[str], None] = lambda _: None,
    others: Mapping[str, Callable[[Transformer], GraphSpec]] | None = None,
) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield the name of each graph and the graph, which reads weights by their stored names: those
    of every model, and the `others` of this one. Calls `progress` as each export starts.
    """
    state = model.state_dict()
    names = {name: name for name in state} | model.tied_names
    weights = {f"model.{name}": stored for name, stored in names.items()}
    biases = {name: tensor for name, tensor in state.items() if tensor.dim() == 1}
    graphs = {**GRAPHS, **(others or {})}
    if model.config.recurrent:  # a state has no room for what several positions write
        graphs = {name: spec for name, spec in graphs.items() if name != "draft_step"}
    for number, (name, spec) in enumerate(graphs.items(), 1):
        progress(f"graph {number} of {len(graphs)}, {name}")
        proto = export_graph(spec(model), weights)
        drop_zero_biases(proto.graph, biases)
        merge_products(proto.graph)
        yield name, proto
