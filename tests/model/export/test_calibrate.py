"""Scales of int8 activations, and the random ids that measure them."""

import numpy as np
import pytest
import torch
from onnx import numpy_helper

from model.data.pairs import pad
from model.export.checks.parity import parity
from model.export.checks.samples import decode, samples
from model.export.files.weights import int8_names
from model.export.graphs.wrappers import export_graphs
from model.export.precision.calibrate import MARGIN, calibrate
from model.export.precision.quantize import quantize
from model.network.attention import TORCH_KERNEL
from model.network.config import InputError, TransformerConfig
from model.network.positions import Position
from model.network.transformer import Transformer


def small(**changes):
    torch.manual_seed(0)
    sizes = {
        "source_vocab_size": 11,
        "target_vocab_size": 13,
        "d_model": 16,
        "d_ff": 24,
        "num_heads": 2,
        "num_encoder_layers": 2,
        "num_decoder_layers": 1,
    }
    return Transformer(TransformerConfig(**sizes | changes)).eval()


UNUSUAL = {
    "few source positions": {"max_source_length": 3},
    "one source position": {"max_source_length": 1},
    "few target positions": {"max_target_length": 2},
    "one target position": {"max_target_length": 1},
    "specials at the end": {"pad_id": 10, "bos_id": 9, "eos_id": 8},
    "specials apart": {"pad_id": 10, "bos_id": 0, "eos_id": 5},
    "one special for all": {"pad_id": 0, "bos_id": 0, "eos_id": 0},
    "one ordinary token": {"source_vocab_size": 4, "target_vocab_size": 4},
    "one ordinary token, first": {
        "source_vocab_size": 4,
        "target_vocab_size": 4,
        "pad_id": 3,
        "bos_id": 2,
        "eos_id": 1,
    },
}
unusual = pytest.mark.parametrize("changes", UNUSUAL.values(), ids=UNUSUAL.keys())


@unusual
def test_samples_are_ordinary_tokens_within_the_models_lengths(changes):
    model = small(**changes)
    config = model.config
    for source, target in samples(model):
        assert 1 <= len(source) <= config.max_source_length
        assert 1 <= len(target) <= config.max_target_length
        assert set(source) <= set(range(config.source_vocab_size)) - set(config.specials)
        assert target[0] == config.bos_id
        assert set(target) <= set(range(config.target_vocab_size))


@unusual
def test_parity_asks_for_ordinary_tokens_within_the_models_lengths(changes):
    config = small(**changes).config
    arrays = parity(small(**changes))
    for ids, lengths, longest, vocab_size in (
        ("source_ids", "source_length", config.max_source_length, config.source_vocab_size),
        ("decoder_input_ids", "decoder_length", config.max_target_length, config.target_vocab_size),
    ):
        ordinary = set(range(vocab_size)) - set(config.specials)
        skipped = ids == "decoder_input_ids"  # its first id is bos
        for row, length in zip(arrays[ids], arrays[lengths], strict=True):
            assert 1 <= length <= longest
            assert set(row[skipped:length]) <= ordinary
    assert (arrays["decoder_input_ids"][:, 0] == config.bos_id).all()


@unusual
def test_every_model_that_trains_can_be_calibrated(changes):
    model = small(**changes)
    assert all(0 < scale < np.inf for scale in calibrate(model, samples(model)).scales.values())


@torch.no_grad()
def test_padding_does_not_change_scales():
    model = small()
    before = calibrate(model, samples(model)).scales
    model.encoder.embedding.tokens.weight[model.config.pad_id] *= 3
    assert calibrate(model, samples(model)).scales == before


@pytest.mark.parametrize("measure", [samples, parity])
def test_a_vocabulary_of_specials_alone_is_refused(measure):
    model = small(source_vocab_size=3)
    with pytest.raises(InputError, match="a vocabulary of 3 has no token but pad, bos and eos"):
        measure(model)


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (lambda model: calibrate(model, samples(model)), "cannot be calibrated"),
        (parity, "NaN or infinity"),
    ],
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@torch.no_grad()
def test_weights_that_are_not_numbers_are_refused(measure, message, value):
    model = small()
    model.encoder.layers[0].feed_forward.up.bias[3] = value
    with pytest.raises(InputError, match=message):
        measure(model)


@torch.no_grad()
def test_layers_of_equal_weights_have_scales_of_their_own():
    """Two layers whose weights are one and whose activations differ tenfold."""
    model = small(norm_first=True)
    first, second = model.encoder.layers
    second.load_state_dict(first.state_dict())
    second.self_sublayer.norm.weight.mul_(10)
    second.feed_forward_sublayer.norm.weight.mul_(10)
    largest = [0.0, 0.0]
    for source, _ in samples(model):
        ids, length = torch.arange(len(source)), torch.tensor([len(source)])
        x = model.encoder.embedding(torch.tensor([source]), ids)
        for i, layer in enumerate((first, second)):
            normed = layer.self_sublayer.norm(x)
            largest[i] = max(largest[i], normed.abs().max().item())
            x, _ = layer(x, length, TORCH_KERNEL, Position(ids, rotary=None))
    assert largest[1] > 5 * largest[0]

    name, proto = next(export_graphs(model))
    assert name == "encoder"
    biases = {name for name, tensor in model.state_dict().items() if tensor.dim() == 1}
    quantize(proto, calibrate(model, samples(model)).scales, int8_names(model), biases)
    constants = {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
    scales = {
        node.name: constants[node.input[2]]
        for node in proto.graph.node
        if node.op_type == "MatMulIntegerToFloat"
    }
    for layer in (0, 1):
        for part in ("query", "key", "value"):
            found = scales[f"encoder.layers.{layer}.self_attention.{part}"]
            assert found == pytest.approx(MARGIN * largest[layer] / 127, rel=1e-5)


@unusual
@pytest.mark.parametrize("forced", [[], [3, 1]], ids=["", "forced"])
def test_cached_decoding_gives_the_targets_of_the_search(changes, forced):
    """Ids after eos, of sources that end before others, are not part of a target."""
    model = small(**changes)
    config = model.config
    with torch.no_grad():
        model.generator.bias[config.eos_id] += 0.5
    sources = [[3 % config.source_vocab_size] * n for n in range(1, 1 + config.max_source_length)]
    start = [config.bos_id, *forced][: config.max_target_length]
    longest = max(1, min(9, config.max_target_length + 1 - len(start)))
    for source, target in decode(model, sources[:12], start, longest):
        assert target == plain_search(model, source, start, longest)


@torch.no_grad()
def plain_search(model, source, start, longest):
    """Decode one source without a cache, and leave out eos and the last token of a cut text."""
    ids = [*start]
    for _ in range(longest - 1):
        best = model(*pad([source], 0), *pad([ids], 0))[0, -1].argmax().item()
        if best == model.config.eos_id:
            break
        ids.append(best)
    return ids
