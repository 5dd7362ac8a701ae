"""torch modules -> the ONNX graphs of a bundle (docs/bundle.md).

The modules of model.transformer stay the only definition of the network: each graph is a wrapper
that names inputs and outputs, and the cached ones are given ONNX operators to attend with.
"""

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn
from torch.export import Dim

from model.export.kernel import ONNX_KERNEL, OPSET
from model.export.rewrite import merge_products
from model.network.attention import KeysValues
from model.network.transformer import Transformer

SOURCES, SOURCE, TARGET = Dim("sources"), Dim("source"), Dim("target")
ROWS, CAPACITY = Dim("rows"), Dim("capacity")
Axes = dict[str, dict[int, Dim] | None]


@dataclass(frozen=True, slots=True)
class Graph:
    """A wrapper module, example inputs, and by name what goes in (with its free axes) and out."""

    module: nn.Module
    example: tuple[Tensor, ...]
    inputs: Axes
    outputs: list[str]


def pairs(tensors: tuple[Tensor, ...]) -> list[KeysValues]:
    return [KeysValues(*tensors[i : i + 2]) for i in range(0, len(tensors), 2)]


class EncoderGraph(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source_ids: Tensor, source_length: Tensor) -> list[Tensor]:
        memory, _ = self.model.encoder(source_ids, source_length, ONNX_KERNEL)
        return [memory, *(tensor for cross in self.model.decoder.cross(memory) for tensor in cross)]


