"""Multi-head attention, and the kernel that computes it.

Axes: B batch, T queries, S keys, R rows of a step, H heads, D head_dim (d_qk of queries and keys,
d_v of values), M d_model.
"""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.functional import pad

from model.network.config import TransformerConfig
from model.network.dropout import Dropout
from model.network.positions import Position
from model.network.scores import masked_softmax, score_module


class KeysValues(NamedTuple):
    """Projected keys and values (B, H, S, D) of one attention, as a cache holds them."""

    keys: Tensor
    values: Tensor


class SelfAttended(NamedTuple):
    """Result of self-attention: the output, the keys and values attended to, and the weights."""

    output: Tensor
    cache: KeysValues
    weights: Tensor


class TorchKernel:
    """Attention in torch: for training, and as the oracle of exported graphs.

    A kernel computes everything between a module's input and output projections. The exporter has
    a subclass whose methods become ONNX operators.
    """

    def __init__(self, gates: "Mapping[MultiHeadAttention, Tensor] | None" = None) -> None:
        """`gates` are the factors of the mixed values that a module's output projection reads:
        (R, H * D) for rows, (B, 1, H * D) for whole sequences. Modules without one have no gate."""
        self._gates = gates or {}

    def gate(self, attention: "MultiHeadAttention", mixed: Tensor) -> Tensor:
        """Return mixed values, (R, H * D) or (B, T, H * D), times the module's gates."""
        gate = self._gates.get(attention)
        return mixed if gate is None else mixed * gate

    def attend(
        self,
        attention: "MultiHeadAttention",
        query: Tensor,
        memory: KeysValues,
        valid_lengths: Tensor,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attend with queries (B, H, T, D) and lengths (B,) or (B, T) as in `masked_softmax`.

        `bias` is added to the scores (B, H, T, S), to which it broadcasts.
        Returns mixed values (B, H, T, D) and weights (B, H, T, S).
        """
        scores = attention.score(query, memory.keys)  # (B, H, T, S)
        if bias is not None:
            scores = scores + bias
        weights = masked_softmax(scores, valid_lengths)  # (B, H, T, S)
        return attention.dropout(weights) @ memory.values, weights

    def attend_rows(
        self,
        attention: "MultiHeadAttention",
        query: Tensor,
        memory: KeysValues,
        valid_lengths: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Attend with rows (R, H * D), R / B of each source in order, to the memory of the sources.

        Returns mixed values (R, H * D) and weights (B, H, R / B, S): the rows of a source are its
        queries. Each reshape gives all sizes but one, so that it exports to one node without a
        computed shape.
        """
        sources, heads, _, head_dim = memory.keys.shape
        query = query.view(sources, -1, heads, head_dim).transpose(1, 2)  # (B, H, R / B, D)
        mixed, weights = self.attend(attention, query, memory, valid_lengths)  # (B, H, R / B, D)
        return mixed.transpose(1, 2).reshape(-1, heads * memory.values.size(-1)), weights

    def attend_sequence(
        self,
        attention: "MultiHeadAttention",
        query: Tensor,
        own: KeysValues,
        valid_lengths: Tensor,
        position: Position,
    ) -> SelfAttended:
        """Let whole sequences attend to themselves; query, keys and values are (B, T, H * D).

        Returns mixed values (B, T, H * D), the keys (rotated, if rotary) and values (B, H, T, D),
        and weights (B, H, T, T).
        """
        query, keys, values = (split_heads(x, attention.num_heads) for x in (query, *own))
        query, keys = position.place_sequence(query), position.place_sequence(keys)
        memory = KeysValues(keys, values)  # (B, H, T, D)
        mixed, weights = self.attend(attention, query, memory, valid_lengths, position.bias)
        return SelfAttended(merge_heads(mixed), memory, weights)

    def attend_step(
        self,
        attention: "MultiHeadAttention",
        query: Tensor,
        own: KeysValues,
        past: KeysValues,
        position: Position,
    ) -> SelfAttended:
        """Write each row's key and value to its cache, then let the row attend to that cache.

        Query, keys and values are (R, H * D), one position per row; `past` is (R, H, T, D).
        Returns mixed values (R, H * D), the updated cache, and weights (R, H, 1, T).
        """
        sizes = attention.num_heads, 1, -1
        query, keys, values = (x.unflatten(-1, sizes) for x in (query, *own))  # (R, H, 1, D)
        query, keys = position.place_step(query), position.place_step(keys)  # (R, H, 1, D)
        positions = position.positions  # (R,)
        memory = KeysValues(
            self.write_cache(past.keys, keys, positions),
            self.write_cache(past.values, values, positions),
        )
        mixed, weights = self.attend(attention, query, memory, positions + 1, position.bias)
        return SelfAttended(mixed.flatten(1), memory, weights)

    def accumulate(self, forget: Tensor, update: Tensor) -> Tensor:
        """Return the states c (B, T, M) of c_t = forget_t c_(t-1) + update_t, where c_0 = 0.

        Two neighbouring positions make one: (f, u) then (g, v) is (g f, g u + v). Each round joins
        every position with the one before those it has joined already, as in Hillis and Steele,
        "Data Parallel Algorithms" (1986): log2 T rounds, and no division that could overflow.
        """
        distance, length = 1, update.size(1)
        while distance < length:
            earlier = (0, 0, distance, -distance)  # `distance` places later, zeros before the first
            update = update + forget * pad(update, earlier)
            forget = forget * pad(forget, earlier)
            distance *= 2
        return update

    def write_cache(self, cache: Tensor, new: Tensor, position: Tensor) -> Tensor:
        """Return the cache (R, H, T, D) with row r of `new` (R, H, 1, D) at `position` (R,)."""
        index = position[:, None, None, None].expand_as(new)  # (R, H, 1, D)
        return cache.scatter(2, index, new)


TORCH_KERNEL = TorchKernel()


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, T, H * D) -> (B, H, T, D)."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, D) -> (B, T, H * D)."""
    return x.transpose(1, 2).flatten(2)


