"""How much may be asked for at once, and what is said of more."""

import json
import re


def test_attention_over_the_limit_is_refused_before_it_is_computed(client, limit):
    """The sum of a batch; and, of any selection, what a pass over one source computes."""
    one_pass = 4 * 3 * 4 * 64 * (9 + 64)
    limit(max_answer_bytes=one_pass)
    body = {"model": "g2p-en", "source": ["attention"] * 8, "attention": {}}
    assert client.post("/v1/decode", json=body).status_code == 200
    body["source"] *= 2
    refused = client.post("/v1/decode", json=body)
    assert refused.status_code == 413
    said = f"may take {16 * 4 * 3 * 4 * 64 * 9} bytes"
    assert said in refused.json()["detail"]
    advised = json.loads("{" + re.search(r'"attention": .*}', refused.json()["detail"])[0] + "}")
    assert advised == {"attention": {"reduce_heads": "mean"}}
    assert client.post("/v1/decode", json={**body, **advised}).status_code == 200
    limit(max_answer_bytes=one_pass - 1)
    both = {**body, "source": "attention", "attention": {"kinds": ["cross", "encoder"]}}
    refused = client.post("/v1/decode", json=both)
    assert '"kinds":["encoder"]' in refused.json()["detail"]
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
        assert refused.status_code == 413, refused.text
        found = re.search(r'"attention": .*}', refused.json()["detail"])[0]
        advised = json.loads("{" + found + "}")
        assert advised["attention"]["kinds"] == ["encoder"]
        assert client.post("/v1/attention", json={**source, **advised}).status_code == 200
    aligned = {"kinds": ["encoder", "cross"], "alignment": "argmax"}
    refused = client.post("/v1/attention", json={**source, "attention": aligned})
    assert refused.status_code == 413
    assert "send fewer or shorter sequences" in refused.json()["detail"]


def test_alternatives_count_for_the_size_of_an_answer(client, limit):
    alternatives = 8 * 2 * 5 * 20
    limit(max_answer_bytes=alternatives)
    body = {"model": "g2p-en", "source": ["a", "b"], "max_new_tokens": 5, "top_log_probs": 20}
    assert client.post("/v1/decode", json=body).status_code == 200
    attends = {**body, "attention": {}}
    for more in ({**body, "max_new_tokens": 6}, attends):
        assert client.post("/v1/decode", json=more).status_code == 413


def test_an_encoding_over_the_limit_is_refused(client, limit):
    limit(max_answer_bytes=4 * 192 * 2)
    body = {"model": "g2p-en", "source": ["ab", "c"]}
    assert client.post("/v1/encode", json=body).status_code == 413
    assert client.post("/v1/encode", json={**body, "pooling": "mean"}).status_code == 200


def test_pictures_and_large_answers_wait_for_their_turn(client, limit):
    limiter = client.app.state.limiter
    turns = [object() for _ in range(int(limiter.total_tokens))]
    for turn in turns:
        client.portal.call(limiter.acquire_on_behalf_of, turn)
    limit(timeout=3.0)
    try:
        body = {"model": "g2p-en", "source": "ax"}
        large = {**body, "source": ["a" * 60] * 80, "attention": {"kinds": ["encoder"]}}
        picture = {"accept": "image/png"}
        answers = [
            client.post("/v1/attention", json=body),
            client.post("/v1/attention", json=body, headers=picture),
            client.post("/v1/attention", json={**large, "max_new_tokens": 1}),
        ]
    finally:
        for turn in turns:
            client.portal.call(limiter.release_on_behalf_of, turn)
    assert [answer.status_code for answer in answers] == [200, 504, 504]
    assert client.post("/v1/attention", json=body, headers=picture).status_code == 200
