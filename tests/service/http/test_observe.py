"""Every request leaves one line in the log when it ends; it holds no text of the request."""

import asyncio
import json
import re

import pytest
from structlog.testing import capture_logs

from tests.service.http.asgi import JSON_HEADERS, scope_of

SECRET = "reddish"  # letters of the tiny model's alphabet or not: neither may be logged


@pytest.fixture
def logged(client):
    """The lines of requests that a test sends with the client."""
    with capture_logs() as lines:
        yield lines


def test_a_line_says_what_a_request_was_and_how_long_it_took(client, logged):
    body = {"model": "g2p-en", "source": ["heed", "read"], "num_hypotheses": 2, "beam_size": 2}
    answer = client.post("/v1/decode", json=body, headers={"X-Request-Id": "mine"})
    (line,) = logged
    timing = dict(each.split(";dur=") for each in answer.headers["server-timing"].split(", "))
    seconds = line.pop("seconds")
    assert seconds == {
        stage: pytest.approx(float(milliseconds) / 1000, abs=2e-6)
        for stage, milliseconds in timing.items()
    }
    assert line.pop("duration") >= max(seconds.values())
    usage = answer.json()["usage"]
    assert line == {
        "event": "request",
        "log_level": "info",
        "request_id": "mine",
        "method": "POST",
        "route": "/v1/decode",
        "status": 200,
        "model": "g2p-en",
        "sources": 2,
        "source_tokens": usage["source_tokens"],
        "generated_tokens": usage["target_tokens"],
    }


@pytest.mark.parametrize(
    ("method", "path", "body", "route", "status"),
    [
        ("POST", "/v1/decode", {"source": SECRET}, "/v1/decode", 200),
        ("POST", "/v1/decode", {"source": SECRET, "stream": True}, "/v1/decode", 200),
        ("POST", "/v1/decode", {"source": "€ " + SECRET}, "/v1/decode", 422),
        ("POST", "/v1/decode", {"source": 1, SECRET: 2}, "/v1/decode", 422),
        ("POST", "/v1/decode", {"source": "a", "model": SECRET}, "/v1/decode", 404),
        ("POST", "/v1/tokenize", {"text": SECRET}, "/v1/tokenize", 200),
        ("GET", f"/v1/models/{SECRET}", None, "/v1/models/{name}", 404),
        ("GET", f"/{SECRET}", None, "other", 404),
        ("GET", f"/docs?{SECRET}=1", None, "/docs", 200),
        ("PUT", "/v1/decode", None, "/v1/decode", 405),
    ],
)
def test_no_text_of_a_request_is_logged(client, logged, method, path, body, route, status):
    if body is not None and "model" not in body:
        body = {"model": "g2p-en", **body}
    answer = client.request(method, path, json=body)
    (line,) = logged
    assert (line["method"], line["route"], line["status"]) == (method, route, status)
    assert answer.status_code == status
    assert SECRET not in repr(line)
    assert line.get("code") == (answer.json()["code"] if status >= 400 else None)


def test_a_request_that_the_router_never_saw_has_its_route(client, logged):
    refused = client.get("/v1/models/g2p-en", headers={"X-Request-Timeout": "soon"})
    (line,) = logged
    assert (line["route"], line["status"]) == ("/v1/models/{name}", refused.status_code)
    assert refused.status_code == 400


@pytest.mark.parametrize(
    ("path", "route"), [("/", "/"), ("/docs", "/docs"), ("/v1/models/tiny", "/v1/models/{name}")]
)
def test_head_has_the_route_of_get(client, logged, path, route):
    client.get(path)
    client.head(path)
    assert [(line["method"], line["route"]) for line in logged] == [("GET", route), ("HEAD", route)]


def test_probes_that_succeed_leave_no_line(client, logged, monkeypatch):
    for path in ("/livez", "/readyz", "/metrics"):
        assert client.get(path).status_code == 200
    assert logged == []
    monkeypatch.setattr("service.api.endpoints.models.STATUS_TIMEOUT", 0)
    assert client.get("/readyz").status_code == 503
    (line,) = logged
    assert (line["route"], line["status"], line["log_level"]) == ("/readyz", 503, "error")


def test_a_stream_that_fails_is_logged_with_its_error(client, logged):
    body = {"model": "g2p-en", "source": ["heed" * 10] * 200, "beam_size": 8, "stream": True}
    answer = client.post("/v1/decode", json=body, headers={"X-Request-Timeout": "0.01"})
    code = re.search(r'"code":"(\w+)"', answer.text)[1]
    (line,) = logged
    assert (line["code"], line["log_level"], code) == (code, "warning", "deadline_exceeded")


def test_a_client_that_leaves_its_stream_is_logged(client, logged):
    body = {"model": "g2p-en", "source": ["heed" * 10] * 200, "beam_size": 8, "stream": True}
    content, sent = json.dumps(body).encode(), []

    async def receive():
        if not sent:
            sent.append(content)
            return {"type": "http.request", "body": content, "more_body": False}
        await first.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message["type"] == "http.response.body":
            first.set()

    async def ask():
        nonlocal first
        first = asyncio.Event()
        await client.app(scope_of(headers=JSON_HEADERS), receive, send)

    first = None
    client.portal.call(ask)
    (line,) = logged
    assert (line["status"], line["code"], line["generated_tokens"]) == (200, "client_gone", 0)
