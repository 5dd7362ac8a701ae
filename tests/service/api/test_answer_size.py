"""How large an answer may become, and what is advised to those who ask for more.

The limits are measured here from what an answer holds, which the service computes beforehand.
"""

import json
import re

import numpy as np
import pytest

from service.api.reading.answer_size import ALTERNATIVE_BYTES, TOKEN_BYTES
from service.api.reading.call import LITTLE
from service.search.protocol import ALTERNATIVE, Hypothesis
from service.wire import Answer


def advice_of(refused):
    """The fields that a refusal says would fit."""
    assert refused.status_code == 413, refused.text
    found = re.search(r'"\w+": .*(?= would fit)', refused.json()["detail"])
    return json.loads("{" + found[0] + "}")


def test_attention_over_the_limit_is_refused_before_it_is_computed(client, limit):
    """The sum of a batch, or what a pass over one source computes for any selection."""
    one_pass = 4 * 3 * 4 * 64 * (9 + 64)
    weights, tokens = 4 * 3 * 4 * 64 * 9, TOKEN_BYTES * 64
    limit(max_answer_bytes=7 * (weights + tokens))
    body = {"model": "g2p-en", "source": ["attention"] * 7, "attention": {}}
    assert client.post("/v1/decode", json=body).status_code == 200
    body["source"] *= 2
    refused = client.post("/v1/decode", json=body)
    assert f"may take {14 * (weights + tokens)} bytes" in refused.json()["detail"]
    assert advice_of(refused) == {"attention": {"reduce_heads": "mean"}}
    assert client.post("/v1/decode", json={**body, **advice_of(refused)}).status_code == 200
    limit(max_answer_bytes=one_pass - 1)
    both = {**body, "source": "attention", "attention": {"kinds": ["cross", "encoder"]}}
    refused = client.post("/v1/decode", json=both)
    assert advice_of(refused) == {
        "attention": {"kinds": ["encoder"], "reduce_heads": "mean", "reduce_layers": "mean"}
    }
    body = {**body, "source": "attention", "attention": {"heads": [0], "rows": [0, 1]}}
    refused = client.post("/v1/decode", json=body).json()
    assert refused["errors"][0]["pointer"] == "/attention"
    assert refused["detail"].endswith("send fewer or shorter sequences, or lower max_new_tokens")
    assert client.post("/v1/decode", json={**body, "max_new_tokens": 63}).status_code == 200


def test_a_selection_that_is_advised_is_always_one_that_is_accepted(client, limit):
    """Whatever the kinds: rows mean nothing to encoder alone, an alignment is of cross."""
    limit(max_answer_bytes=4 * 4 * 4 * 60**2)  # the encoder, all layers and heads
    source = {"model": "g2p-en", "source": "a" * 60}
    for wanted in ({"rows": [0, 5]}, {"rows": [-5, -1], "reduce_heads": "max"}, {}):
        attention = {"kinds": ["encoder", "cross", "decoder"], **wanted}
        refused = client.post("/v1/attention", json={**source, "attention": attention})
        advised = advice_of(refused)
        assert advised["attention"]["kinds"] == ["encoder"]
        assert client.post("/v1/attention", json={**source, **advised}).status_code == 200
    aligned = {"kinds": ["encoder", "cross"], "alignment": "argmax"}
    refused = client.post("/v1/attention", json={**source, "attention": aligned})
    assert refused.status_code == 413
    assert "send fewer or shorter sequences" in refused.json()["detail"]


def test_alternatives_count_for_the_size_of_an_answer(client, limit):
    token = TOKEN_BYTES + 20 * ALTERNATIVE_BYTES
    limit(max_answer_bytes=2 * 5 * token)
    body = {"model": "g2p-en", "source": ["a", "b"], "max_new_tokens": 5, "top_log_probs": 20}
    assert client.post("/v1/decode", json=body).status_code == 200
    attends = {**body, "attention": {}}
    for more in ({**body, "max_new_tokens": 6}, attends, {**body, "source": ["a"] * 3}):
        assert client.post("/v1/decode", json=more).status_code == 413


