"""Scores of queries and keys, and the softmax that turns them into weights.

Axes: B batch, T queries, S keys, H heads, D head_dim of queries and keys (d_qk).
"""

import torch
from torch import Tensor, nn

from model.network.config import ScoreFunction, TransformerConfig


def masked_softmax(scores: Tensor, valid_lengths: Tensor) -> Tensor:
    """Return the softmax of finite scores (B, H, T, S) over the valid keys, in the same shape.

    Lengths (B,) let every query of a sequence see its first n keys; lengths (B, T) give each query
    its own n. They express padding, causal masks and half-filled caches.
    Over the valid keys the weights sum to 1, elsewhere they are exactly 0; a query without a valid
    key has only zeros.
    """
    lengths = valid_lengths.view(scores.size(0), 1, -1, 1)  # (B, 1, 1 or T, 1)
    masked = torch.arange(scores.size(-1), device=scores.device) >= lengths  # (B, 1, 1 or T, S)
    least = torch.finfo(scores.dtype).min  # finite: a row of -inf alone would give NaN
    return scores.masked_fill(masked, least).softmax(dim=-1).masked_fill(masked, 0.0)


def average_scores(query: Tensor, keys: Tensor) -> Tensor:
    """(B, H, T, D), (B, H, S, E) -> zeros (B, H, T, S): every key weighs the same."""
    return query.new_zeros(*query.shape[:-1], keys.size(-2))


def scaled_dot_product_scores(query: Tensor, keys: Tensor) -> Tensor:
    """(B, H, T, D), (B, H, S, D) -> q . k / sqrt(D), (B, H, T, S)."""
    return query @ keys.transpose(-2, -1) * query.size(-1) ** -0.5


def additive_scores(query: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
    """Projected queries (B, H, T, D), keys (B, H, S, D), weight (H, D) -> w . tanh(q + k)."""
    hidden = torch.tanh(query.unsqueeze(3) + keys.unsqueeze(2))  # (B, H, T, S, D)
    return (hidden * weight[:, None, None, :]).sum(-1)  # (B, H, T, S)


def gaussian_scores(query: Tensor, keys: Tensor, width: Tensor) -> Tensor:
    """(B, H, T, D), (B, H, S, D), width (H,) -> -|width (q - k)|^2 / 2, (B, H, T, S)."""
    squares = (query.unsqueeze(3) - keys.unsqueeze(2)).square().sum(-1)  # (B, H, T, S)
    return squares * width[:, None, None].square() * -0.5


class ScaledDotProduct(nn.Module):
    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return scaled_dot_product_scores(query, keys)


class Additive(nn.Module):
    def __init__(self, num_heads: int, d_qk: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, d_qk))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return additive_scores(query, keys, self.weight)


class Gaussian(nn.Module):
    """A Gaussian kernel with a learned width for each head.

    With the initial width, scores of normally distributed queries and keys have a variance near 1.
    """

    def __init__(self, num_heads: int, d_qk: int) -> None:
        super().__init__()
        self.width = nn.Parameter(torch.full((num_heads,), (2 * d_qk) ** -0.25))

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return gaussian_scores(query, keys, self.width)


def score_module(config: TransformerConfig) -> nn.Module:
    match config.score_function:
        case ScoreFunction.scaled_dot_product:
            return ScaledDotProduct()
        case ScoreFunction.additive:
            return Additive(config.num_heads, config.d_qk)
        case ScoreFunction.gaussian:
            return Gaussian(config.num_heads, config.d_qk)