class StepGraph(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, token: Tensor, position: Tensor, source_length: Tensor, k: Tensor, *caches: Tensor
    ) -> list[Tensor]:
        own, cross = pairs(caches[: len(caches) // 2]), pairs(caches[len(caches) // 2 :])
        step = self.model.decoder.step(token, position, own, cross, source_length, ONNX_KERNEL)
        logits = self.model.generator(step.hidden)  # (R, V)
        top = logits.log_softmax(-1).topk(k.item())  # (R, K)
        return [top.values, top.indices, logits, *(tensor for kv in step.cache for tensor in kv)]


class AttentionGraph(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        decoder_input_ids: Tensor,
        decoder_length: Tensor,
        source_length: Tensor,
        *cross: Tensor,
    ) -> list[Tensor]:
        forced = self.model.decoder(decoder_input_ids, decoder_length, pairs(cross), source_length)
        return [*forced.decoder_attention, *forced.cross_attention]


class ScoreGraph(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        decoder_input_ids: Tensor,
        decoder_length: Tensor,
        source_length: Tensor,
        target_ids: Tensor,
        *cross: Tensor,
    ) -> Tensor:
        forced = self.model.decoder(decoder_input_ids, decoder_length, pairs(cross), source_length)
        logits = self.model.generator(forced.hidden)  # (B, T, V)
        chosen = logits.gather(-1, target_ids.unsqueeze(-1)).squeeze(-1)
        return chosen - logits.logsumexp(-1)  # (B, T)


class EncoderAttentionGraph(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source_ids: Tensor, source_length: Tensor) -> list[Tensor]:
        return self.model.encoder(source_ids, source_length)[1]


SOURCE_AXES: Axes = {"source_ids": {0: SOURCES, 1: SOURCE}, "source_length": {0: SOURCES}}
SOURCE_EXAMPLE = torch.full((2, 5), 1), torch.tensor([5, 4])  # all sizes differ, or seem one axis


def encoder_graph(model: Transformer) -> Graph:
    outputs = ["memory", *keys_values("cross", model)]
    return Graph(EncoderGraph(model), SOURCE_EXAMPLE, SOURCE_AXES, outputs)


def step_graph(model: Transformer) -> Graph:
    rows, capacity = 6, 11
    own = tuple(tensor for kv in model.empty_cache(rows, capacity) for tensor in kv)
    token, position = torch.arange(rows), torch.arange(rows)  # one tensor twice is one input
    example = (token, position, SOURCE_EXAMPLE[1], torch.tensor([1]), *own, *cross_example(model))
    inputs: Axes = {
        "token": {0: ROWS},
        "position": {0: ROWS},
        "source_length": {0: SOURCES},
        "k": None,
        **{name: {0: ROWS, 2: CAPACITY} for name in keys_values("self", model)},
        **{name: {0: SOURCES, 2: SOURCE} for name in keys_values("cross", model)},
    }
    written = [f"{name}_out" for name in keys_values("self", model)]
    outputs = ["top_log_probs", "top_ids", "logits", *written]
    return Graph(StepGraph(model), example, inputs, outputs)


def attention_graph(model: Transformer) -> Graph:
    target_ids, target_length = torch.full((2, 7), 1), torch.tensor([7, 6])
    example = (target_ids, target_length, SOURCE_EXAMPLE[1], *cross_example(model))
    inputs: Axes = {
        "decoder_input_ids": {0: SOURCES, 1: TARGET},
        "decoder_length": {0: SOURCES},
        "source_length": {0: SOURCES},
        **{name: {0: SOURCES, 2: SOURCE} for name in keys_values("cross", model)},
    }
    layers = range(model.config.num_decoder_layers)
    outputs = [f"{kind}_attention_{layer}" for kind in ("decoder", "cross") for layer in layers]
    return Graph(AttentionGraph(model), example, inputs, outputs)


def score_graph(model: Transformer) -> Graph:
    attention = attention_graph(model)
    ids, *lengths = attention.example[:3]
    inputs: Axes = {}
    for name, axes in attention.inputs.items():
        inputs[name] = axes
        if name == "source_length":
            inputs["target_ids"] = attention.inputs["decoder_input_ids"]
    example = (ids, *lengths, ids + 1, *attention.example[3:])  # one tensor twice is one input
    return Graph(ScoreGraph(model), example, inputs, ["token_log_probs"])


def encoder_attention_graph(model: Transformer) -> Graph:
    outputs = [f"encoder_attention_{layer}" for layer in range(model.config.num_encoder_layers)]
    return Graph(EncoderAttentionGraph(model), SOURCE_EXAMPLE, SOURCE_AXES, outputs)


def keys_values(side: str, model: Transformer) -> list[str]:
    layers = range(model.config.num_decoder_layers)
    return [f"{side}_{part}_{layer}" for layer in layers for part in ("key", "value")]


@torch.no_grad()
def cross_example(model: Transformer) -> tuple[Tensor, ...]:
    memory = torch.zeros(*SOURCE_EXAMPLE[0].shape, model.config.d_model)  # (B, S, M)
    return tuple(tensor for kv in model.decoder.cross(memory) for tensor in kv)


@contextmanager
def quiet() -> Generator[None]:
    """The exporter warns of axes that share a name, which is meant, and that torchvision, which is
    not needed, is missing."""
    logger = logging.getLogger("torch.onnx._internal.exporter")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="# The axis name")
        warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")
        yield
    logger.setLevel(level)


def export_graph(graph: Graph) -> onnx.ModelProto:
    axes = tuple(graph.inputs.values())
    fixed = len([name for name in graph.inputs if not name.startswith(("self_", "cross_"))])
    dynamic_shapes = (*axes[:fixed], axes[fixed:]) if axes[fixed:] else axes
    with quiet():
        program = torch.onnx.export(
            graph.module.eval(),
            graph.example,
            input_names=list(graph.inputs),
            output_names=graph.outputs,
            dynamic_shapes=dynamic_shapes,
            dynamo=True,
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None  # only the exporter that writes files itself returns nothing
    proto = program.model_proto
    for traced in (*proto.graph.node, *proto.graph.value_info, proto.graph, proto):
        del traced.metadata_props[:]  # stack traces of the machine that exported
    merge_products(proto.graph)
    return proto


def export_graphs(model: Transformer) -> dict[str, onnx.ModelProto]:
    """Every graph, its constants inside."""
    graphs = {
        "encoder": encoder_graph,
        "step": step_graph,
        "attention": attention_graph,
        "score": score_graph,
        "encoder_attention": encoder_attention_graph,
    }
    return {name: export_graph(graph_of(model)) for name, graph_of in graphs.items()}


def save_graphs(graphs: dict[str, onnx.ModelProto], folder: Path) -> None:
    for name, proto in graphs.items():
        onnx.save(proto, folder / f"{name}.onnx")
        onnx.checker.check_model(folder / f"{name}.onnx")
