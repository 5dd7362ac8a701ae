"""Attention: scores, masked softmax, weighted mean, and many heads of it.

Axes: B batch, T queries, S keys, H heads, D width of a query and a key, M d_model. The values may
have a width of their own.
A mask is given as valid lengths: (B,) lets every query of a sequence see its first n keys, (B, T)
gives each query a length of its own. Padding, causality and a half-filled cache are all lengths.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.network.config import ScoreFunction, TransformerConfig
from model.network.dropout import Dropout
from model.network.positions import Rotary


def masked_softmax(scores: Tensor, valid_lengths: Tensor) -> Tensor:
    """(B, H, T, S) finite scores, (B,) or (B, T) lengths -> weights.

    Over the valid keys they sum to 1, elsewhere they are exactly 0; with no valid key all are 0.
    """
    lengths = valid_lengths.view(scores.size(0), 1, -1, 1)  # (B, 1, 1 or T, 1)
    masked = torch.arange(scores.size(-1), device=scores.device) >= lengths  # (B, 1, 1 or T, S)
    least = torch.finfo(scores.dtype).min
    return scores.masked_fill(masked, least).softmax(dim=-1).masked_fill(masked, 0.0)


def average_scores(query: Tensor, keys: Tensor) -> Tensor:
    """(B, H, T, D), (B, H, S, E) -> zeros (B, H, T, S): every key weighs the same."""
    return query.new_zeros(*query.shape[:-1], keys.size(-2))


def scaled_dot_product_scores(query: Tensor, keys: Tensor) -> Tensor:
    """(B, H, T, D), (B, H, S, D) -> q . k / sqrt(D), (B, H, T, S)."""
    return query @ keys.transpose(-2, -1) * query.size(-1) ** -0.5


def additive_scores(query: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
    """Projected queries (B, H, T, D) and keys (B, H, S, D), weight (H, D) -> w . tanh(q + k)."""
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
    """The width is learned; it starts so that scores of normal queries and keys vary like 1."""

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


def write_cache(cache: Tensor, new: Tensor, position: Tensor) -> Tensor:
    """(R, H, T, D) cache with row r of `new` (R, H, 1, D) at its own `position` (R,)."""
    index = position.view(-1, 1, 1, 1).expand_as(new)  # (R, H, 1, D)
    return cache.scatter(2, index, new)


class KeysValues(NamedTuple):
    """Projected keys (B, H, S, D) and values of one attention: what a cache holds."""

    keys: Tensor
    values: Tensor


WriteCache = Callable[[Tensor, Tensor, Tensor], Tensor]
Attend = Callable[[nn.Module, Tensor, KeysValues, Tensor, nn.Module], tuple[Tensor, Tensor]]
AttendCached = Callable[
    [nn.Module, Tensor, KeysValues, KeysValues, Tensor, Rotary | None],
    tuple[Tensor, KeysValues, Tensor],
]


class Kernel(NamedTuple):
    """How attention is computed: in torch for training and as the oracle, as operators in export.

    attend(score, query, memory, valid_lengths, dropout) -> mixed values (B, H, T, D), weights
    (B, H, T, S).
    attend_self(score, query, own, valid_lengths, dropout, num_heads, rotary) for whole sequences,
    query and own (B, T, H * D) -> mixed values (B, T, H * D), own as it was attended to
    (B, H, T, D), weights (B, H, T, T).
    attend_cached(score, query, own, past, position, rotary) for one position a row, query and own
    (R, H * D), past (R, H, T, D) -> mixed values (R, H * D), past with own at its position (R,),
    weights (R, H, 1, T).
    Where there is a rotary, it turns queries and keys before they meet.
    """

    attend: Attend
    attend_self: Callable[
        [nn.Module, Tensor, KeysValues, Tensor, nn.Module, int, Rotary | None],
        tuple[Tensor, KeysValues, Tensor],
    ]
    attend_cached: AttendCached


def attend(
    score: nn.Module, query: Tensor, memory: KeysValues, valid_lengths: Tensor, dropout: nn.Module
) -> tuple[Tensor, Tensor]:
    weights = masked_softmax(score(query, memory.keys), valid_lengths)
    return dropout(weights) @ memory.values, weights


def attend_self(
    score: nn.Module,
    query: Tensor,
    own: KeysValues,
    valid_lengths: Tensor,
    dropout: nn.Module,
    num_heads: int,
    rotary: Rotary | None,
) -> tuple[Tensor, KeysValues, Tensor]:
    query, keys, values = (split_heads(x, num_heads) for x in (query, *own))
    if rotary:
        position = torch.arange(query.size(2), device=query.device)
        query, keys = rotary(query, position), rotary(keys, position)
    own = KeysValues(keys, values)
    mixed, weights = attend(score, query, own, valid_lengths, dropout)
    return merge_heads(mixed), own, weights


def write_then_attend(write: WriteCache, attend: Attend) -> AttendCached:
    """-> attend_cached: rows write their keys and values, then attend to what is in the cache."""

    def attend_cached(
        score: nn.Module,
        query: Tensor,
        own: KeysValues,
        past: KeysValues,
        position: Tensor,
        rotary: Rotary | None,
    ) -> tuple[Tensor, KeysValues, Tensor]:
        heads = past.keys.size(1)
        query, keys, values = (x.unflatten(-1, (heads, 1, -1)) for x in (query, *own))
        if rotary:
            each_row = position.view(-1, 1, 1)
            query, keys = rotary(query, each_row), rotary(keys, each_row)
        memory = KeysValues(write(past.keys, keys, position), write(past.values, values, position))
        mixed, weights = attend(score, query, memory, position + 1, nn.Identity())
        return mixed.flatten(1), memory, weights

    return attend_cached


TORCH_KERNEL = Kernel(attend, attend_self, write_then_attend(write_cache, attend))


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, T, H * D) -> (B, H, T, D)."""
    return x.view(*x.shape[:2], num_heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, D) -> (B, T, H * D)."""
    return x.transpose(1, 2).flatten(2)


class MultiHeadAttention(nn.Module):
    """Vaswani et al. 2017, section 3.2.2: projected Q, K and V, attention per head, one output.

    A head's widths need not divide d_model.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.num_heads, self.d_qk = config.num_heads, config.d_qk
        self.query = nn.Linear(config.d_model, config.num_heads * config.d_qk)
        self.key = nn.Linear(config.d_model, config.num_heads * config.d_qk)
        self.value = nn.Linear(config.d_model, config.num_heads * config.d_v)
        self.output = nn.Linear(config.num_heads * config.d_v, config.d_model)
        self.score = score_module(config)
        self.dropout = Dropout(config.dropout)

    def project(self, x: Tensor) -> KeysValues:
        """(B, S, M) -> (B, H, S, D)."""
        return KeysValues(*(split_heads(f(x), self.num_heads) for f in (self.key, self.value)))

    def forward(
        self, x: Tensor, memory: KeysValues, valid_lengths: Tensor, kernel: Kernel
    ) -> tuple[Tensor, Tensor]:
        """x (B, T, M), or its rows (B * T, M) -> the same shape, and weights (B, H, T, S)."""
        parted = self.query(x).reshape(memory.keys.size(0), -1, self.num_heads, self.d_qk)
        query = parted.transpose(1, 2)  # (B, H, T, D); a constant shape exports to fewer nodes
        mixed, weights = kernel.attend(self.score, query, memory, valid_lengths, self.dropout)
        return self.output(
            mixed.transpose(1, 2).reshape(*x.shape[:-1], self.output.in_features)
        ), weights

    def attend_self(
        self, x: Tensor, valid_lengths: Tensor, kernel: Kernel, rotary: Rotary | None
    ) -> tuple[Tensor, KeysValues, Tensor]:
        """x (B, T, M) to itself -> (B, T, M), its keys and values, weights (B, H, T, T)."""
        own = KeysValues(self.key(x), self.value(x))
        mixed, own, weights = kernel.attend_self(
            self.score, self.query(x), own, valid_lengths, self.dropout, self.num_heads, rotary
        )
        return self.output(mixed), own, weights

    def step(
        self, x: Tensor, past: KeysValues, position: Tensor, kernel: Kernel, rotary: Rotary | None
    ) -> tuple[Tensor, KeysValues, Tensor]:
        """x (R, M), one position a row, over a cache (R, H, T, D) -> (R, M), the cache with this
        position written, weights (R, H, 1, T)."""
        own = KeysValues(self.key(x), self.value(x))  # (R, H * D)
        mixed, cache, weights = kernel.attend_cached(
            self.score, self.query(x), own, past, position, rotary
        )
        return self.output(mixed), cache, weights
