import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from model.network.attention import TORCH_KERNEL
from model.network.config import InputError, NormKind, TransformerConfig
from model.network.dropout import Dropout
from model.network.norms import UnbiasedLayerNorm
from model.network.positions import Position, Rotary, sinusoidal_positions
from model.network.transformer import DecoderLayer, EncoderLayer, Transformer

SMALL = {
    "d_model": 16,
    "d_ff": 32,
    "num_heads": 4,
    "num_encoder_layers": 2,
    "num_decoder_layers": 3,
}


def small(norm_first=False, **changes):
    torch.manual_seed(0)
    sizes = {**SMALL, "source_vocab_size": 11, "target_vocab_size": 13, **changes}
    return Transformer(TransformerConfig(norm_first=norm_first, **sizes)).eval()


def test_the_defaults_are_the_papers_base_model():
    config = TransformerConfig(source_vocab_size=8, target_vocab_size=8)
    sizes = config.d_model, config.d_ff, config.num_heads, config.d_qk, config.d_v
    assert sizes == (512, 2048, 8, 64, 64)
    assert (config.num_encoder_layers, config.num_decoder_layers) == (6, 6)
    assert (config.dropout, config.norm_first) == (0.1, False)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_heads": 3}, "not a multiple of num_heads 3"),
        ({"num_heads": 3, "d_qk": 4}, "set d_v yourself"),
        ({"score_function": "cosine"}, "cosine"),
        ({"num_heads": 0}, "num_heads is 0"),
        ({"num_encoder_layers": 0}, "num_encoder_layers is 0"),
        ({"d_qk": -1}, "d_qk is -1"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"d_qk": 3, "rotary": True}, "d_qk is 3 .*give an even d_qk"),
        ({"score_function": "additive", "rotary": True}, "cannot be combined with additive"),
        ({"eos_id": 8}, "eos_id are"),
        ({"norm": NormKind.unbiased_layer_norm, "d_model": 1, "num_heads": 1}, "at least 2"),
        ({"tied": "all", "target_vocab_size": 12}, "vocabularies have 8 and 12 tokens"),
        ({"tied": "both"}, "give one of no, target, embeddings, all"),
        ({"positions": "alibi"}, "give one of sinusoidal, learned, none"),
        ({"activation": "swish"}, "give one of relu, gelu, gelu_tanh, silu"),
        ({"embedding_scale": -1.0}, "embedding_scale is -1.0"),
        ({"norm_epsilon": 0.0}, "norm_epsilon is 0.0"),
        ({"relative_distance": -1}, "relative_distance is -1"),
    ],
)
def test_a_contradictory_configuration_is_refused(changes, named):
    sizes = {"source_vocab_size": 8, "target_vocab_size": 8, "d_model": 16, "num_heads": 4}
    with pytest.raises(InputError, match=named):
        TransformerConfig(**{**sizes, **changes})


