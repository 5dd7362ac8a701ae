"""Graphs of models whose languages have lists of tokens: a step up to its hidden state, and the
output projection by itself, over all tokens or over those of a list."""

from dataclasses import replace

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor

from model.export.graphs.exporter import GraphSpec
from model.export.graphs.kernel import ONNX_KERNEL
from model.export.graphs.rewrite import rename_inputs, replace_nodes
from model.export.graphs.wrappers import (
    ROWS,
    ModelGraph,
    best,
    decode_step,
    flat,
    spec_of_step,
    step_graph,
)
from model.network.transformer import Transformer

HIDDEN_STEP, OUTPUT = "hidden_step", "output"


class HiddenStepGraph(ModelGraph):
    """The step without the output projection."""

    def forward(
        self, token: Tensor, position: Tensor, source_length: Tensor, *caches: Tensor
    ) -> list[Tensor]:
        step = decode_step(self.model, token, position, source_length, caches, ONNX_KERNEL)
        return [step.hidden, *flat(step.cache)]


class OutputGraph(ModelGraph):
    def forward(self, hidden: Tensor, k: Tensor) -> list[Tensor]:
        logits = self.model.generator(hidden)  # (R, V)
        return [*best(logits, k), logits]


def hidden_step_graph(model: Transformer) -> GraphSpec:
    """Take the inputs of the step but `k`, and return hidden (R, M) in place of candidates."""
    plain = spec_of_step(model, HiddenStepGraph(model), read=1)
    place = [*plain.inputs].index("k")
    return replace(
        plain,
        inputs={name: axes for name, axes in plain.inputs.items() if name != "k"},
        example=(*plain.example[:place], *plain.example[place + 1 :]),
        outputs=["hidden", *plain.outputs[3:]],
    )


def output_graph(model: Transformer) -> GraphSpec:
    """Take hidden (R, M), and return what the step returns of them."""
    example = (torch.zeros(6, model.config.d_model), torch.tensor([1]))
    outputs = step_graph(model).outputs[:3]
    return GraphSpec(OutputGraph(model), example, {"hidden": {0: ROWS}, "k": None}, outputs)


LISTED = {HIDDEN_STEP: hidden_step_graph, OUTPUT: output_graph}


def keep_tokens(graph: onnx.GraphProto, tokens: NDArray[np.int64]) -> None:
    """Let the graph of the output projection score only these tokens (N,), and name them by their
    places in the list.

    Its weights, which it reads and does not define, have a row or a number for each token. The
    runtime gathers those of the list when it opens the graph, and packs no others.
    """
    defined = {each.name for each in (*graph.input, *graph.initializer)}
    defined |= {name for node in graph.node for name in node.output}
    weights = sorted({name for node in graph.node for name in node.input} - defined - {""})
    rename_inputs(graph, {name: f"{name}_listed" for name in weights})
    gathers = [helper.make_node("Gather", [name, "tokens"], [f"{name}_listed"]) for name in weights]
    replace_nodes(graph, [*gathers, *graph.node])
    graph.initializer.append(numpy_helper.from_array(tokens.astype(np.int32), "tokens"))
    _, ids, logits = graph.output
    for node in graph.node:
        for place, name in enumerate(node.output):
            node.output[place] = "top_places" if name == ids.name else name
    ids.name = "top_places"
    logits.type.tensor_type.shape.dim[1].dim_value = len(tokens)
