"""Products that int8 would spoil read activations of 16 bits, or stay fp32: found by what they do
to the log-probs."""

import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from model.checkpoint import WEIGHTS, TrainedModel, load_model
from model.data.pairs import pad
from model.export.bundle import write_int8, write_model
from model.export.checks.answers import answer, torch_log_probs
from model.export.checks.compare import compare, open_graph
from model.export.checks.samples import samples
from model.export.files.manifest import Precision
from model.export.files.tensor_file import refer_to, write_tensors
from model.export.files.weights import (
    WeightType,
    fp32_products,
    int8_modules,
    int8_names,
    int8_rows,
    int8_sources,
    linear_layers,
)
from model.export.graphs.wrappers import export_graphs
from model.export.precision import calibrate as calibration
from model.export.precision import choose
from model.export.precision.calibrate import (
    affordable,
    calibrate,
    layers_for_gptq,
    round_by_gptq,
)
from model.export.precision.damage import Damage, divergence, entropy
from model.export.precision.int8_products import rounded
from model.export.precision.quantize import quantize
from model.network.config import Activation, NormKind, Positions, Tied, TransformerConfig
from model.network.transformer import Transformer
from model.usage import plain_usage

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
def plant(model):
    """Scale 8 channels of every hidden layer, and undo it in the next matrix: the same model."""
    for name in DOWN:
        layer = model.get_submodule(name.removesuffix(".down"))
        layer.up.weight[:8] *= 100
        layer.up.bias[:8] *= 100
        layer.down.weight[:, :8] /= 100
    return model


GATED = {"gated": True, "activation": Activation.gelu_tanh}
kinds = pytest.mark.parametrize("kind", [{}, GATED], ids=["plain", "gated"])


@kinds
def test_products_of_outliers_leave_int8(kind):
    """And what is left is within the limit, which 8 bits of all products would exceed."""
    model = plant(like_t5(**kind))
    pairs = samples(model)
    found = calibrate(model, pairs)
    assert found.fp32 & {*DOWN}
    kept = {*int8_modules(model)} - found.fp32
    damage = Damage(model, found.scales, pairs[1::2], found.by_gptq)  # those it was not fitted to
    most = max(choose.LEAST, choose.ON_RANDOM_IDS * damage.entropy)
    assert damage.of(kept, found.wide) <= most < damage.of(int8_modules(model))
    assert Damage(model, found.scales, pairs).of(int8_modules(model)) > most


@torch.no_grad()
def test_wide_products_of_a_graph_are_those_of_torch(tmp_path):
    """Next to some with 8 bits. The first layer has constant scales, the second those of rows. Its
    weights are rounded for what they multiply, those of the first to the nearest."""
    model = like_t5()
    name, proto = next(export_graphs(model))
    assert name == "encoder"
    names = {each for each in int8_modules(model) if each.startswith("encoder.layers")}
    wide = {each for each in names if not each.endswith(".up")}
    pairs = samples(model)
    scales = calibrate(model, pairs).scales
    scales = {each: scale for each, scale in scales.items() if ".layers.0." in each}
    tensors = {key: tensor.detach() for key, tensor in model.state_dict().items()}
    weights = {f"{each}.weight" for each in names}
    quantize(proto, scales, weights, {f"{each}.bias" for each in names}, wide)
    layers = [each for each in layers_for_gptq(model) if ".1." in each]
    given = round_by_gptq(model, pairs, layers)
    stored = write_tensors(tmp_path / "weights.safetensors", int8_sources(tensors, weights, given))
    refer_to(proto.graph, "weights.safetensors", stored)
    onnx.save(proto, tmp_path / "graph.onnx")
    ids, lengths = pad([[5, 9, 7, 200], [6, 250]], model.config.pad_id)
    session = open_graph(tmp_path / "graph.onnx")
    found = session.run(["memory"], {"source_ids": ids.numpy(), "source_length": lengths.numpy()})
    with rounded(model, names, scales, wide, given):
        expected, _ = model.encoder(ids, lengths)
    for row, other, length in zip(found[0], expected.numpy(), lengths, strict=True):
        np.testing.assert_allclose(row[:length], other[:length], rtol=1e-3, atol=1e-3)


