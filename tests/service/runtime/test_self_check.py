"""The self-check compares every graph with parity.npz, which holds what torch answered."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from model.checkpoint import load_model
from service.bundle.manifest import load_bundle
from service.errors import PassFailed, StartupError
from service.runtime.device.cache import DeviceCache
from service.runtime.self_check import COMPARISONS, check_parity, compare_decoding
from service.runtime.session import Session
from service.settings.settings import Precision, Provider, Settings
from tests.service.runtime.sessions import FP32, assert_close, sources


@pytest.fixture(scope="module")
def torch_says(bundle):
    with np.load(bundle.path("parity.npz")) as file:
        return dict(file)


def test_every_graph_gives_what_torch_gave(session, bundle, torch_says):
    check_parity(session, bundle)
    names = {name.split("[")[0] for name, _, _ in compare_decoding(session, torch_says)}
    held = {graph: each for graph, each in COMPARISONS.items() if session.supports(graph)}
    on_device = isinstance(session.new_cache(rows_per_source=1), DeviceCache)
    assert COMPARISONS.keys() - held.keys() == ({"draft_step"} if on_device else set())
    for graph, compare in held.items():
        session.open(graph)  # raises if it differs
        names |= {name.split("[")[0] for name, _, _ in compare(session, torch_says)}
    inputs = {"source_ids", "source_length", "decoder_input_ids", "decoder_length", "log_prob_ids"}
    inputs |= {"encoder_gates", "decoder_gates"}
    assert names == {"token_log_probs", "top_log_probs", *torch_says} - inputs


def test_parity_holds_the_largest_log_probs_and_some_others(bundle, torch_says):
    model = load_model(bundle.root).transformer
    lengths = [torch.tensor(torch_says[f"{side}_length"]) for side in ("source", "decoder")]
    ids = [torch.tensor(torch_says[name]) for name in ("source_ids", "decoder_input_ids")]
    with torch.no_grad():
        expected = model(ids[0], lengths[0], ids[1], lengths[1]).numpy()  # (B, T, V)
    picked = torch_says["log_prob_ids"]
    assert picked.shape == (*expected.shape[:2], 16 + min(16, expected.shape[2]))
    for i, length in enumerate(lengths[1].tolist()):
        found = np.take_along_axis(expected[i], picked[i], -1)[:length]
        assert_close(torch_says["log_probs"][i, :length], found)
        largest = -np.sort(-expected[i, :length])[:, :16]
        assert_close(found[:, : largest.shape[1]], largest)


def test_a_graph_that_differs_answers_no_request(session, bundle, torch_says, tmp_path):
    """The others go on working."""
    wrong = {name: array + 0.01 for name, array in torch_says.items() if "cross_att" in name}
    np.savez(tmp_path / "parity.npz", **{**torch_says, **wrong})
    own = Session(bundle, FP32)
    check_parity(own, replace(bundle, root=tmp_path))
    ids = sources(bundle, [5])
    _, cross = own.encode(ids)
    for _ in range(2):
        with pytest.raises(PassFailed, match=r"cross_attention_0\[0\] on CPU.* differs"):
            own.attention(ids, [cross])
    own.encoder_attention(ids)


def test_the_self_check_names_what_differs(session, bundle, torch_says, tmp_path):
    other = {**torch_says, "memory": torch_says["memory"] + 0.01}
    np.savez(tmp_path / "parity.npz", **other)
    altered = replace(bundle, root=tmp_path)
    with pytest.raises(StartupError, match=r"memory\[0\] on CPU.* differs from torch's by up to"):
        check_parity(session, altered)


@pytest.mark.parametrize(("noise", "accepted"), [(0.05, True), (0.18, False)])
def test_the_self_check_of_int8_refuses_log_probs_that_saturate(g2p, tmp_path, noise, accepted):
    """Without exact products the logits of int8 are off by about 18 % (docs/adr/0006)."""
    bundle = load_bundle(g2p)
    session = Session(bundle, Settings(precision=Precision.int8, provider=Provider.cpu))
    with np.load(bundle.path("parity.npz")) as file:
        torch_says = dict(file)
    log_probs = torch_says["log_probs"]
    size = log_probs.std(-1, keepdims=True)
    random = np.random.default_rng(0).standard_normal(log_probs.shape).astype(np.float32)
    np.savez(
        tmp_path / "parity.npz", **{**torch_says, "log_probs": log_probs + noise * size * random}
    )
    altered = replace(bundle, root=tmp_path)
    refusal = pytest.raises(StartupError, match=r"log_probs on CPU.* at int8 differ from torch's")
    with nullcontext() if accepted else refusal:
        check_parity(session, altered)
