"""Attention mechanisms without a network, exported for /v1/attend: weighted means of values.

Axes: B sequences, T queries, S keys, D size of a query, E size of a key, V size of a value, h
hidden size of additive attention.
"""

from pathlib import Path

import onnx
import torch
from torch import Tensor, nn
from torch.export import Dim

from model.export.graphs.exporter import Axes, GraphSpec, export_graph
from model.network.scores import (
    additive_scores,
    average_scores,
    gaussian_scores,
    masked_softmax,
    scaled_dot_product_scores,
)


def pool(scores: Tensor, values: Tensor, valid_lengths: Tensor) -> tuple[Tensor, Tensor]:
    """(B, 1, T, S), (B, S, V), (B, T) -> outputs (B, T, V), weights (B, T, S)."""
    weights = masked_softmax(scores, valid_lengths).squeeze(1)  # (B, T, S)
    return weights @ values, weights


class AveragePooling(nn.Module):
    """Mean of the values of all valid keys."""

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        scores = average_scores(queries.unsqueeze(1), keys.unsqueeze(1))
        return pool(scores, values, valid_lengths)


class ScaledDotProductPooling(nn.Module):
    """Weights softmax(q . k / sqrt(D)), Vaswani et al. 2017."""

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        scores = scaled_dot_product_scores(queries.unsqueeze(1), keys.unsqueeze(1))
        return pool(scores, values, valid_lengths)


class GaussianPooling(nn.Module):
    """Weights softmax(-|width (q - k)|^2 / 2): kernel regression, Nadaraya 1964 and Watson 1964."""

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lengths: Tensor, width: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Pool with a kernel `width` (1,)."""
        scores = gaussian_scores(queries.unsqueeze(1), keys.unsqueeze(1), width)
        return pool(scores, values, valid_lengths)


class AdditivePooling(nn.Module):
    """Weights softmax(w . tanh(W_q q + W_k k)), Bahdanau et al. 2015: D and E may differ."""

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        valid_lengths: Tensor,
        query_weight: Tensor,
        key_weight: Tensor,
        score_weight: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Pool with query_weight (h, D), key_weight (h, E) and score_weight (h,)."""
        projected = queries @ query_weight.T, keys @ key_weight.T  # (B, T, h), (B, S, h)
        query, key = (x.unsqueeze(1) for x in projected)
        return pool(additive_scores(query, key, score_weight.unsqueeze(0)), values, valid_lengths)


def mechanism_graph(module: nn.Module) -> GraphSpec:
    """Return the mechanism's graph for export; the sizes of all inputs but `width` are dynamic."""
    b, t, s, h = Dim("sequences"), Dim("queries"), Dim("keys"), Dim("hidden")
    # sizes of vectors; do not change these names: exported graphs have them
    d, e, v = Dim("query_width"), Dim("key_width"), Dim("value_width")
    if not isinstance(module, AdditivePooling | AveragePooling):
        e = d
    inputs: Axes = {
        "queries": {0: b, 1: t, 2: d},
        "keys": {0: b, 1: s, 2: e},
        "values": {0: b, 1: s, 2: v},
        "valid_lengths": {0: b, 1: t},
    }
    key_size = 5 if e is d else 6
    example = [torch.zeros(2, 3, 5), torch.zeros(2, 4, key_size), torch.zeros(2, 4, 7)]
    example += [torch.ones(2, 3, dtype=torch.int64)]
    if isinstance(module, GaussianPooling):
        inputs["width"] = None
        example.append(torch.ones(1))
    if isinstance(module, AdditivePooling):
        inputs |= {"query_weight": {0: h, 1: d}, "key_weight": {0: h, 1: e}, "score_weight": {0: h}}
        example += [torch.zeros(8, 5), torch.zeros(8, 6), torch.zeros(8)]
    return GraphSpec(module, tuple(example), inputs, ["outputs", "weights"])


MECHANISMS: dict[str, nn.Module] = {
    "average": AveragePooling(),
    "gaussian": GaussianPooling(),
    "scaled_dot_product": ScaledDotProductPooling(),
    "additive": AdditivePooling(),
}


def export_mechanisms(folder: Path) -> None:
    """Write the graph of each mechanism to {mechanism}.onnx in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, module in MECHANISMS.items():
        onnx.save(export_graph(mechanism_graph(module), {}), folder / f"{name}.onnx")
