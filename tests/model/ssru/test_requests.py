"""Requests of all kinds to a model with an SSRU decoder."""

import json
import random

import numpy as np
import pytest

from service.bundle.manifest import load_bundle
from service.runtime.self_check import COMPARISONS, check_parity
from service.runtime.session import Session
from service.search.options import SearchOptions
from service.settings.settings import Precision, Provider, Settings
from service.wire import Entry
from tests.conftest import opened
from tests.documentation import events_of
from tests.model.importers.served import post
from tests.model.ssru.oracle import Oracle
from tests.model.ssru.test_oracle import TOLERANCE, pairs_of
from tests.service.engine.mixes import assert_as_alone

REASON = "the model's decoder is an SSRU, which has no self-attention"


@pytest.fixture(scope="module")
def client(recurrent):
    with opened(recurrent, precision="fp32", protocols=["open-inference"]) as client:
        yield client


@pytest.fixture(scope="module")
def oracle(recurrent):
    return Oracle(recurrent)


@pytest.mark.parametrize(
    ("folder", "precision"),
    [(folder, precision) for folder in ("recurrent", "listed") for precision in ("fp32", "int8")]
    + [("recurrent", "fp16")],
)
def test_every_graph_has_torchs_numbers(request, folder, precision):
    bundle = load_bundle(request.getfixturevalue(folder))
    session = Session(bundle, Settings(precision=precision, provider=Provider.cpu))
    assert bool(session.shortlists) == (folder == "listed")
    check_parity(session, bundle)
    held = {graph for graph in COMPARISONS if session.supports(graph)}
    assert COMPARISONS.keys() - held == {"draft_step"}  # a state has no room for several tokens
    for graph in held:
        session.open(graph)  # raises if it differs


@pytest.mark.parametrize("precision", [Precision.fp32, Precision.int8])
def test_answers_are_those_of_each_request_alone(recurrent, precision):
    """Rows join and leave at any position, and take over the states of others."""
    random_ = random.Random(2)
    wanted = [draw(random_) for _ in range(150)]
    assert_as_alone(load_bundle(recurrent), precision, wanted, random_)


def draw(random_):
    beam_size = random_.choice([1, 1, 2, 4])
    search = SearchOptions(
        max_new_tokens=random_.randint(1, 20),
        beam_size=beam_size,
        num_hypotheses=beam_size,
        early_stopping=random_.random() < 0.7,
        target_prefix=tuple(random_.choices(range(4, 10), k=random_.randint(0, 4))),
    )
    source = np.array(random_.choices(range(4, 10), k=random_.randint(1, 16)))
    return Entry(source, search)


def test_a_prefix_is_continued_as_numpy_does(client, oracle):
    ((source, prefix),) = pairs_of(oracle.config, [(6, 5)])
    body = {"source": [source], "target_prefix": prefix, "max_new_tokens": 4}
    (result,) = post(client, "/v1/decode", **body)
    (found,) = result["hypotheses"]
    ids = found["token_ids"]
    log_probs, _ = oracle.score(source, [*prefix, *ids])
    np.testing.assert_allclose(found["log_probs"], log_probs[len(prefix) :], **TOLERANCE)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_stream_ends_with_the_answer(client, beam_size):
    body = {"source": ["abcd", "fa"], "beam_size": beam_size, "max_new_tokens": 12}
    streamed = client.post("/v1/decode", json={**body, "stream": True})
    (done,) = (event for name, event in events_of(streamed.text) if name == "done")
    for ours, theirs in zip(done["results"], post(client, "/v1/decode", **body), strict=True):
        for one, other in zip(ours["hypotheses"], theirs["hypotheses"], strict=True):
            assert one["token_ids"] == other["token_ids"]
            np.testing.assert_allclose(one["log_probs"], other["log_probs"], **TOLERANCE)


