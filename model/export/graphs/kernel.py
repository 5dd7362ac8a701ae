"""Attention kernel of exported graphs: ONNX operators in the place of torch's.

Scaled dot products have fast operators; other scores are computed as torch computes them. Attention
operators do not return their weights: the methods that use one return empty weights (..., 0).
"""

import torch
from torch import Tensor
from torch.onnx.ops import symbolic, symbolic_multi_out

from model.export.graphs.rewrite import ACCUMULATE, MICROSOFT
from model.network.attention import (
    TORCH_KERNEL,
    KeysValues,
    MultiHeadAttention,
    SelfAttended,
    TorchKernel,
    split_heads,
)
from model.network.positions import Position, Rotary
from model.network.scores import ScaledDotProduct

OPSET = 24


class ScanKernel(TorchKernel):
    """Attend in torch, which gives the weights, and accumulate by an ONNX Scan."""

    def accumulate(self, forget: Tensor, update: Tensor) -> Tensor:
        """Go over the positions one by one: a step of a Scan takes some 2 microseconds on a CPU.

        `symbolic` knows no node with a body, so `write_scans` gives it one. torch's own scan would
        be compiled first, which takes seconds for each graph.
        """
        first = torch.zeros_like(update[:, 0])  # (B, M)
        by_position = forget.transpose(0, 1), update.transpose(0, 1)  # (T, B, M)
        states = symbolic(
            ACCUMULATE,
            (first, *by_position),
            dtype=update.dtype,
            shape=by_position[1].shape,
            version=1,
        )
        return states.transpose(0, 1)  # (B, T, M)