def test_positions_are_those_of_the_paper():
    for d_model in (12, 7):
        positions = sinusoidal_positions(50, d_model)
        assert positions.shape == (50, d_model)
        for position in (0, 1, 49):
            for column in range(d_model):
                angle = position / 10000 ** (2 * (column // 2) / d_model)
                expected = math.cos(angle) if column % 2 else math.sin(angle)
                assert positions[position, column].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("k", [1, 5])
def test_a_shift_of_positions_is_a_rotation_and_products_depend_on_distance_alone(k):
    """PE(p + k) = R_k PE(p) for every p; PE(p + k) . PE(p) = PE(p - k) . PE(p)."""
    positions = sinusoidal_positions(60, 16).double()
    frequency = 10000.0 ** (-torch.arange(0, 16, 2) / 16)
    sines, cosines = torch.sin(k * frequency), torch.cos(k * frequency)
    rotation = torch.zeros(16, 16, dtype=torch.float64)
    for i in range(8):
        pair = torch.tensor([[cosines[i], sines[i]], [-sines[i], cosines[i]]])
        rotation[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = pair
    torch.testing.assert_close(positions[k:], positions[:-k] @ rotation.T, rtol=0, atol=1e-5)
    middle = positions[k:-k]
    later, earlier = (positions[2 * k :] * middle).sum(1), (positions[: -2 * k] * middle).sum(1)
    torch.testing.assert_close(later, earlier, rtol=0, atol=1e-5)
    torch.testing.assert_close(later, later[:1].expand_as(later), rtol=0, atol=1e-5)


def test_rotary_rotates_as_complex_numbers_do():
    """Su et al. 2021, equation 12, with NumPy's complex numbers."""
    x, position = torch.randn(2, 3, 7, 12), torch.tensor([0, 1, 2, 30, 63, 5, 5])
    pairs = x[..., :6].numpy() + 1j * x[..., 6:].numpy()
    angles = position.numpy()[:, None] / 10000 ** (np.arange(0, 12, 2) / 12)
    rotated = pairs * np.exp(1j * angles)
    expected = np.concatenate([rotated.real, rotated.imag], axis=-1)
    torch.testing.assert_close(
        Rotary(64, 12)(x, position), torch.tensor(expected).float(), rtol=1e-5, atol=1e-5
    )


@given(st.integers(0, 31), st.integers(0, 31), st.integers(0, 32))
def test_products_of_rotary_queries_and_keys_depend_on_their_distance(i, j, shift):
    rotary, (query, key) = Rotary(64, 8), torch.randn(2, 8)
    here = rotary(query, torch.tensor(i)) @ rotary(key, torch.tensor(j))
    there = rotary(query, torch.tensor(i + shift)) @ rotary(key, torch.tensor(j + shift))
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-4)


def test_the_unbiased_norm_is_its_formula():
    x, norm = torch.randn(4, 3, 6), UnbiasedLayerNorm(6, 0.01)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    rows = x.numpy().astype(float)
    mean, deviation = rows.mean(-1, keepdims=True), rows.std(-1, ddof=1, keepdims=True)
    a, b = norm.weight.detach().numpy(), norm.bias.detach().numpy()
    expected = a * (rows - mean) / (deviation + 0.01) + b
    torch.testing.assert_close(norm(x), torch.tensor(expected).float(), rtol=1e-5, atol=1e-6)


def test_a_constant_row_has_a_norm_and_a_gradient():
    x, norm = torch.full((2, 6), 3.0, requires_grad=True), UnbiasedLayerNorm(6, 1e-6)
    normed = norm(x)
    normed.square().sum().backward()
    assert (normed == 0).all()
    assert torch.isfinite(x.grad).all()


def copy_attention(ours, theirs):
    projections = ours.query, ours.key, ours.value
    theirs.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
    theirs.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def copy_feed_forward(ours, theirs):
    theirs.linear1.load_state_dict(ours.feed_forward.up.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.down.state_dict())


def torch_layer(kind, norm_first):
    return kind(16, 4, 32, dropout=0.0, batch_first=True, norm_first=norm_first).eval()


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer_equals_torch(norm_first):
    config = small(norm_first).config
    ours, theirs = EncoderLayer(config).eval(), torch_layer(nn.TransformerEncoderLayer, norm_first)
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.3)
    copy_attention(ours.self_attention, theirs.self_attn)
    copy_feed_forward(ours, theirs)
    theirs.norm1.load_state_dict(ours.self_sublayer.norm.state_dict())
    theirs.norm2.load_state_dict(ours.feed_forward_sublayer.norm.state_dict())
    x, length = torch.randn(2, 5, 16), torch.tensor([5, 5])
    output, _ = ours(x, length, TORCH_KERNEL, Position(torch.arange(5), rotary=None))
    torch.testing.assert_close(output, theirs(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_layer_equals_torch(norm_first):
    config = small(norm_first).config
    ours, theirs = DecoderLayer(config).eval(), torch_layer(nn.TransformerDecoderLayer, norm_first)
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.3)
    copy_attention(ours.self_attention, theirs.self_attn)
    copy_attention(ours.cross_attention, theirs.multihead_attn)
    copy_feed_forward(ours, theirs)
    sublayers = ours.self_sublayer, ours.cross_sublayer, ours.feed_forward_sublayer
    for sublayer, norm in zip(sublayers, (theirs.norm1, theirs.norm2, theirs.norm3), strict=True):
        norm.load_state_dict(sublayer.norm.state_dict())
    x, memory = torch.randn(2, 4, 16), torch.randn(2, 6, 16)
    lengths, source_length = torch.arange(1, 5).expand(2, 4), torch.tensor([6, 3])
    cross = ours.cross_attention.project(memory)
    position = Position(torch.arange(4), rotary=None)
    output, *_ = ours(x, lengths, cross, source_length, TORCH_KERNEL, position)
    expected = theirs(
        x,
        memory,
        tgt_mask=torch.ones(4, 4).triu(1).bool(),
        memory_key_padding_mask=torch.arange(6) >= source_length.unsqueeze(1),
    )
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_padded_batch_answers_like_each_source_alone(norm_first):
    model = small(norm_first)
    source, source_length = torch.randint(3, 11, (3, 7)), torch.tensor([7, 2, 4])
    target, target_length = torch.randint(3, 13, (3, 6)), torch.tensor([1, 6, 3])
    batched = model(source, source_length, target, target_length)
    for i, (s, t) in enumerate(zip(source_length, target_length, strict=True)):
        alone = model(source[i : i + 1, :s], s.view(1), target[i : i + 1, :t], t.view(1))
        torch.testing.assert_close(batched[i, :t], alone[0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_no_position_depends_on_later_ones():
    model = small()
    source, length = torch.randint(3, 11, (1, 5)), torch.tensor([5])
    target = torch.randint(3, 13, (1, 6))
    before = model(source, length, target, torch.tensor([6]))
    target[0, 4:] = 3
    after = model(source, length, target, torch.tensor([6]))
    assert torch.equal(before[0, :4], after[0, :4])
    assert not torch.equal(before[0, 4:], after[0, 4:])


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
def test_cached_steps_equal_the_full_forward_pass(norm_first, rotary):
    """Rows at different positions, two rows a source."""
    model = small(norm_first, rotary=rotary)
    source, source_length = torch.randint(3, 11, (2, 5)), torch.tensor([5, 3])
    target = torch.randint(3, 13, (4, 6))
    twice = source.repeat_interleave(2, 0), source_length.repeat_interleave(2)
    full = model(*twice, target, torch.full((4,), 6))
    twice_cross = model.decoder.cross(model.encoder(*twice)[0])
    at_once = model.decoder(target, torch.full((4,), 6), twice_cross, twice[1])
    cross = model.decoder.cross(model.encoder(source, source_length)[0])
    cache, position = model.empty_cache(4, 9), torch.zeros(4, dtype=torch.long)
    delay = torch.tensor([0, 2, 1, 0])  # a row waits by writing its first position again
    for step in range(8):
        position = (step - delay).clamp(0, 5)
        token = target[torch.arange(4), position]
        decoded = model.decoder.step(token, position, cache, cross, source_length)
        cache = decoded.cache
        expected = full[torch.arange(4), position]
        torch.testing.assert_close(model.log_probs(decoded.hidden), expected, rtol=1e-4, atol=1e-5)
    for layer, whole in zip(cache, at_once.cache, strict=True):
        for stepped, expected in zip(layer, whole, strict=True):
            torch.testing.assert_close(stepped[:, :, :6], expected, rtol=1e-4, atol=1e-5)


def test_weights_start_within_xaviers_limit():
    weight = small(d_model=64).decoder.layers[0].feed_forward.up.weight
    limit = math.sqrt(6 / sum(weight.shape))
    assert weight.abs().max() <= limit
    assert weight.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.999])
def test_dropout_drops_its_share_independently_and_keeps_the_mean(p):
    torch.manual_seed(0)
    x = torch.ones(1000, 1001, requires_grad=True)
    y = Dropout(p)(x)
    dropped = (y == 0).double()
    deviation = math.sqrt(p * (1 - p))
    assert dropped.mean().item() == pytest.approx(p, abs=5 * deviation / 1000 + 2**-16)
    assert y.unique().tolist() == [0, pytest.approx(1 / (1 - p), rel=0.02)]
    assert y.mean().item() == pytest.approx(1, abs=5 * deviation / (1 - p) / 1000)
    for distance in (1, 2, 3, 4):  # four neighbours come from the same 64 bits
        flat = dropped.flatten() - p
        assert abs((flat[distance:] * flat[:-distance]).mean()) < 5 * deviation**2 / 1000
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y)
    assert Dropout(p).eval()(x) is x
