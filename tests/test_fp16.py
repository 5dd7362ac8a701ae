"""fp16 through HTTP, on a CPU: it decodes, scores and attends as fp32 does, within its rounding."""

import numpy as np
import pytest

from model.checkpoint import load_model
from model.export.bundle import WeightType, write_bundle
from model.export.files.manifest import Card, Precision
from tests.conftest import opened
from tests.model.importers.served import post

SOURCES = {
    "tiny": ["red green blue", "one", "three two one red red green"],
    "g2p-en": ["heed", "transformer", "a", "pronunciation", "attention", "through"],
}
LOG_PROB = 0.05  # half a logit of 32 is rounded by up to 0.016


@pytest.fixture(scope="module", params=["tiny", pytest.param("g2p-en", marks=pytest.mark.long)])
def clients(request, tmp_path_factory):
    """The name of a model, and clients of the same model at fp16 and at fp32."""
    root = request.getfixturevalue({"tiny": "tiny", "g2p-en": "g2p"}[request.param])
    bundle = root.parent / "fp16" / root.name  # of make fixture
    if request.param == "g2p-en":
        bundle = tmp_path_factory.mktemp("fp16") / request.param
        card = Card(name=bundle.name, task="tests", licence="none", attribution="-", notice="none")
        write_bundle(load_model(root), card, WeightType.fp32, bundle, Precision.fp16)
    with opened(bundle) as half, opened(root, precision="fp32") as full:
        yield request.param, half, full


def test_the_model_says_that_it_is_fp16(clients):
    _, half, full = clients
    shown = [client.get("/v1/models").json()["models"][0]["precision"] for client in (half, full)]
    assert shown == ["fp16", "fp32"]


@pytest.mark.parametrize(
    "options", [{}, {"beam_size": 3, "num_hypotheses": 2}, {"max_new_tokens": 38}]
)
def test_decoding_finds_what_fp32_finds(clients, options):
    name, half, full = clients
    body = {"source": SOURCES[name], "attention": {}, **options}
    pairs = zip(post(half, "/v1/decode", **body), post(full, "/v1/decode", **body), strict=True)
    for ours, theirs in pairs:
        for one, other in zip(ours["hypotheses"], theirs["hypotheses"], strict=True):
            assert one["token_ids"] == other["token_ids"]
            np.testing.assert_allclose(one["log_probs"], other["log_probs"], rtol=0, atol=LOG_PROB)
            for a, b in zip(one["attention"], other["attention"], strict=True):
                np.testing.assert_allclose(a["data"], b["data"], rtol=0, atol=0.01)


def test_sampled_targets_are_scored_as_they_were_sampled(clients):
    name, half, full = clients
    sampling = {"temperature": 1.2, "seed": 7, "num_hypotheses": 3}
    for source in SOURCES[name]:
        (sampled,) = post(half, "/v1/decode", source=source, **sampling)
        for hypothesis in sampled["hypotheses"]:
            target = {"source": source, "target": [hypothesis["token_ids"]]}
            for client in (half, full):
                (scored,) = post(client, "/v1/score", **target)
                np.testing.assert_allclose(
                    scored["log_probs"], hypothesis["log_probs"], rtol=0, atol=LOG_PROB
                )


def test_encoding_gives_what_fp32_gives(clients):
    name, half, full = clients
    for ours, theirs in zip(
        *(post(client, "/v1/encode", source=SOURCES[name]) for client in (half, full)), strict=True
    ):
        np.testing.assert_allclose(ours["hidden"], theirs["hidden"], rtol=0.02, atol=0.02)