@pytest.mark.parametrize(("kind", "seed"), [("cross", 0), ("encoder", 1)])
def test_heads_that_are_switched_off_are_those_of_numpy(client, oracle, kind, seed):
    """A neighbour in the same batch keeps its heads."""
    config = oracle.config
    side = "encoder" if kind == "encoder" else "decoder"
    layers, heads = config[f"num_{side}_layers"], config["num_heads"]
    gates = np.random.default_rng(seed).integers(0, 2, (layers, heads)).astype(float)
    gates[0, 0] = 0
    ablate = [
        {"kind": kind, "layer": int(layer), "heads": [int(head)]}
        for layer, head in np.argwhere(gates == 0)
    ]
    ((source, target),) = pairs_of(config, [(6, 9)])
    given = {"encoder_gates": gates} if kind == "encoder" else {"gates": gates}
    expected, weights = oracle.score(source, target, **given)
    body = {"source": [source], "target": [target], "ablate": ablate}
    (scored,) = post(client, "/v1/score", **body)
    np.testing.assert_allclose(scored["log_probs"], expected, **TOLERANCE)
    (shown,) = post(client, "/v1/attention", **body)
    np.testing.assert_allclose(shown["attention"][0]["data"], weights, **TOLERANCE)
    (whole,) = post(client, "/v1/score", source=[source], target=[target])
    assert not np.allclose(whole["log_probs"], expected, **TOLERANCE)


def test_heads_are_worth_what_their_target_loses(client, oracle):
    ((source, target),) = pairs_of(oracle.config, [(5, 4)])
    body = {"source": [source], "target": [target], "of": "heads"}
    (result,) = post(client, "/v1/attribution", **body)
    found = {block["kind"]: np.array(block["data"]) for block in result["attribution"]}
    assert list(found) == ["encoder", "cross"]
    whole, config = oracle.score(source, target)[0].sum(), oracle.config
    for layer, head in np.ndindex(config["num_decoder_layers"], config["num_heads"]):
        gates = np.ones((config["num_decoder_layers"], config["num_heads"]))
        gates[layer, head] = 0
        lost = whole - oracle.score(source, target, gates=gates)[0].sum()
        assert found["cross"][layer, head] == pytest.approx(lost, abs=1e-3)


@pytest.mark.parametrize("media_type", ["application/json", "image/svg+xml", "image/png"])
@pytest.mark.parametrize("kinds", [["decoder"], ["cross", "decoder"]])
def test_attention_of_the_decoder_is_refused_with_the_reason(client, kinds, media_type):
    body = {"source": "abc", "attention": {"kinds": kinds}}
    answer = client.post("/v1/attention", json=body, headers={"accept": media_type})
    assert answer.status_code == 404
    said = "cannot show decoder attention: " + REASON + "; select encoder or cross"
    assert said in answer.json()["detail"]
    decoded = client.post("/v1/decode", json=body)
    assert (decoded.status_code, said in decoded.json()["detail"]) == (404, True)


def test_open_inference_lists_outputs_of_the_kinds_that_the_card_lists(client):
    (card,) = client.get("/v1/models").json()["models"]
    listed = client.get(f"/v2/models/{card['name']}.attention").json()["outputs"]
    weights = [each["name"] for each in listed if len(each["shape"]) == 5]
    assert sorted(weights) == sorted(card["attention"]) == ["cross", "encoder"]
    assert not [each for each in listed if each["name"].startswith("decoder")]


def test_a_head_of_the_decoder_cannot_be_switched_off(client):
    ablate = [
        {"kind": "cross", "layer": 0, "heads": [0]},
        {"kind": "decoder", "layer": 0, "heads": [0]},
    ]
    answer = client.post("/v1/decode", json={"source": "abc", "ablate": ablate})
    assert answer.status_code == 422
    (fault,) = answer.json()["errors"]
    assert fault["pointer"] == "/ablate/1/kind"
    assert fault["detail"] == f"is decoder, but {REASON}: give encoder or cross"


def test_the_card_lists_what_can_be_shown(client, recurrent):
    card = client.get("/v1/models/recurrent").json()
    assert card["attention"] == ["encoder", "cross"]
    assert card["config"]["decoder"] == "ssru"
    assert card["ablation"] is True
    assert card["drafts"] is False
    manifest = json.loads((recurrent / "bundle.json").read_text())
    last = manifest["config"]["num_decoder_layers"] - 1
    named = {"layers": [last], "heads": [0], "shift": 0, "guided": True}
    assert card["alignment"].items() >= named.items()


def test_targets_are_aligned_by_the_guided_head(client, oracle):
    ((source, target),) = pairs_of(oracle.config, [(6, 5)])
    body = {"source": [source], "target": [target], "attention": {"alignment": "model"}}
    (result,) = post(client, "/v1/attention", **body)
    _, weights = oracle.score(source, target)
    expected = [[column, row] for row, column in enumerate(weights[-1, 0].argmax(-1).tolist())]
    assert result["attention"][0]["alignment"]["pairs"] == expected
