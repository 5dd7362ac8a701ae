"""Products whose inputs have outliers stay fp32."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from model.checkpoint import load_model
from model.export import product_error
from model.export.answers import answer
from model.export.bundle import write_model
from model.export.calibrate import calibrate, samples
from model.export.compare import compare
from model.export.manifest import Precision
from model.export.weights import WeightType, fp32_products, int8_names
from model.network.config import Activation, NormKind, Positions, Tied, TransformerConfig
from model.network.transformer import Transformer

T5 = {"norm": NormKind.rms_norm, "norm_first": True, "embedding_scale": 1.0, "tied": Tied.all}
DOWN = [
    f"{side}.layers.{layer}.feed_forward.down"
    for side in ("encoder", "decoder")
    for layer in (0, 1)
]


def like_t5(**changes):
    """A network of T5's kind with the attention of a trained one: not too sharp."""
    torch.manual_seed(0)
    sizes = {
        "source_vocab_size": 300,
        "target_vocab_size": 300,
        "d_model": 32,
        "d_ff": 64,
        "num_heads": 2,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "positions": Positions.none,
        "relative_distance": 16,
    }
    model = Transformer(TransformerConfig(**T5 | sizes | changes)).eval()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, float("norm" in name), 0.1 if "attention" in name else 0.3)
    return model


@torch.no_grad()
def plant(model, factor, channels=8):
    """Scale some channels of every hidden layer, and undo it in the next matrix: the same model."""
    for name in DOWN:
        layer = model.get_submodule(name.removesuffix(".down"))
        layer.up.weight[:channels] *= factor
        layer.up.bias[:channels] *= factor
        layer.down.weight[:, :channels] /= factor
    return model


GATED = {"gated": True, "activation": Activation.gelu_tanh}
kinds = pytest.mark.parametrize("kind", [{}, GATED], ids=["plain", "gated"])


@kinds
def test_products_of_outliers_stay_fp32_and_no_others(kind):
    assert calibrate(like_t5(**kind)).fp32 == set()
    assert calibrate(plant(like_t5(**kind), 100)).fp32 == {*DOWN}


def test_the_default_model_and_the_tiny_one_stay_int8(g2p, tiny):
    for bundle in (g2p, tiny):
        model = load_model(bundle).transformer
        found = calibrate(model)
        assert found.fp32 == set()
        assert int8_names(model, found.fp32) == int8_names(model)
        linear = [name for name, m in model.named_modules() if isinstance(m, nn.Linear)]
        assert found.scales.keys() == {*linear}  # none has lost its constant scale


@torch.no_grad()
def test_the_error_is_that_of_integer_arithmetic():
    random = np.random.default_rng(0)
    weight, x = (random.standard_normal((n, 16)).astype(np.float32) for n in (24, 5))
    x[:, 0] *= 50
    sizes, scale = np.abs(x).max(1, keepdims=True), np.abs(weight).max(1) / 127
    integers = np.rint(x / sizes * 127) @ np.rint(weight.T / scale)
    exact = x @ weight.T
    errors = np.linalg.norm(integers * sizes / 127 * scale - exact, axis=1)
    expected = (errors / np.linalg.norm(exact, axis=1)).mean()
    found = product_error.product_error(torch.from_numpy(weight), torch.from_numpy(x), None)
    assert found == pytest.approx(expected, rel=1e-3)


@torch.no_grad()
def test_a_merged_product_stays_fp32_as_a_whole():
    model = like_t5()
    attention = "encoder.layers.1.self_attention"
    norm = model.get_parameter("encoder.layers.1.self_sublayer.norm.weight")
    norm[:2] *= 300
    for part in ("query", "key", "value"):
        weight = model.get_parameter(f"{attention}.{part}.weight")
        weight[:, :2] /= 300 if part == "key" else 1
    assert {f"{attention}.{part}" for part in ("query", "key", "value")} <= calibrate(model).fp32


@pytest.mark.long
@kinds
def test_outliers_cost_no_tokens(kind, tmp_path, monkeypatch):
    """The graphs, beside torch: with the rule, and without it."""
    model = plant(like_t5(**kind), 100)
    kept = write(model, tmp_path / "kept")
    assert {*fp32_products(model, kept)} == {*DOWN}
    stored = load_file(kept / "model.safetensors")
    for name in DOWN:
        weight = model.get_parameter(f"{name}.weight").detach().numpy()
        assert np.array_equal(stored[f"{name}.weight"], weight)
        assert f"{name}.weight_scale" not in stored
    answers = answer(model, samples(model, seed=1))
    assert compare(kept, answers).same_best >= 0.9
    monkeypatch.setattr(product_error, "LARGEST_ERROR", np.inf)
    spoiled = write(model, tmp_path / "spoiled")
    assert fp32_products(model, spoiled) == []
    assert compare(spoiled, answers).same_best < 0.9


def write(model, folder):
    folder.mkdir()
    write_model(model, WeightType.fp32, Precision.int8, folder, lambda _: None)
    return folder / "int8"
