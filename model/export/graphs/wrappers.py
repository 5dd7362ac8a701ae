"""The graphs of a bundle (docs/bundle.md), as wrappers around the network.

The modules of model.network stay the only definition of the network. A wrapper names the inputs and
outputs. Where no attention weights are returned, it passes ONNX_KERNEL, which attends with ONNX
operators.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn
from torch.export import Dim

from model.export.graphs.exporter import Axes, GraphSpec, export_graph
from model.export.graphs.kernel import ONNX_KERNEL
from model.export.graphs.rewrite import drop_zero_biases, merge_products
from model.network.attention import KeysValues
from model.network.transformer import Transformer

SOURCES, SOURCE, TARGET = Dim("sources"), Dim("source"), Dim("target")
ROWS, CAPACITY = Dim("rows"), Dim("capacity")

SOURCE_AXES: Axes = {"source_ids": {0: SOURCES, 1: SOURCE}, "source_length": {0: SOURCES}}
# no two sizes are equal: the exporter would take them for one axis
SOURCE_EXAMPLE = torch.full((2, 5), 1), torch.tensor([5, 4])


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
        layers = paired(caches)  # the decoder's own caches, then those of cross-attention
        own, cross = layers[: len(layers) // 2], layers[len(layers) // 2 :]
        step = self.model.decoder.step(token, position, own, cross, source_length, ONNX_KERNEL)
        logits = self.model.generator(step.hidden)  # (R, V)
        top = logits.log_softmax(-1).topk(k.item())  # (R, K)
        return [top.values, top.indices, logits, *flat(step.cache)]


class AttentionGraph(ModelGraph):
    def forward(
        self,
        decoder_input_ids: Tensor,
        decoder_length: Tensor,
        source_length: Tensor,
        *cross: Tensor,
    ) -> list[Tensor]:
        decoded = self.model.decoder(
            decoder_input_ids, decoder_length, paired(cross), source_length
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
            decoder_input_ids, decoder_length, paired(cross), source_length
        )
        logits = self.model.generator(decoded.hidden)  # (B, T, V)
        chosen = logits.gather(-1, target_ids.unsqueeze(-1)).squeeze(-1)  # (B, T)
        return chosen - logits.logsumexp(-1)  # (B, T)


class EncoderAttentionGraph(ModelGraph):
    def forward(self, source_ids: Tensor, source_length: Tensor) -> list[Tensor]:
        return self.model.encoder(source_ids, source_length)[1]


def encoder_graph(model: Transformer) -> GraphSpec:
    outputs = ["memory", *cache_names("cross", model)]
    return GraphSpec(EncoderGraph(model), SOURCE_EXAMPLE, SOURCE_AXES, outputs)


def step_graph(model: Transformer) -> GraphSpec:
    rows, capacity = 6, 11
    own = flat(model.empty_cache(rows, capacity))
    token, position = torch.arange(rows), torch.arange(rows)  # one tensor twice is one input
    example = (token, position, SOURCE_EXAMPLE[1], torch.tensor([1]), *own, *cross_example(model))
    inputs: Axes = {
        "token": {0: ROWS},
        "position": {0: ROWS},
        "source_length": {0: SOURCES},
        "k": None,
        **{name: {0: ROWS, 2: CAPACITY} for name in cache_names("self", model)},
        **{name: {0: SOURCES, 2: SOURCE} for name in cache_names("cross", model)},
    }
    written = [f"{name}_out" for name in cache_names("self", model)]
    outputs = ["top_log_probs", "top_ids", "logits", *written]
    return GraphSpec(StepGraph(model), example, inputs, outputs)


def attention_graph(model: Transformer) -> GraphSpec:
    target_ids, target_length = torch.full((2, 7), 1), torch.tensor([7, 6])
    example = (target_ids, target_length, SOURCE_EXAMPLE[1], *cross_example(model))
    inputs: Axes = {
        "decoder_input_ids": {0: SOURCES, 1: TARGET},
        "decoder_length": {0: SOURCES},
        "source_length": {0: SOURCES},
        **{name: {0: SOURCES, 2: SOURCE} for name in cache_names("cross", model)},
    }
    layers = range(model.config.num_decoder_layers)
    outputs = [f"{kind}_attention_{layer}" for kind in ("decoder", "cross") for layer in layers]
    return GraphSpec(AttentionGraph(model), example, inputs, outputs)


def score_graph(model: Transformer) -> GraphSpec:
    """Take the inputs of the attention graph, and `target_ids` after `source_length`."""
    attention = attention_graph(model)
    ids, *lengths = attention.example[:3]
    inputs: Axes = {}
    for name, axes in attention.inputs.items():
        inputs[name] = axes
        if name == "source_length":
            inputs["target_ids"] = attention.inputs["decoder_input_ids"]
    example = (ids, *lengths, ids + 1, *attention.example[3:])  # one tensor twice is one input
    return GraphSpec(ScoreGraph(model), example, inputs, ["token_log_probs"])


def encoder_attention_graph(model: Transformer) -> GraphSpec:
    outputs = [f"encoder_attention_{layer}" for layer in range(model.config.num_encoder_layers)]
    return GraphSpec(EncoderAttentionGraph(model), SOURCE_EXAMPLE, SOURCE_AXES, outputs)


def cache_names(side: str, model: Transformer) -> list[str]:
    """Names of keys and values, in the order of `flat`."""
    layers = range(model.config.num_decoder_layers)
    return [f"{side}_{part}_{layer}" for layer in layers for part in ("key", "value")]


def flat(layers: list[KeysValues]) -> list[Tensor]:
    return [tensor for keys_values in layers for tensor in keys_values]


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
    "attention": attention_graph,
    "score": score_graph,
    "encoder_attention": encoder_attention_graph,
}


def export_graphs(
    model: Transformer, progress: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield the name of each graph and the graph, which reads weights by their stored names.

    Calls `progress` with what each export is of, as it starts.
    """
    state = model.state_dict()
    names = {name: name for name in state} | model.tied_names
    weights = {f"model.{name}": stored for name, stored in names.items()}
    biases = {name: tensor for name, tensor in state.items() if tensor.dim() == 1}
    for number, (name, spec) in enumerate(GRAPHS.items(), 1):
        progress(f"graph {number} of {len(GRAPHS)}, {name}")
        proto = export_graph(spec(model), weights)
        drop_zero_biases(proto.graph, biases)
        merge_products(proto.graph)
        yield name, proto


def save_graph(proto: onnx.ModelProto, path: Path) -> None:
    onnx.save(proto, path)
    onnx.checker.check_model(path)
