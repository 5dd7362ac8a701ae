"""Models at the edges of what can be trained: exported, then opened as the service opens them."""

import pytest
import torch
from safetensors import safe_open

from model.checkpoint import TrainedModel, find_weights
from model.data.tokenizers import Unit, build_tokenizer
from model.export.bundle import WeightType, write_bundle
from model.export.files.manifest import Card, Precision
from model.export.files.weights import round_weights
from model.export.graphs.wrappers import export_graphs
from model.network.config import InputError
from model.network.transformer import Transformer
from service.bundle.manifest import load_bundle
from service.runtime.self_check import check_parity
from service.runtime.session import Session
from service.settings.settings import Provider, Settings
from tests.model.export.sizes import config_with

CARD = Card(name="edge", task="tests", licence="Apache-2.0", attribution="nobody", notice="none")


def trained(**changes):
    torch.manual_seed(0)
    tokenizer = build_tokenizer(["abcdefgh"], Unit.characters)
    transformer = Transformer(config_with(**changes)).eval()
    return TrainedModel(transformer, tokenizer, tokenizer)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {"max_source_length": 3, "max_target_length": 2, "rotary": True},
            id="few positions",
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"pad_id": 11, "bos_id": 10, "eos_id": 9, "max_target_length": 1},
            id="specials at the end",
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"source_vocab_size": 4, "target_vocab_size": 4, "max_source_length": 1},
            id="one ordinary token",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_model_that_trains_exports_and_starts(tmp_path, changes):
    write_bundle(trained(**changes), CARD, WeightType.fp32, tmp_path / "edge", Precision.both)
    bundle = load_bundle(tmp_path / "edge")
    for precision in ("fp32", "int8"):
        session = Session(bundle, Settings(precision=precision, provider=Provider.cpu))
        check_parity(session, bundle)


def test_an_int8_bundle_has_no_fp32_matrix_and_starts(tmp_path):
    model = trained().transformer
    write_bundle(trained(), CARD, WeightType.fp32, tmp_path / "edge", Precision.int8)
    assert not (tmp_path / "edge" / "fp32").exists()
    with safe_open(tmp_path / "edge" / "int8" / "model.safetensors", "np") as file:
        types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            assert types[f"{name}.weight"] == "I8"
            assert types[f"{name}.weight_scale"] == "F32"
    bundle = load_bundle(tmp_path / "edge")
    session = Session(bundle, Settings(provider=Provider.cpu))
    assert session.precision == "int8"
    check_parity(session, bundle)
    with pytest.raises(InputError, match=r"holds int8 weights only.*--precision fp32 or both"):
        find_weights(tmp_path / "edge")


@pytest.fixture
def tied():
    """A model whose generator and target embedding are one matrix of 4.9 MB, 1.2 at int8."""
    positions = {"max_source_length": 32, "max_target_length": 32}
    return trained(target_vocab_size=9600, d_model=128, tied="target", **positions)


@torch.no_grad()
@pytest.mark.long
@pytest.mark.parametrize("weight_type", WeightType)
def test_a_tied_weight_is_stored_once(tied, weight_type, tmp_path):
    round_weights(tied.transformer, weight_type)
    write_bundle(tied, CARD, weight_type, tmp_path / "edge", Precision.both)
    name, size = "decoder.embedding.tokens.weight", tied.transformer.generator.weight.numel()
    for precision, item in (("fp32", weight_type.dtype.itemsize), ("int8", 1)):
        path = tmp_path / "edge" / precision / "model.safetensors"
        assert path.stat().st_size < 1.5 * size * item
        with safe_open(path, "pt") as file:
            assert "generator.weight" not in file.keys()  # noqa: SIM118
            stored = file.get_tensor(name)
        assert stored.shape == tied.transformer.generator.weight.shape
        if precision == "fp32":
            assert stored.float().equal(tied.transformer.generator.weight)
    bundle = load_bundle(tmp_path / "edge")
    for precision in ("fp32", "int8"):
        session = Session(bundle, Settings(precision=precision, provider=Provider.cpu))
        check_parity(session, bundle)
        for graph in ("attention", "encoder_attention", "score"):
            session.open(graph)


@torch.no_grad()
def test_products_do_not_add_biases_of_zeros():
    """Those of the query, key and value of a step are merged without a bias, too."""
    model = trained().transformer
    biases = {
        f"{name}.bias": module.bias.zero_()
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    graphs = export_graphs(model)
    for name, products in (("encoder", 8), ("step", 7)):
        graph_name, proto = next(graphs)
        assert graph_name == name
        assert not biases.keys() & {each for node in proto.graph.node for each in node.input}
        named = [node for node in proto.graph.node if f"{node.name}.bias" in biases]
        assert len(named) == products


def test_a_model_that_cannot_be_exported_leaves_no_rest(tmp_path):
    model = trained()
    torch.nn.init.constant_(model.transformer.generator.bias, 1e5)
    round_weights(model.transformer, WeightType.fp16)
    with pytest.raises(InputError, match="too large for --weights fp16"):
        write_bundle(model, CARD, WeightType.fp16, tmp_path / "edge")
    assert not any(tmp_path.iterdir())


@torch.no_grad()
def test_a_weight_that_its_type_does_not_hold_is_stored_at_fp32(tmp_path):
    model = trained()
    round_weights(model.transformer, WeightType.bf16)
    name = "encoder.layers.0.self_attention.query.weight"
    model.transformer.get_parameter(name).mul_(3**0.5)
    write_bundle(model, CARD, WeightType.bf16, tmp_path / "edge")
    with safe_open(tmp_path / "edge" / "fp32" / "model.safetensors", "pt") as file:
        stored = {each: file.get_tensor(each) for each in file.keys()}  # noqa: SIM118
    assert [each for each, tensor in stored.items() if tensor.dtype is torch.float32] == [name]
    for each, tensor in model.transformer.state_dict().items():
        assert stored[each].float().equal(tensor)