class MultiHeadAttention(nn.Module):
    """Projected queries, keys and values, attention in each head, and one output.

    Vaswani et al. 2017, section 3.2.2; d_qk and d_v need not divide d_model.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.query = nn.Linear(config.d_model, config.num_heads * config.d_qk)
        self.key = nn.Linear(config.d_model, config.num_heads * config.d_qk)
        self.value = nn.Linear(config.d_model, config.num_heads * config.d_v)
        self.output = nn.Linear(config.num_heads * config.d_v, config.d_model)
        self.score = score_module(config)
        self.dropout = Dropout(config.dropout)

    def project(self, x: Tensor) -> KeysValues:
        """(B, S, M) -> the keys and values of each head (B, H, S, D)."""
        keys, values = self.key(x), self.value(x)  # (B, S, H * D)
        return KeysValues(split_heads(keys, self.num_heads), split_heads(values, self.num_heads))

    def forward(
        self, x: Tensor, memory: KeysValues, valid_lengths: Tensor, kernel: TorchKernel
    ) -> tuple[Tensor, Tensor]:
        """Let x (B, T, M) attend to `memory` -> (B, T, M), weights (B, H, T, S)."""
        query = split_heads(self.query(x), self.num_heads)  # (B, H, T, D)
        mixed, weights = kernel.attend(self, query, memory, valid_lengths)  # (B, H, T, D)
        return self.output(kernel.gate(self, merge_heads(mixed))), weights

    def attend_rows(
        self, x: Tensor, memory: KeysValues, valid_lengths: Tensor, kernel: TorchKernel
    ) -> tuple[Tensor, Tensor]:
        """Let rows (R, M), R / B of each source in order, attend to the memory of their sources.

        Returns (R, M) and weights (B, H, R / B, S).
        """
        mixed, weights = kernel.attend_rows(self, self.query(x), memory, valid_lengths)
        return self.output(kernel.gate(self, mixed)), weights

    def attend_self(
        self, x: Tensor, valid_lengths: Tensor, kernel: TorchKernel, position: Position
    ) -> SelfAttended:
        """Let whole sequences (B, T, M) attend to themselves; weights are (B, H, T, T)."""
        own = KeysValues(self.key(x), self.value(x))  # (B, T, H * D)
        mixed, cache, weights = kernel.attend_sequence(
            self, self.query(x), own, valid_lengths, position
        )
        return SelfAttended(self.output(kernel.gate(self, mixed)), cache, weights)

    def step(
        self, x: Tensor, past: KeysValues, kernel: TorchKernel, position: Position
    ) -> SelfAttended:
        """Let rows (R, M), one position each, attend to a cache (R, H, T, D) and themselves.

        Weights are (R, H, 1, T).
        """
        own = KeysValues(self.key(x), self.value(x))  # (R, H * D)
        mixed, cache, weights = kernel.attend_step(self, self.query(x), own, past, position)
        return SelfAttended(self.output(kernel.gate(self, mixed)), cache, weights)

    def value_norms(self, values: Tensor) -> Tensor:
        """Values (B, H, S, D) -> the lengths (B, H, S) of what each head makes of them in the
        output: |W v|, where W is the head's slice of the output projection.

        A weight times this length is the measure of Kobayashi et al., "Attention is Not Only a
        Weight: Analyzing Transformers with Vector Norms" (2020).
        """
        slices = self.output.weight.unflatten(1, (self.num_heads, -1))  # (M, H, D)
        return (values @ slices.permute(1, 2, 0)).norm(dim=-1)  # (B, H, S)