def test_a_million_alternatives_are_refused_before_any_work(post):
    """With the limit that is the default: 64 sources, 64 samples of each, 64 tokens."""
    body = {"source": ["a"] * 64, "temperature": 1.0, "num_hypotheses": 64, "top_log_probs": 20}
    status, problem = post("/v1/decode", **body)
    assert (status, problem["code"]) == (413, "too_large")
    assert problem["errors"][0]["pointer"] == "/top_log_probs"
    assert "limit is 134217728" in problem["detail"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("limit_in_tokens", "advised"),
    [
        (400, {"top_log_probs": 1}),
        (128, {"top_log_probs": 0}),
        (127, {"max_new_tokens": 63, "top_log_probs": 0}),
        (2, {"max_new_tokens": 1, "top_log_probs": 0}),
    ],
)
def test_fewer_alternatives_or_tokens_are_advised_and_accepted(
    client, limit, limit_in_tokens, advised, stream
):
    """2 sources of 64 tokens each."""
    limit(max_answer_bytes=limit_in_tokens * TOKEN_BYTES)
    body = {"model": "g2p-en", "source": ["a", "b"], "top_log_probs": 20, "stream": stream}
    refused = client.post("/v1/decode", json=body)
    assert advice_of(refused) == advised
    assert client.post("/v1/decode", json={**body, **advised}).status_code == 200


def test_tokens_count_without_alternatives_too(client, limit):
    limit(max_answer_bytes=TOKEN_BYTES * 64)
    body = {"model": "g2p-en", "source": "a", "beam_size": 2}
    assert client.post("/v1/decode", json=body).status_code == 200
    body["num_hypotheses"] = 2
    refused = client.post("/v1/decode", json=body)
    assert advice_of(refused) == {"max_new_tokens": 32}
    assert client.post("/v1/decode", json={**body, "max_new_tokens": 32}).status_code == 200


@pytest.mark.parametrize(
    "options", [{"allowed_targets": ["D D D"]}, {"min_new_tokens": 3}, {"source": ["a"] * 6}]
)
def test_no_token_limit_is_advised_that_would_contradict(client, limit, options):
    limit(max_answer_bytes=TOKEN_BYTES * 5)
    body = {"model": "g2p-en", "source": ["a", "b"], "max_new_tokens": 9, **options}
    refused = client.post("/v1/decode", json=body)
    assert refused.status_code == 413
    assert refused.json()["detail"].endswith("send fewer sources, or lower num_hypotheses")


def test_alternatives_are_written_in_a_thread():
    """Those of a few tokens are too many to write on the event loop."""
    top = np.array([[(i, -1.0) for i in range(20)]] * 4, ALTERNATIVE)
    answer = Answer(hypotheses=[Hypothesis([5] * 4, [-1.0] * 4, "length", 1.0, top)])
    assert answer.size > LITTLE


def test_an_encoding_over_the_limit_is_refused(client, limit):
    limit(max_answer_bytes=4 * 192 * 2)
    body = {"model": "g2p-en", "source": ["ab", "c"]}
    assert client.post("/v1/encode", json=body).status_code == 413
    assert client.post("/v1/encode", json={**body, "pooling": "mean"}).status_code == 200


def test_pictures_and_large_answers_wait_for_a_core(client):
    limiter = client.app.state.service.cores
    borrowers = [object() for _ in range(int(limiter.total_tokens))]
    for borrower in borrowers:
        client.portal.call(limiter.acquire_on_behalf_of, borrower)
    try:
        body = {"model": "g2p-en", "source": "ax"}
        large = {**body, "source": ["a" * 60] * 80, "attention": {"kinds": ["encoder"]}}
        short = {"x-request-timeout": "1"}
        picture = {**short, "accept": "image/png"}
        answers = [
            client.post("/v1/attention", json=body),
            client.post("/v1/attention", json=body, headers=picture),
            client.post("/v1/attention", json={**large, "max_new_tokens": 1}, headers=short),
        ]
    finally:
        for borrower in borrowers:
            client.portal.call(limiter.release_on_behalf_of, borrower)
    assert [answer.status_code for answer in answers] == [200, 504, 504]
    assert client.post("/v1/attention", json=body, headers=picture).status_code == 200