def test_a_network_that_int8_does_not_change_stays_int8(g2p, tiny):
    for bundle in (g2p, tiny):
        model = load_model(bundle).transformer
        found = calibrate(model, samples(model))
        assert not found.fp32 | found.wide
        linear = [name for name, m in model.named_modules() if isinstance(m, nn.Linear)]
        assert found.scales.keys() == {*linear}  # rows hardly differ in size


@torch.no_grad()
@pytest.mark.parametrize(("wide", "left"), [(1, "wide"), (1 << 16, "fp32")], ids=["wide", "fp32"])
def test_what_softmax_amplifies_leaves_8_bits_first(wide, left, monkeypatch):
    """A small error of queries and keys passes through a sharp softmax. What is as small as these
    products leaves int8 at once."""
    monkeypatch.setattr(choose, "WIDE", wide)
    model = like_t5()
    model.decoder.layers[0].cross_attention.query.weight *= 100
    pairs = samples(model)
    damage = Damage(model, calibrate(model, pairs).scales, pairs)
    whole = damage.of(int8_modules(model))
    monkeypatch.setattr(choose, "LEAST", whole / 3)
    name = "decoder.layers.0.cross_attention"
    found = calibrate(model, pairs, 0)
    assert {f"{name}.query", f"{name}.key"} & getattr(found, left)
    damage = Damage(model, found.scales, pairs[1::2], found.by_gptq)
    assert damage.of({*int8_modules(model)} - found.fp32, found.wide) <= whole / 3
    assert len(found.fp32 | found.wide) < len(int8_modules(model)) / 3


@torch.no_grad()
def test_damage_is_the_divergence_of_the_log_probs():
    """Equal to torch's own divergence, pair by pair, over a vocabulary that is listed whole."""
    model = like_t5(source_vocab_size=12, target_vocab_size=12)
    pairs = samples(model)[:11]
    names = int8_modules(model)
    exact = [torch.from_numpy(torch_log_probs(model, *pair)) for pair in pairs]
    with rounded(model, names, {}):
        other = [torch.from_numpy(torch_log_probs(model, *pair)) for pair in pairs]
    p, q = torch.cat(exact), torch.cat(other)
    expected = nn.functional.kl_div(q, p, reduction="batchmean", log_target=True).item()
    damage = Damage(model, {}, pairs)
    assert damage.of(names) == pytest.approx(expected, rel=0.05)  # halves are rounded either way
    assert damage.entropy == pytest.approx(-(p.exp() * p).sum(-1).mean().item(), rel=1e-3)
    assert damage.of([]) == pytest.approx(0, abs=1e-7)


def test_tokens_that_are_not_listed_count_as_one():
    p, q = torch.tensor([[0.5, 0.3, 0.1, 0.1]]), torch.tensor([[0.4, 0.4, 0.15, 0.05]])
    summed = [torch.cat([x[:, :2], x[:, 2:].sum(1, keepdim=True)], 1) for x in (p, q)]
    expected = (summed[0] * (summed[0] / summed[1]).log()).sum().item()
    assert divergence(p[:, :2].log(), q[:, :2].log()).item() == pytest.approx(expected, rel=1e-5)
    expected = -(summed[0] * summed[0].log()).sum().item()
    assert entropy(p[:, :2].log()).item() == pytest.approx(expected, rel=1e-5)


def test_a_large_network_is_measured_on_fewer_pairs(monkeypatch):
    model = like_t5()
    pairs = samples(model)
    measured, passes = affordable(model, pairs)
    assert len(measured) == len(pairs)
    assert passes > 1000
    monkeypatch.setattr("model.export.precision.calibrate.A_PASS", 1)
    monkeypatch.setattr("model.export.precision.calibrate.ALL_PASSES", 1)
    assert affordable(model, pairs) == (pairs[:1], 0)


