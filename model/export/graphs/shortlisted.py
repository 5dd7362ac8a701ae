"""Graphs of models with shortlists: a step that scores some tokens, and what it needs of these."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.export import Dim
from torch.nn.functional import embedding, linear

from model.export.graphs.exporter import GraphSpec
from model.export.graphs.kernel import ONNX_KERNEL
from model.export.graphs.wrappers import (
    SOURCES,
    ModelGraph,
    best,
    decode_step,
    flat,
    spec_of_step,
    with_inputs,
)
from model.network.transformer import Transformer

LISTED = Dim("listed")  # tokens on the shortlists of a batch


class ShortlistedStepGraph(ModelGraph):
    """The step over U rows of the output projection, those of all tokens that some source of the
    batch may have. The bias of a token that a source may not have is -inf."""

    def forward(
        self,
        token: Tensor,
        position: Tensor,
        source_length: Tensor,
        k: Tensor,
        output_rows: Tensor,
        output_bias: Tensor,
        *caches: Tensor,
    ) -> list[Tensor]:
        step = decode_step(self.model, token, position, source_length, caches, ONNX_KERNEL)
        products = linear(step.hidden, output_rows)  # (R, U)
        by_source = products.view(output_bias.size(0), -1, products.size(1))  # (B, R / B, U)
        logits = (by_source + output_bias.unsqueeze(1)).view(-1, products.size(1))  # (R, U)
        return [*best(logits, k), logits, *flat(step.cache)]


class OutputRowsGraph(ModelGraph):
    """Rows and biases of the output projection, for the step with a shortlist."""

    def forward(self, ids: Tensor) -> list[Tensor]:
        generator = self.model.generator
        return [embedding(ids, generator.weight), generator.bias[ids]]


def shortlisted_step_graph(model: Transformer) -> GraphSpec:
    """Take the inputs of the step, and after `k` output_rows (U, M) and output_bias (B, U)."""
    module, listed = ShortlistedStepGraph(model), 13
    plain = spec_of_step(model, module, read=1)
    rows, bias = torch.zeros(listed, model.config.d_model), torch.zeros(2, listed)
    spec = with_inputs(
        plain,
        "k",
        {"output_rows": ({0: LISTED}, rows), "output_bias": ({0: SOURCES, 1: LISTED}, bias)},
    )
    outputs = ["top_log_probs", "top_places", *plain.outputs[2:]]
    return replace(spec, outputs=outputs)


def output_rows_graph(model: Transformer) -> GraphSpec:
    example = (torch.arange(5),)
    outputs = ["output_rows", "output_bias"]
    return GraphSpec(OutputRowsGraph(model), example, {"ids": {0: LISTED}}, outputs)


SHORTLISTED = {
    "shortlisted_step": shortlisted_step_graph,
    "output_rows": output_rows_graph,
}