class OnnxKernel(ScanKernel):
    def attend_rows(
        self,
        attention: MultiHeadAttention,
        query: Tensor,
        memory: KeysValues,
        valid_lengths: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Attend by MultiHeadAttention, which masks by lengths: one operator instead of nine.

        It needs keys and values of the same width.
        """
        sources, heads, _, width = memory.values.shape
        if not isinstance(attention.score, ScaledDotProduct) or memory.keys.size(-1) != width:
            return super().attend_rows(attention, query, memory, valid_lengths)
        queries = query.view(sources, -1, query.size(-1))  # (B, R / B, H * D)
        mixed = symbolic(
            f"{MICROSOFT}::MultiHeadAttention",
            (queries, *memory, None, valid_lengths.int()),
            {"num_heads": heads, "mask_filter_value": torch.finfo(query.dtype).min},
            dtype=query.dtype,
            shape=(sources, queries.size(1), heads * width),
            version=1,
        )
        return mixed.reshape(-1, heads * width), query[:, :0]

    def attend_sequence(
        self,
        attention: MultiHeadAttention,
        query: Tensor,
        own: KeysValues,
        valid_lengths: Tensor,
        position: Position,
    ) -> SelfAttended:
        """Attend by Attention-24, which splits the heads itself: faster than Transpose nodes."""
        if not isinstance(attention.score, ScaledDotProduct):
            return super().attend_sequence(attention, query, own, valid_lengths, position)
        heads = attention.num_heads
        keys, values = own  # (B, T, H * D)
        if position.rotary:
            query = rotary_embedding(query, heads, position.rotary, position.positions)
            keys = rotary_embedding(keys, heads, position.rotary, position.positions)
        mixed = symbolic(
            "Attention",
            (query, keys, values, position.bias, None, None, valid_lengths),
            {"q_num_heads": heads, "kv_num_heads": heads},
            dtype=query.dtype,
            shape=values.shape,
            version=OPSET,
        )
        cache = KeysValues(split_heads(keys, heads), split_heads(values, heads))  # (B, H, T, D)
        return SelfAttended(mixed, cache, query[..., :0])

    def attend_step(
        self,
        attention: MultiHeadAttention,
        query: Tensor,
        own: KeysValues,
        past: KeysValues,
        position: Position,
    ) -> SelfAttended:
        """Attend with N new positions of each row, where R or N is 1: queries, keys and values are
        (R * N, H * D), the cache (R, H, T, D).

        GroupQueryAttention does it, if it supports the score and the head sizes. It also writes the
        cache in place, and is faster than `attend_positions` (docs/adr/0005).
        """
        head_dim = past.keys.size(-1)
        multiple = 16 if position.rotary else 8  # head_dim must be a multiple of this
        supported = head_dim == past.values.size(-1) and head_dim % multiple == 0
        if isinstance(attention.score, ScaledDotProduct) and supported:
            return group_query_attention(query, own, past, position)
        return self.attend_positions(attention, query, own, past, position)

    def attend_positions(
        self,
        attention: MultiHeadAttention,
        query: Tensor,
        own: KeysValues,
        past: KeysValues,
        position: Position,
    ) -> SelfAttended:
        """Write all N keys and values of a row, (R * N, H * D), by TensorScatter-24. Then let each
        position see the cache (R, H, T, D) up to itself, by matrix products."""
        rows, heads, _, _ = past.keys.shape
        query, keys, values = (x.unflatten(-1, (heads, 1, -1)) for x in (query, *own))
        query, keys = position.place_step(query), position.place_step(keys)  # (R * N, H, 1, D)
        positions = position.positions.view(rows, -1)  # (R, N)
        memory = KeysValues(
            self.write_cache(past.keys, by_row(keys, rows), positions[:, 0]),
            self.write_cache(past.values, by_row(values, rows), positions[:, 0]),
        )
        bias = None if position.bias is None else by_row(position.bias, rows)  # (R, H, N, T)
        mixed, weights = self.attend(attention, by_row(query, rows), memory, positions + 1, bias)
        return SelfAttended(mixed.transpose(1, 2).flatten(2).flatten(0, 1), memory, weights)

    def write_cache(self, cache: Tensor, new: Tensor, position: Tensor) -> Tensor:
        """Write by TensorScatter-24: in place if input and output are bound to one buffer."""
        return symbolic(
            "TensorScatter",
            (cache, new, position),
            {"axis": 2},
            dtype=cache.dtype,
            shape=cache.shape,
            version=OPSET,
        )


ONNX_KERNEL = OnnxKernel()


class DraftKernel(OnnxKernel):
    """Attend with several positions of several rows, which GroupQueryAttention refuses."""

    attend_step = OnnxKernel.attend_positions


DRAFT_KERNEL = DraftKernel()


def by_row(x: Tensor, rows: int) -> Tensor:
    """(R * N, H, 1, D) -> (R, H, N, D)."""
    return x.view(rows, -1, x.size(1), x.size(3)).transpose(1, 2)


class WeighingKernel(OnnxKernel):
    """Attend to sequences by the same operator, so that its numbers are the same, and compute the
    weights besides."""

    def attend_sequence(
        self,
        attention: MultiHeadAttention,
        query: Tensor,
        own: KeysValues,
        valid_lengths: Tensor,
        position: Position,
    ) -> SelfAttended:
        given = attention, query, own, valid_lengths, position
        attended = super().attend_sequence(*given)
        if not isinstance(attention.score, ScaledDotProduct):
            return attended  # computed in torch, weights included
        return attended._replace(weights=TORCH_KERNEL.attend_sequence(*given).weights)


def rotary_embedding(x: Tensor, num_heads: int, rotary: Rotary, positions: Tensor) -> Tensor:
    """Apply RotaryEmbedding-23 to x (B, T, H * D) at `positions` (T,)."""
    return symbolic(
        "RotaryEmbedding",
        (x, rotary.cos, rotary.sin, positions.expand(x.shape[:2])),
        {"num_heads": num_heads},
        dtype=x.dtype,
        shape=x.shape,
        version=23,
    )


def group_query_attention(
    query: Tensor, own: KeysValues, past: KeysValues, position: Position
) -> SelfAttended:
    """Apply GroupQueryAttention to query, keys and values (R * N, H * D) over a cache
    (R, H, T, D), where R or N is 1."""
    rows, heads, capacity, _ = past.keys.shape
    packed = torch.cat([query, *own], dim=-1)
    packed = packed.view(rows, -1, packed.size(-1))  # (R, N, 3 * H * D)
    last = position.positions.view(rows, -1)[:, -1]  # (R,)
    # If the total length is N, the operator takes its input for a prompt, rightly: N positions then
    # fill the cache, and begin at 0. It refuses a total length beyond the rotary tables.
    total_length, tables, bias = capacity, (None, None), position.bias
    if position.rotary:
        tables = position.rotary.cos, position.rotary.sin
        total_length = torch.sym_min(capacity, position.rotary.cos.size(0))
        bias = None if bias is None else bias[..., :total_length]
    if bias is not None:
        bias = by_row(bias, rows)  # (R, H, N, T)
    inputs = [packed, None, None, *past, last.int(), torch.tensor(total_length).int()]
    inputs += [*tables, None, bias]
    while inputs[-1] is None:
        inputs.pop()
    mixed, keys, values = symbolic_multi_out(
        f"{MICROSOFT}::GroupQueryAttention",
        inputs,
        {"num_heads": heads, "kv_num_heads": heads, "do_rotary": int(position.rotary is not None)},
        dtypes=[query.dtype] * 3,
        shapes=[(*packed.shape[:2], query.size(-1)), past.keys.shape, past.values.shape],
        version=1,
    )
    return SelfAttended(mixed.flatten(0, 1), KeysValues(keys, values), query[:, :0])
