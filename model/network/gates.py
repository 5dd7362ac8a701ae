"""Gates: a factor for the output of each head. With 0 the head gives nothing.

A head with gate 0 is one whose slice of the output projection is 0. Axes: B batch, R rows of a
step, K kinds of attention, L layers, H heads, D head_dim of values.
"""

from collections.abc import Sequence

from torch import Tensor

from model.network.attention import MultiHeadAttention
from model.network.transformer import Transformer

Gates = dict[MultiHeadAttention, Tensor]


def encoder_attentions(model: Transformer) -> list[MultiHeadAttention]:
    return [layer.self_attention for layer in model.encoder.layers]  # pyright: ignore[reportReturnType]


def decoder_attentions(model: Transformer) -> list[MultiHeadAttention]:
    """Return the decoder's self-attentions; an SSRU has none."""
    if model.config.recurrent:
        return []
    return [layer.self_attention for layer in model.decoder.layers]  # pyright: ignore[reportReturnType]


def cross_attentions(model: Transformer) -> list[MultiHeadAttention]:
    return [layer.cross_attention for layer in model.decoder.layers]  # pyright: ignore[reportReturnType]


def encoder_gates(model: Transformer, gates: Tensor) -> Gates:
    """(B, L, H) -> the gates of each module, for a TorchKernel over whole sequences."""
    return spread(encoder_attentions(model), gates.unsqueeze(1))


def decoder_gates(model: Transformer, gates: Tensor) -> Gates:
    """(B, K, L, H), of self-attention, if there is any, and cross-attention -> the gates of each
    module, for a TorchKernel over whole sequences."""
    return step_gates(model, gates.unsqueeze(1))


def step_gates(model: Transformer, gates: Tensor) -> Gates:
    """(R, K, L, H) -> the gates of each module, for a TorchKernel over rows."""
    attentions = [*decoder_attentions(model), *cross_attentions(model)]
    return spread(attentions, gates.flatten(-3, -2))


def spread(attentions: Sequence[MultiHeadAttention], gates: Tensor) -> Gates:
    """(..., L, H) -> the gates of each module (..., H * D): one for each number of a head."""
    head_dim = attentions[0].output.in_features // attentions[0].num_heads
    each = gates.unsqueeze(-1).expand(*gates.shape, head_dim).flatten(-2)  # (..., L, H * D)
    return dict(zip(attentions, each.unbind(-2), strict=True))
