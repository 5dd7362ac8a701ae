"""The SSRU: its formula in NumPy, whole targets at once, and step by step."""

import numpy as np
import pytest
import torch
from torch import nn

from model.network.attention import TORCH_KERNEL
from model.network.config import TransformerConfig
from model.network.positions import Position
from model.network.ssru import SSRU, State
from model.network.transformer import Transformer

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def configure(**changes):
    torch.manual_seed(0)
    sizes = {"d_model": 12, "d_ff": 20, "num_heads": 3, "num_encoder_layers": 2}
    return TransformerConfig(
        source_vocab_size=11,
        target_vocab_size=13,
        num_decoder_layers=3,
        decoder="ssru",
        **{**sizes, **changes},
    )


def random_ssru():
    ssru = SSRU(configure()).eval()
    for parameter in ssru.parameters():
        nn.init.normal_(parameter, std=0.7)
    return ssru


def states(ssru, x):
    """c (T, M) of x (T, M), one position after the other, in float64."""
    w, wf, bf = (
        each.detach().numpy().astype(float)
        for each in (ssru.values.weight, ssru.forget_gate.weight, ssru.forget_gate.bias)
    )
    found, c = [], np.zeros(x.shape[1])
    for row in x.astype(float):
        f = 1 / (1 + np.exp(-(wf @ row + bf)))
        c = f * c + (1 - f) * (w @ row)
        found.append(c)
    return np.array(found)


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 2, 3, 16, 33])
def test_whole_targets_and_steps_are_the_formula(length):
    ssru, x = random_ssru(), torch.randn(2, length, 12)
    expected = np.stack([states(ssru, each) for each in x.numpy()])
    whole, kept = ssru(x, TORCH_KERNEL)
    np.testing.assert_allclose(whole, expected.clip(0), **TOLERANCE)
    np.testing.assert_allclose(kept.state[:, 0], expected, **TOLERANCE)
    past = State(torch.full((2, 1, 1, 12), torch.nan))  # of other rows: position 0 reads none of it
    for place in range(length):
        position = Position(torch.full((2,), place), None)
        y, past = ssru.step(x[:, place], past, position)
        np.testing.assert_allclose(y, expected[:, place].clip(0), **TOLERANCE)
        np.testing.assert_allclose(past.state[:, 0, 0], expected[:, place], **TOLERANCE)


@torch.no_grad()
@pytest.mark.parametrize("bias", [-200.0, 30.0, 200.0])
def test_a_gate_that_is_open_or_shut_for_500_positions_keeps_the_digits(bias):
    """A quotient of cumulative products would be 0 / 0 here."""
    ssru, x = random_ssru(), torch.randn(1, 500, 12)
    nn.init.constant_(ssru.forget_gate.bias, bias)
    np.testing.assert_allclose(
        ssru(x, TORCH_KERNEL)[0][0], states(ssru, x[0].numpy()).clip(0), **TOLERANCE
    )


def test_the_gradient_of_whole_targets_is_that_of_steps():
    forget, update = (torch.rand(2, 13, 5, dtype=torch.double) for _ in range(2))
    inputs = forget.requires_grad_(), update.requires_grad_()
    weight = torch.randn(2, 13, 5, dtype=torch.double)
    at_once = torch.autograd.grad((TORCH_KERNEL.accumulate(*inputs) * weight).sum(), inputs)
    c, each = torch.zeros(2, 5, dtype=torch.double), []
    for place in range(13):
        c = forget[:, place] * c + update[:, place]
        each.append(c)
    stepwise = torch.autograd.grad((torch.stack(each, 1) * weight).sum(), inputs)
    torch.testing.assert_close(at_once, stepwise)


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("positions", ["sinusoidal", "none"])
def test_rows_at_different_positions_equal_the_full_forward_pass(norm_first, positions):
    """Two rows a source. A rotary encoder and its relative bias leave the decoder alone."""
    changes = {"rotary": True, "relative_distance": 4, "positions": positions}
    model = Transformer(configure(norm_first=norm_first, **changes)).eval()
    source, source_length = torch.randint(3, 11, (2, 5)), torch.tensor([5, 3])
    target = torch.randint(3, 13, (4, 6))
    twice = source.repeat_interleave(2, 0), source_length.repeat_interleave(2)
    full = model(*twice, target, torch.full((4,), 6))
    cross = model.decoder.cross(model.encoder(source, source_length)[0])
    cache = model.empty_cache(4, 9)
    delay = torch.tensor([0, 2, 1, 0])
    for step in range(8):
        position = (step - delay).clamp(0, 5)
        token = target[torch.arange(4), position]
        decoded = model.decoder.step(token, position, cache, cross, source_length)
        cache = decoded.cache
        live = step - delay <= 5  # a row that has ended reads its last token again
        expected = full[torch.arange(4), position]
        found = model.log_probs(decoded.hidden)
        torch.testing.assert_close(found[live], expected[live], **TOLERANCE)
        assert not decoded.decoder_attention


@torch.no_grad()
def test_no_position_depends_on_padding_or_later_ones():
    model = Transformer(configure()).eval()
    source, length = torch.randint(3, 11, (2, 5)), torch.tensor([5, 5])
    target = torch.randint(3, 13, (2, 7))
    batched = model(source, length, target, torch.tensor([7, 4]))
    alone = model(source[1:], length[1:], target[1:, :4], torch.tensor([4]))
    torch.testing.assert_close(batched[1, :4], alone[0], **TOLERANCE)


def test_the_weights_have_the_names_that_checkpoints_are_converted_to():
    names = {each for each in Transformer(configure()).state_dict() if "layers.2.s" in each}
    assert names == {
        "decoder.layers.2.ssru.values.weight",  # W, without a bias
        "decoder.layers.2.ssru.forget_gate.weight",
        "decoder.layers.2.ssru.forget_gate.bias",
        "decoder.layers.2.self_sublayer.norm.weight",
        "decoder.layers.2.self_sublayer.norm.bias",
    }
