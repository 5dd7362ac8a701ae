"""Log-probs of given targets, compared with torch and with those of decoding."""

import json
import math
import sys

import httpx2
import numpy as np
import pytest

from model.checkpoint import load_model
from service.api.answering.serialize import write_score
from service.formats.json import to_json
from service.text.tokens import Token, Tokens
from service.wire import Answer
from tests.conftest import TINY, opened
from tests.torch_scores import log_probs_of


def test_scores_are_those_of_the_torch_model(fp32_server, g2p):
    trained = load_model(g2p)
    config = trained.transformer.config
    pairs = [("read", "R EH1 D"), ("read", "R IY1 D"), ("transformer", "ZH"), ("a", "AH0 " * 30)]
    body = {"source": [s for s, _ in pairs], "target": [t for _, t in pairs]}
    answer = httpx2.post(f"{fp32_server}/v1/score", json=body, timeout=60).json()
    for (source, target), result in zip(pairs, answer["results"], strict=True):
        source_ids = trained.source_tokenizer.encode(source).ids
        ids = [*trained.target_tokenizer.encode(target).ids, config.eos_id]
        log_probs = log_probs_of(trained, source_ids, [config.bos_id, *ids[:-1]])
        expected = log_probs[range(len(ids)), ids]
        np.testing.assert_allclose(result["log_probs"], expected, rtol=1e-4, atol=1e-5)
        assert result["tokens"] == [*target.split(), "<eos>"]
        assert result["sum"] == pytest.approx(expected.sum(), rel=1e-4)
        assert result["mean"] == pytest.approx(expected.mean(), rel=1e-4)
        assert result["perplexity"] == pytest.approx(np.exp(-expected.mean()), rel=1e-4)
    assert answer["usage"] == {"source_tokens": 20, "target_tokens": 4 + 4 + 2 + 31}


@pytest.mark.parametrize("options", [{}, {"beam_size": 4}, {"temperature": 1.5, "seed": 3}])
@pytest.mark.parametrize(
    ("address", "tolerance"),
    [("fp32_server", {"rtol": 1e-4, "atol": 1e-5}), ("server", {"atol": 2e-2})],
)
def test_decode_and_score_agree(request, address, tolerance, options):
    """At fp32 and, as it is served by default, at int8."""
    url = request.getfixturevalue(address)
    words = ["transformer", "heed", "a", "through"]
    decoded = httpx2.post(f"{url}/v1/decode", json={"source": words, **options}, timeout=60).json()
    hypotheses = [result["hypotheses"][0] for result in decoded["results"]]
    body = {"source": words, "target": [h["token_ids"] for h in hypotheses]}
    scored = httpx2.post(f"{url}/v1/score", json=body, timeout=60).json()
    for hypothesis, result in zip(hypotheses, scored["results"], strict=True):
        np.testing.assert_allclose(result["log_probs"], hypothesis["log_probs"], **tolerance)
        assert result["mean"] == pytest.approx(hypothesis["score"], abs=2e-2)


def test_a_batch_is_scored_like_each_pair_alone(post):
    words, targets = ["read", "heed", "transformer"], ["R EH1 D", "HH", "T R AE0 N S F AO1 R"]
    together = post("/v1/score", source=words, target=targets)[1]["results"]
    for word, target, result in zip(words, targets, together, strict=True):
        (alone,) = post("/v1/score", source=word, target=target)[1]["results"]
        np.testing.assert_allclose(result["log_probs"], alone["log_probs"], atol=2e-2)


@pytest.mark.parametrize(
    ("log_prob", "perplexity"),
    [
        (-0.5, math.exp(0.5)),
        (-709.0, math.exp(709.0)),
        (-709.5, math.exp(709.5)),
        (-710.0, sys.float_info.max),
        (-1e30, sys.float_info.max),
    ],
)
def test_the_perplexity_of_an_improbable_target_is_still_a_number(log_prob, perplexity):
    """exp(710) is more than JSON can hold: it was written as null."""
    target = Tokens.of("D", [Token("D", 4, 0, 1), Token("<eos>", 2, None, None)])
    answer = Answer(log_probs=np.full(2, log_prob, np.float32))
    written = json.loads(to_json(write_score(target, answer)))
    assert written["perplexity"] == pytest.approx(perplexity)
    assert written["mean"] == pytest.approx(log_prob)


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        ({"source": "a"}, 422, "/target"),
        ({"source": "a", "target": ""}, 422, "/target"),
        ({"source": "a", "target": [[10**6]]}, 422, "/target/0/0"),
        ({"source": "a", "target": "D " * 80}, 413, "/target"),
    ],
)
def test_targets_that_cannot_be_scored_are_refused(post, body, status, pointer):
    found, problem = post("/v1/score", **body)
    assert found == status
    assert problem["errors"][0]["pointer"] == pointer


def test_endpoints_of_graphs_that_are_not_opened_are_not_supported():
    with opened(TINY, score=False, attention=False) as client:
        for path, setting in (("/v1/score", "HEED_SCORE"), ("/v1/attention", "HEED_ATTENTION")):
            answer = client.post(path, json={"source": "red", "target": "a"})
            assert (answer.status_code, answer.json()["code"]) == (404, "not_supported")
            assert f"{setting} is false" in answer.json()["detail"]
        assert client.post("/v1/decode", json={"source": "red"}).status_code == 200
        assert json.loads(client.get("/v1/models/tiny").content)["attention"] == []
