"""Requests that fail once they are read are answered with a problem, and nothing is left behind."""

import asyncio
import gc
import json

import pytest
from starlette.exceptions import HTTPException
from structlog.testing import capture_logs

from service.app import create_app
from service.errors import DeadlineExceeded, PassFailed, Unavailable
from service.http.limits import TIMEOUT_HEADER
from service.settings.settings import Provider, Settings
from tests.service.http.asgi import JSON_HEADERS, messages_of, scope_of
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RuntimeError("secret"), 500, "internal"),
        (PassFailed("broken"), 500, "pass_failed"),
        (Unavailable("closing"), 503, "unavailable"),
        (DeadlineExceeded("late"), 504, "deadline_exceeded"),
        (HTTPException(502, "elsewhere"), 502, "bad_gateway"),
    ],
)
def test_an_error_of_the_service_is_a_problem_and_is_logged_with_its_id(
    client, monkeypatch, error, status, code
):
    def fail(*_):
        raise error

    monkeypatch.setattr(client.app.state.service.registry.served["tiny"].engine, "submit", fail)
    headers = {"X-Request-Id": "mine-1"}
    with capture_logs() as logged:
        answer = client.post("/v1/decode", json={"model": "tiny", "source": "red"}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json()["request_id"] == answer.headers["x-request-id"] == "mine-1"
    assert "secret" not in answer.text
    (line,) = (each for each in logged if each["event"] == "request")
    found = {name: line[name] for name in ("log_level", "request_id", "route", "status", "code")}
    assert found == {
        "log_level": "warning" if status == 504 else "error",
        "request_id": "mine-1",
        "route": "/v1/decode",
        "status": status,
        "code": code,
    }


def test_an_error_of_the_client_is_not_an_error_in_the_log(client):
    with capture_logs() as logged:
        assert client.post("/v1/decode", json={"source": 5}).status_code == 422
    assert [line["log_level"] for line in logged] == ["info"]


def assert_no_rows(client):
    """Every worker drops abandoned rows at its next step."""
    engine = client.app.state.service.registry.served["g2p-en"].engine
    wait_until(lambda: not client.portal.call(engine.status).rows)


def test_a_request_that_takes_too_long_is_told_so_and_leaves_nothing_behind(client, caplog):
    body, headers = {"model": "g2p-en", "source": ["transformer"] * 100}, {TIMEOUT_HEADER: "1e-4"}
    answer = client.post("/v1/decode", json=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")
    assert "its limit of 0.0001 seconds: send less, raise X-Req" in answer.json()["detail"]
    again = client.post("/v1/decode", json={"model": "g2p-en", "source": "a"})
    assert again.status_code == 200
    assert_no_rows(client)
    gc.collect()
    assert caplog.text == ""


@pytest.mark.parametrize("given", ["", "soon", "0", "-1", "nan", "1s", "x" * 200])
def test_an_unreadable_timeout_is_refused(client, given):
    answer = client.post("/v1/decode", json={"source": "a"}, headers={TIMEOUT_HEADER: given})
    assert (answer.status_code, answer.json()["code"]) == (400, "unparsable")
    assert answer.json()["detail"].endswith("give the seconds that you will wait, such as 2.5")


@pytest.mark.parametrize("given", ["60", "62.5", "1e9", "inf"])
def test_a_timeout_may_be_longer_than_the_service_allows(client, given):
    body = {"model": "g2p-en", "source": "a"}
    assert client.post("/v1/decode", json=body, headers={TIMEOUT_HEADER: given}).is_success


def test_a_client_that_leaves_frees_its_rows(client, caplog):
    body = json.dumps({"model": "g2p-en", "source": ["transformer"] * 100}).encode()
    messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
    sent = client.portal.call(messages_of, client.app, scope_of(headers=JSON_HEADERS), messages)
    assert sent[0]["status"] == 499  # to nobody
    client.post("/v1/decode", json={"model": "g2p-en", "source": "a"})
    assert_no_rows(client)
    gc.collect()
    assert caplog.text == ""


def test_a_body_that_stops_arriving_is_given_up(tiny):
    """The service answers 408 instead of waiting for the rest."""
    settings = Settings(bundles=[tiny], provider=Provider.cpu, timeout=0.05)

    async def run():
        app = create_app(settings)
        async with app.router.lifespan_context(app):
            part = {"type": "http.request", "body": b"{", "more_body": True}
            return await messages_of(app, scope_of(headers=JSON_HEADERS), [part])

    sent = asyncio.run(run())
    assert sent[0]["status"] == 408
    detail = json.loads(sent[1]["body"])["detail"]
    assert detail == "the body did not arrive within 0.05 seconds: send it faster"