def test_without_passes_a_place_leaves_int8_in_all_layers(monkeypatch):
    monkeypatch.setattr("model.export.precision.calibrate.ALL_PASSES", 1)
    model = plant(like_t5())
    found = calibrate(model, samples(model))
    downs = [{name for name in DOWN if name.startswith(side)} for side in ("encoder", "decoder")]
    assert any(names <= found.fp32 for names in downs)
    assert all(names <= found.fp32 or not names & found.fp32 for names in downs)


@torch.no_grad()
@pytest.mark.parametrize("largest", [None, 3.0], ids=["per row", "constant"])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_a_rounded_product_is_integer_arithmetic(largest, positive, wide):
    random = np.random.default_rng(0)
    weight, x = (random.standard_normal((n, 16)).astype(np.float32) for n in (24, 5))
    x[:, 0] *= 50
    x = np.abs(x) if positive else x
    levels, low, high = (255, 0, 255) if positive and not wide else (127, -128, 127)
    sizes = np.abs(x).max(1, keepdims=True) if largest is None else np.full((5, 1), largest)
    scale = np.abs(weight).max(1) / 127
    rows = np.clip(np.rint(x / sizes * levels), low, high)
    if wide:
        rows += np.clip(np.rint((x / sizes * levels - rows) * 254), -128, 127) / 254
    integers = rows @ np.rint(weight.T / scale)
    module = nn.Module()
    module.product = nn.Linear(16, 24)
    module.product.weight.copy_(torch.from_numpy(weight))
    scales = {} if largest is None else {"product": largest}
    with rounded(module, ["product"], scales, ["product"] if wide else ()):
        found = module.product(torch.from_numpy(x)) - module.product.bias
    np.testing.assert_allclose(found, integers * sizes / levels * scale, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        module.product(torch.from_numpy(x)) - module.product.bias,
        x @ weight.T,
        rtol=1e-4,
        atol=1e-3,
    )


@torch.no_grad()
def test_a_merged_product_stays_fp32_as_a_whole():
    model = like_t5()
    norm = model.get_parameter("encoder.layers.1.self_sublayer.norm.weight")
    norm[:2] *= 300
    attention = "encoder.layers.1.self_attention"
    for part in ("query", "key", "value"):
        weight = model.get_parameter(f"{attention}.{part}.weight")
        weight[:, :2] /= 300 if part == "key" else 1
    parts = {f"{attention}.{part}" for part in ("query", "key", "value")}
    assert parts <= calibrate(model, samples(model)).fp32


def test_a_shared_matrix_stays_fp32_for_all_that_read_it(monkeypatch):
    monkeypatch.setattr("model.export.files.weights.LARGE_EMBEDDING", 1)
    monkeypatch.setattr(choose, "LEAST", 1e-12)
    model = like_t5()
    found = calibrate(model, samples(model), 0)
    shared = {"generator", "encoder.embedding.tokens", "decoder.embedding.tokens"}
    assert shared <= found.fp32
    assert not {"encoder.embedding.tokens.weight"} & int8_names(model, found.fp32)


@pytest.mark.long
@kinds
def test_outliers_cost_no_tokens(kind, tmp_path, monkeypatch):
    """The graphs are compared with torch, with the rule and without it."""
    model = plant(like_t5(**kind))
    kept = write(model, tmp_path / "kept")
    names = fp32_products(model, kept)
    assert {*names} & {*DOWN}
    stored = load_file(kept / "model.safetensors")
    for name in names:
        weight = model.get_parameter(f"{name}.weight").detach().numpy()
        assert np.array_equal(stored[f"{name}.weight"], weight)
        assert f"{name}.weight_scale" not in stored
    answers = answer(model, samples(model, seed=1))
    assert compare(kept, answers).same_best >= 0.9
    monkeypatch.setattr(choose, "LEAST", np.inf)
    spoiled = write(model, tmp_path / "spoiled")
    assert fp32_products(model, spoiled) == []
    assert compare(spoiled, answers).same_best < 0.9


