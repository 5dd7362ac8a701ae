"""fp16 graphs agree with torch at fp32, and which of their numbers are half."""

import json
import re

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto

from model.checkpoint import TrainedModel, load_model
from model.data.tokenizers import Unit, build_tokenizer
from model.export.bundle import WeightType, write_bundle
from model.export.files.manifest import Card, Precision
from model.export.precision.half import WIDE
from model.network.config import InputError, NormKind
from model.network.transformer import Transformer
from service.bundle.manifest import load_bundle
from service.runtime.device.cache import DeviceCache
from service.runtime.self_check import COMPARISONS, compare_decoding
from service.runtime.session import Session
from service.settings.settings import Provider, Settings
from tests.model.export.sizes import config_with
from tests.service.runtime.conftest import CPU

FP16 = Settings(precision="fp16", provider=Provider.cpu)


def export(folder, precision=Precision.fp16, weights=WeightType.fp32, std=0.3, gain=1.0, **changes):
    """Write a bundle of random weights, and return it."""
    source = build_tokenizer(["abcdefgh"], Unit.characters)
    target = build_tokenizer(["s t u v w x y z"], Unit.words)
    model = Transformer(config_with(**changes)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    feed_forward = model.decoder.layers[0].feed_forward
    with torch.no_grad():
        feed_forward.up.weight *= gain
        feed_forward.down.weight *= gain
    card = Card(name="half")
    write_bundle(TrainedModel(model, source, target), card, weights, folder, precision)
    return load_bundle(folder)


def errors(bundle, lacking=frozenset()):
    """Return the largest difference from torch, by tensor, of every graph at fp16, of which the
    session has all but those `lacking`."""
    session = Session(bundle, FP16)
    graphs = {graph for graph in COMPARISONS if session.supports(graph)}
    assert COMPARISONS.keys() - graphs == lacking
    with np.load(bundle.path("parity.npz")) as file:
        torchs = dict(file)
    found: dict[str, float] = {}
    for compare in (compare_decoding, *(COMPARISONS[graph] for graph in graphs)):
        for name, ours, theirs in compare(session, torchs):
            kind = name.split("[")[0]
            assert ours.dtype == np.float32, name
            found[kind] = max(found.get(kind, 0.0), float(np.abs(ours - theirs).max()))
    return found


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    torch.manual_seed(0)
    return export(tmp_path_factory.mktemp("half") / "half")


@pytest.fixture(scope="module", params=NormKind)
def large(request, tmp_path_factory):
    """Hidden values near 2,000: their squares, and the sums of them, are beyond float16."""
    torch.manual_seed(0)
    changes = {"norm": request.param, "norm_first": True, "embedding_scale": 5000.0}
    folder = tmp_path_factory.mktemp("large") / "large"
    return export(folder, score_function="gaussian", **changes)


def graphs(bundle, precision="fp16"):
    return {
        name: onnx.shape_inference.infer_shapes(onnx.load(bundle.path(file)), strict_mode=True)
        for name, file in bundle.manifest.precisions[precision].items()
    }


def types(values):
    return {value.name: value.type.tensor_type.elem_type for value in values}


def test_only_caches_and_the_inside_are_half(half):
    for name, proto in graphs(half).items():
        outside = {**types(proto.graph.input), **types(proto.graph.output)}
        caches = {each for each in outside if re.search(r"_(key|value)_\d", each)}
        assert bool(caches) == (name != "encoder_attention")
        assert {outside[each] for each in caches} <= {TensorProto.FLOAT16}
        others = {outside[each] for each in outside.keys() - caches}
        assert others <= {TensorProto.FLOAT, TensorProto.INT64}
        weights = [each for each in proto.graph.initializer if "." in each.name]  # torch's names
        assert {each.data_type for each in weights} == {TensorProto.FLOAT16}


@pytest.mark.long
def test_what_half_would_spoil_is_computed_in_float32(large):
    wide = set()
    for proto in graphs(large).values():
        known = {**types(proto.graph.input), **types(proto.graph.value_info)}
        known |= {**types(proto.graph.output), **types_of_constants(proto.graph)}
        for node in proto.graph.node:
            if node.op_type in WIDE:
                wide.add(node.op_type)
                assert known[node.input[0]] == TensorProto.FLOAT, node.name
            if node.op_type in ("LayerNormalization", "RMSNormalization"):
                stash = [each.i for each in node.attribute if each.name == "stash_type"]
                assert stash in ([], [TensorProto.FLOAT])  # the default is float32
    assert {"LogSoftmax", "ReduceLogSumExp", "Pow", "ReduceSum"} <= wide


def types_of_constants(graph):
    return {each.name: each.data_type for each in graph.initializer}


@pytest.mark.long
def test_norms_of_large_numbers_stay_accurate(large):
    for name, error in errors(large).items():
        assert error < 0.1, name


def test_masked_keys_have_no_weight_although_no_float16_is_as_small_as_their_score(half):
    session = Session(half, FP16)
    sources = [np.arange(4, 12), np.array([5])]
    together = session.encoder_attention(sources)
    (alone,) = session.encoder_attention(sources[1:])
    np.testing.assert_allclose(together[1].weights, alone.weights)
    np.testing.assert_allclose(alone.weights, 1)


def test_half_caches_on_a_device_give_what_torch_gives(half, monkeypatch):
    monkeypatch.setattr("service.runtime.session.cache_device", lambda _: CPU)
    assert isinstance(Session(half, FP16).new_cache(1), DeviceCache)
    for name, error in errors(half, {"draft_step"}).items():
        assert error < 0.02, name


@pytest.mark.long
def test_graphs_of_fp32_and_int8_are_the_same_with_and_without_fp16_next_to_them(tmp_path):
    torch.manual_seed(0)
    every = export(tmp_path / "all", Precision.all).root
    assert sorted(json.loads((every / "bundle.json").read_text())["precisions"]) == [
        *("fp16", "fp32", "int8")
    ]
    torch.manual_seed(0)
    both = export(tmp_path / "both", Precision.both).root
    compared = 0
    for path in both.glob("*/*.onnx"):
        assert path.read_bytes() == (every / path.relative_to(both)).read_bytes()
        compared += 1
    assert compared == 18


def test_a_bundle_of_fp16_alone_is_read_by_torch(half):
    weights = load_model(half.root).transformer.state_dict()
    assert all(tensor.dtype == torch.float32 for tensor in weights.values())


def test_weights_beyond_float16_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"weights above 65,504.* give --precision fp32, int8 or"):
        export(tmp_path / "huge", std=1e5)


@pytest.mark.long
def test_a_network_whose_numbers_exceed_float16_is_refused_although_its_weights_do_not(tmp_path):
    """As T5's feed-forward layers do: the norm after them makes the numbers small again."""
    torch.manual_seed(0)
    large = r"decoder\.\S+ has numbers of [\d,]+, and .* fp16 ends at 65,504: give --precision fp32"
    with pytest.raises(InputError, match=large):
        export(tmp_path / "huge", norm_first=True, gain=500)
    assert not (tmp_path / "huge").exists()
    export(tmp_path / "huge", Precision.fp32, norm_first=True, gain=500)
