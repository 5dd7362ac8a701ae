"""Attention: scores, masked softmax, weighted mean, and many heads of it.

Axes: B batch, T queries, S keys, H heads, D head_dim, M d_model.
A mask is given as valid lengths: (B,) lets every query of a sequence see its first n keys, (B, T)
gives each query a length of its own. Padding, causality and a half-filled cache are all lengths.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn


def masked_softmax(scores: Tensor, valid_lengths: Tensor) -> Tensor:
    """(B, H, T, S) scores, (B,) or (B, T) lengths >= 1 -> weights.

    Over the valid keys they sum to 1, elsewhere they are exactly 0.
    """
    lengths = valid_lengths.view(scores.size(0), 1, -1, 1)  # (B, 1, 1 or T, 1)
    mask = torch.arange(scores.size(-1), device=scores.device) < lengths  # (B, 1, 1 or T, S)
    return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)


def scaled_dot_product_weights(query: Tensor, keys: Tensor, valid_lengths: Tensor) -> Tensor:
    """(B, H, T, D) query, (B, H, S, D) keys -> (B, H, T, S): softmax(Q K^T / sqrt(D))."""
    scores = query @ keys.transpose(-2, -1) * query.size(-1) ** -0.5  # (B, H, T, S)
    return masked_softmax(scores, valid_lengths)


def write_cache(cache: Tensor, new: Tensor, position: Tensor) -> Tensor:
    """(R, H, T, D) cache with row r of `new` (R, H, 1, D) at its own `position` (R,)."""
    index = position.view(-1, 1, 1, 1).expand_as(new)  # (R, H, 1, D)
    return cache.scatter(2, index, new)


class Kernel(NamedTuple):
    """How attention is computed: in torch for training and as the oracle, as operators in export.

    attend(query, keys, values, valid_lengths, dropout) -> mixed (B, H, T, D), weights (B, H, T, S)
    write(cache, new, position) -> cache
    """

    attend: Callable[[Tensor, Tensor, Tensor, Tensor, nn.Module], tuple[Tensor, Tensor]]
    write: Callable[[Tensor, Tensor, Tensor], Tensor]


def scaled_dot_product_attention(
    query: Tensor, keys: Tensor, values: Tensor, valid_lengths: Tensor, dropout: nn.Module
) -> tuple[Tensor, Tensor]:
    weights = scaled_dot_product_weights(query, keys, valid_lengths)
    return dropout(weights) @ values, weights


TORCH_KERNEL = Kernel(scaled_dot_product_attention, write_cache)


class KeysValues(NamedTuple):
    """Projected keys and values of one attention, (B, H, S, D) each: what a cache holds."""

    keys: Tensor
    values: Tensor


class MultiHeadAttention(nn.Module):
    """Vaswani et al. 2017, section 3.2.2: projected Q, K and V, attention per head, one output."""

    def __init__(self, d_model: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def project(self, x: Tensor) -> KeysValues:
        """(B, S, M), or (B, M) for one position each."""
        return KeysValues(self.split(self.key(x), x.size(0)), self.split(self.value(x), x.size(0)))

    def split(self, x: Tensor, batch: int) -> Tensor:
        x = x.view(batch, -1, self.num_heads, self.head_dim)  # (B, T, H, D)
        return x.transpose(1, 2)  # (B, H, T, D)

    def forward(
        self, x: Tensor, memory: KeysValues, valid_lengths: Tensor, kernel: Kernel
    ) -> tuple[Tensor, Tensor]:
        """x (B, T, M), or its rows (B * T, M) -> the same shape, and weights (B, H, T, S)."""
        query = self.split(self.query(x), memory.keys.size(0))  # (B, H, T, D)
        mixed, weights = kernel.attend(query, *memory, valid_lengths, self.dropout)
        return self.output(mixed.transpose(1, 2).reshape(x.shape)), weights