def write(model, folder):
    folder.mkdir()
    trained = TrainedModel(model, None, None, plain_usage(model.config, None))
    write_model(trained, WeightType.fp32, Precision.int8, folder, lambda _: None)
    return folder / "int8"


def test_gptq_is_judged_by_pairs_that_it_has_not_seen(monkeypatch):
    model = like_t5()
    pairs = samples(model)
    seen, judged = [], []

    def rounding(_, given, __):
        seen[:] = given
        return {}

    class Recorded(Damage):
        def __init__(self, model, scales, pairs, *by_gptq):
            super().__init__(model, scales, pairs, *by_gptq)
            judged[:] = pairs

    monkeypatch.setattr(calibration, "round_by_gptq", rounding)
    monkeypatch.setattr(calibration, "Damage", Recorded)
    calibrate(model, pairs, 0)
    assert seen
    assert judged
    assert not {*map(str, seen)} & {*map(str, judged)}
    calibrate(model, pairs[:1], 0)  # one pair serves both
    assert seen == judged == pairs[:1]


@pytest.mark.parametrize("worse", [False, True], ids=["better", "worse"])
def test_the_rounding_that_does_less_damage_is_kept(worse, monkeypatch):
    """Few texts may tell GPTQ nothing that holds for others."""
    if worse:
        monkeypatch.setattr(calibration, "gptq", lambda weight, _: zeros(weight))
    model = plant(like_t5())
    found = calibrate(model, samples(model))
    linear = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    kept = linear - {"generator.weight"} - {f"{name}.weight" for name in found.fp32}
    assert found.by_gptq.keys() == (set() if worse else kept)


def zeros(weight):
    return torch.zeros(weight.shape, dtype=torch.int8)


@pytest.mark.parametrize(
    ("tied", "lookup"),
    [
        (Tied.no, set()),
        (Tied.embeddings, set()),
        (Tied.target, {"generator"}),
        (Tied.all, {"generator"}),
    ],
)
def test_a_matrix_whose_rows_are_looked_up_keeps_the_nearest_numbers(tied, lookup):
    model = like_t5(tied=tied)
    linear = {name for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert {*layers_for_gptq(model)} == linear - lookup


@torch.no_grad()
def test_weights_that_were_int8_keep_their_numbers():
    model = like_t5()
    name = "encoder.layers.0.feed_forward.up"
    weight = model.get_parameter(f"{name}.weight")
    weight.copy_((weight / weight.abs().max() * 127).round() * 0.01)
    assert name not in layers_for_gptq(model)


def test_very_wide_matrices_keep_the_nearest_numbers(monkeypatch):
    """GPTQ needs a square of their width, several times."""
    monkeypatch.setattr(calibration, "MOST_COLUMNS", 63)
    model = like_t5()
    down = {name for name in linear_layers(model) if name.endswith(".down")}  # d_ff is 64
    assert {*layers_for_gptq(model)} == {*linear_layers(model)} - down - {"generator"}


def test_layers_are_read_in_batches(monkeypatch):
    """So that what large networks multiply need not be in memory at once."""
    model = like_t5()
    pairs, names = samples(model)[:4], layers_for_gptq(model)
    whole = round_by_gptq(model, pairs, names)
    monkeypatch.setattr(calibration, "MOST_INPUTS", 5000)
    batches = [*calibration.batches_of(model, pairs, names)]
    assert len(batches) > 3
    assert [name for batch in batches for name in batch] == names
    for name, rows in round_by_gptq(model, pairs, names).items():
        assert torch.equal(rows, whole[name])


def test_a_bundle_stores_the_weights_that_were_judged(tmp_path):
    model = plant(like_t5())
    found = calibrate(model, samples(model))
    write_int8(model, tmp_path / "int8", found)
    stored = load_file(tmp_path / "int8" / WEIGHTS)
    assert found.by_gptq
    changed = 0
    for name, rows in found.by_gptq.items():
        np.testing.assert_array_equal(stored[name], rows)
        (nearest,) = int8_rows(model.get_parameter(name))
        changed += not torch.equal(nearest, rows)
    assert changed
