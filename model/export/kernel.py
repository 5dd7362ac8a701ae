"""What the exported graphs attend with: ONNX operators in the place of torch's."""

import torch
from torch import Tensor, nn
from torch.onnx.ops import symbolic, symbolic_multi_out

from model.export.rewrite import MICROSOFT
from model.network.attention import (
    TORCH_KERNEL,
    Kernel,
    KeysValues,
    ScaledDotProduct,
    split_heads,
    write_then_attend,
)
from model.network.positions import Rotary

OPSET = 24


def attend(
    score: nn.Module, query: Tensor, memory: KeysValues, valid_lengths: Tensor, dropout: nn.Module
) -> tuple[Tensor, Tensor]:
    """Products and a softmax, which ONNX Runtime computes faster than its Attention-24 where many
    rows attend, each with few queries (docs/adr/0005). One mask, added, serves all layers."""
    if not isinstance(score, ScaledDotProduct):
        return TORCH_KERNEL.attend(score, query, memory, valid_lengths, dropout)
    valid = torch.arange(memory.keys.size(2)) < valid_lengths.view(-1, 1, 1, 1)  # (B, 1, 1, S)
    mask = torch.where(valid, 0.0, torch.finfo(query.dtype).min)
    scaled = query * query.size(-1) ** -0.5  # not the scores: there are more of them
    weights = (scaled @ memory.keys.transpose(-2, -1) + mask).softmax(-1)  # (B, H, T, S)
    return weights @ memory.values, weights


def attend_self(
    score: nn.Module,
    query: Tensor,
    own: KeysValues,
    valid_lengths: Tensor,
    dropout: nn.Module,
    num_heads: int,
    rotary: Rotary | None,
) -> tuple[Tensor, KeysValues, Tensor]:
    """Attention-24, which parts the heads itself, faster than transpositions before it."""
    if not isinstance(score, ScaledDotProduct):
        return TORCH_KERNEL.attend_self(
            score, query, own, valid_lengths, dropout, num_heads, rotary
        )
    if rotary:
        query, keys = (turned(x, num_heads, rotary) for x in (query, own.keys))
        own = KeysValues(keys, own.values)
    mixed = symbolic(
        "Attention",
        (query, *own, None, None, None, valid_lengths),
        {"q_num_heads": num_heads, "kv_num_heads": num_heads},
        dtype=query.dtype,
        shape=own.values.shape,
        version=OPSET,
    )
    own = KeysValues(*(split_heads(x, num_heads) for x in own))
    return mixed, own, query[..., :0]


def turned(x: Tensor, num_heads: int, rotary: Rotary) -> Tensor:
    """ONNX RotaryEmbedding-23 over (B, T, H * D)."""
    position = torch.arange(x.size(1)).expand(x.shape[:2])
    return symbolic(
        "RotaryEmbedding",
        (x, rotary.cos, rotary.sin, position),
        {"num_heads": num_heads},
        dtype=x.dtype,
        shape=x.shape,
        version=23,
    )


def attend_cached(
    score: nn.Module,
    query: Tensor,
    own: KeysValues,
    past: KeysValues,
    position: Tensor,
    rotary: Rotary | None,
) -> tuple[Tensor, KeysValues, Tensor]:
    """GroupQueryAttention of ONNX Runtime where it computes the score: it writes the cache in place
    and attends, faster than TensorScatter-24 and products (docs/adr/0005), which take the heads
    that it refuses."""
    width = past.keys.size(-1)
    supported = width == past.values.size(-1) and width % (16 if rotary else 8) == 0
    if isinstance(score, ScaledDotProduct) and supported:
        return group_query_attention(query, own, past, position, rotary)
    return write_then_attend(write_cache, attend)(score, query, own, past, position, rotary)


def group_query_attention(
    query: Tensor, own: KeysValues, past: KeysValues, position: Tensor, rotary: Rotary | None
) -> tuple[Tensor, KeysValues, Tensor]:
    heads = past.keys.size(1)
    packed = torch.cat([query, *own], dim=-1).unsqueeze(1)  # (R, 1, 3 * H * D)
    length, tables = past.keys.size(2), ()  # above 1: a cache, not a prompt
    if rotary:
        tables = rotary.cos, rotary.sin
        length = torch.sym_min(length, rotary.cos.size(0))  # a table may be shorter than the cache
    mixed, keys, values = symbolic_multi_out(
        f"{MICROSOFT}::GroupQueryAttention",
        (packed, None, None, *past, position.int(), torch.tensor(length).int(), *tables),
        {"num_heads": heads, "kv_num_heads": heads, "do_rotary": len(tables) // 2},
        dtypes=[query.dtype] * 3,
        shapes=[query.unsqueeze(1).shape, past.keys.shape, past.values.shape],
        version=1,
    )
    return mixed.squeeze(1), KeysValues(keys, values), query[:, :0]


def write_cache(cache: Tensor, new: Tensor, position: Tensor) -> Tensor:
    """ONNX TensorScatter-24, in place when the runtime is given one buffer for both ends."""
    return symbolic(
        "TensorScatter",
        (cache, new, position),
        {"axis": 2},
        dtype=cache.dtype,
        shape=cache.shape,
        version=OPSET,
    )


ONNX_KERNEL = Kernel(attend, attend_self, attend_cached)
