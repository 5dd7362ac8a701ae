"""A Transformer layer in pure NumPy, torch's and ours: three that must agree."""

import numpy as np
import pytest
import torch
from torch import nn

from model.network.attention import TORCH_KERNEL, MultiHeadAttention
from model.network.config import TransformerConfig
from model.network.positions import Position
from model.network.scores import masked_softmax
from model.network.transformer import EncoderLayer


def softmax(x, axis):
    exponentials = np.exp(x - x.max(axis, keepdims=True))
    return exponentials / exponentials.sum(axis, keepdims=True)


def multi_head_attention(x, packed, output, num_heads, causal):
    """x (T, M), packed (M, 3 M) for keys, queries and values, output (M, M), no bias
    -> (T, M), weights (H, T, T)."""
    length, d_model = x.shape
    keys, queries, values = np.split(x @ packed, 3, axis=1)
    heads = lambda y: y.reshape(length, num_heads, -1).transpose(1, 0, 2)  # noqa: E731
    scores = heads(queries) @ heads(keys).transpose(0, 2, 1) / np.sqrt(d_model / num_heads)
    if causal:
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    weights = softmax(scores, -1)
    return (weights @ heads(values)).transpose(1, 0, 2).reshape(length, d_model) @ output, weights


def layer_norm(x):
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return (x - x.mean(-1, keepdims=True)) / deviation


def encoder_layer(x, packed, output, up, down, num_heads):
    """Post-norm, layer norms without affine, no biases, ReLU."""
    x = layer_norm(x + multi_head_attention(x, packed, output, num_heads, causal=False)[0])
    return layer_norm(x + np.maximum(x @ up, 0) @ down)


def ours(d_model, num_heads, d_ff=16):
    return TransformerConfig(
        source_vocab_size=9,
        target_vocab_size=9,
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff,
        dropout=0.0,
    )


def load(attention, packed, output):
    """Our module from the packed matrix; its biases are zero."""
    keys, queries, values = np.split(packed, 3, axis=1)
    for layer, matrix in (
        (attention.key, keys),
        (attention.query, queries),
        (attention.value, values),
        (attention.output, output),
    ):
        layer.weight.copy_(torch.tensor(matrix.T))
        layer.bias.zero_()


SHAPES = [(4, 8, 1), (5, 12, 3), (7, 32, 8)]


@torch.no_grad()
@pytest.mark.parametrize(("length", "d_model", "num_heads"), SHAPES)
def test_multi_head_attention_in_numpy_torch_and_ours(length, d_model, num_heads):
    random = np.random.default_rng(length)
    x = random.standard_normal((length, d_model))
    packed, output = random.standard_normal((d_model, 3 * d_model)), np.eye(d_model)[::-1]
    expected, weights = multi_head_attention(x, packed, output, num_heads, causal=True)

    theirs = nn.MultiheadAttention(d_model, num_heads, bias=False, batch_first=True).double()
    keys, queries, values = np.split(packed, 3, axis=1)
    theirs.in_proj_weight.copy_(torch.tensor(np.concatenate([queries, keys, values], axis=1).T))
    theirs.out_proj.weight.copy_(torch.tensor(output.T.copy()))
    later = torch.ones(length, length).triu(1).bool()
    batch = torch.tensor(x).unsqueeze(0)
    torch_output, torch_mean = theirs(batch, batch, batch, attn_mask=later)
    np.testing.assert_allclose(torch_output[0], expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(torch_mean[0], weights.mean(0), rtol=1e-9, atol=1e-9)

    module = MultiHeadAttention(ours(d_model, num_heads)).double()
    load(module, packed, output.copy())
    causal = torch.arange(1, length + 1).unsqueeze(0)
    our_output, our_weights = module(batch, module.project(batch), causal, TORCH_KERNEL)
    np.testing.assert_allclose(our_output[0], expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(our_weights[0], weights, rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize(("length", "d_model", "num_heads"), SHAPES)
def test_an_encoder_layer_in_numpy_torch_and_ours(length, d_model, num_heads):
    random = np.random.default_rng(length)
    x = random.standard_normal((length, d_model))
    packed = random.standard_normal((d_model, 3 * d_model))
    output = random.standard_normal((d_model, d_model))
    up, down = random.standard_normal((d_model, 16)), random.standard_normal((16, d_model))
    expected = encoder_layer(x, packed, output, up, down, num_heads)

    options = {"dropout": 0.0, "batch_first": True, "bias": False}
    theirs = nn.TransformerEncoderLayer(d_model, num_heads, 16, **options).double().eval()
    keys, queries, values = np.split(packed, 3, axis=1)
    theirs.self_attn.in_proj_weight.copy_(
        torch.tensor(np.concatenate([queries, keys, values], axis=1).T)
    )
    theirs.self_attn.out_proj.weight.copy_(torch.tensor(output.T))
    theirs.linear1.weight.copy_(torch.tensor(up.T))
    theirs.linear2.weight.copy_(torch.tensor(down.T))
    batch = torch.tensor(x).unsqueeze(0)
    np.testing.assert_allclose(theirs(batch)[0], expected, rtol=1e-9, atol=1e-9)

    layer = EncoderLayer(ours(d_model, num_heads)).double()
    load(layer.self_attention, packed, output)
    layer.feed_forward.up.weight.copy_(torch.tensor(up.T))
    layer.feed_forward.down.weight.copy_(torch.tensor(down.T))
    layer.feed_forward.up.bias.zero_()
    layer.feed_forward.down.bias.zero_()
    position = Position(torch.arange(length), rotary=None)
    our_output, _ = layer(batch, torch.tensor([length]), TORCH_KERNEL, position)
    np.testing.assert_allclose(our_output[0], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
def test_softmax_over_any_axis_is_unmoved_by_a_shift(axis, shift):
    """masked_softmax with every key valid, the axis brought to its keys."""
    x = np.random.default_rng(0).standard_normal((3, 4, 5))
    scores = torch.tensor(x + shift).movedim(axis, -1)
    lengths = torch.tensor([scores.size(-1)])
    found = masked_softmax(scores.unsqueeze(0), lengths)[0].movedim(-1, axis).numpy()
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, softmax(x, axis), rtol=1e-9)
