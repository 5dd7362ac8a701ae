"""Every POST endpoint refuses an Accept header that excludes its media types."""

import pytest

BODIES = {
    "/v1/decode": {"source": "heed"},
    "/v1/encode": {"source": "heed"},
    "/v1/score": {"source": "heed", "target": "HH IY1 D"},
    "/v1/tokenize": {"text": "heed"},
    "/v1/detokenize": {"token_ids": [[5]]},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("accept", ["application/npz", "text/html", "application/json;q=0, */*"])
def test_endpoints_that_send_json_say_so_to_clients_that_exclude_it(client, path, accept):
    body = {"model": "g2p-en", **BODIES[path]}
    refused = client.post(path, json=body, headers={"accept": accept})
    assert (refused.status_code, refused.json()["code"]) == (406, "not_acceptable")
    assert "application/json" in refused.json()["detail"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("accept", ["*/*", "application/*", "text/html, application/json;q=0.1"])
def test_clients_that_accept_json_get_it(client, path, accept):
    answer = client.post(path, json={"model": "g2p-en", **BODIES[path]}, headers={"accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")


@pytest.mark.parametrize("accept", ["text/event-stream", "*/*", "application/json"])
def test_a_stream_is_sent_to_clients_that_accept_events_or_json(client, accept):
    """Clients of other services send application/json and ask for a stream in the body."""
    body = {"model": "g2p-en", "source": "heed", "stream": True}
    answer = client.post("/v1/decode", json=body, headers={"accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(("stream", "accept"), [(True, "text/html"), (False, "text/event-stream")])
def test_events_are_sent_only_if_the_body_asks_for_them(client, stream, accept):
    body = {"model": "g2p-en", "source": "heed", "stream": stream}
    refused = client.post("/v1/decode", json=body, headers={"accept": accept})
    assert refused.status_code == 406
    assert ("text/event-stream" in refused.json()["detail"]) is stream
