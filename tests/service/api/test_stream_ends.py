"""Streams that end early: the client leaves or does not read, or the service fails."""

import asyncio
import json
import os
import signal

import pytest

from service.errors import PassFailed
from service.settings.settings import DEFAULT_BUNDLE
from tests.conftest import opened
from tests.documentation import events_of
from tests.waiting import wait_until

LONG = {"source": ["transformer"] * 200, "beam_size": 8, "min_new_tokens": 60, "stream": True}


@pytest.fixture(scope="module")
def service():
    with opened(DEFAULT_BUNDLE, self_check=False) as client:
        yield client


@pytest.fixture
def client(service):
    """The service, with an engine that runs."""
    wait_until(lambda: service.get("/readyz").is_success)
    return service


def send_until(client, at_first_event, *, reads=True, timeout=b"60"):
    """Run the application as a server would, and return all that it sent.

    `at_first_event` returns whether the client leaves then. A client that does not read blocks the
    sender after the first event.
    """
    sent, gone, began = [], asyncio.Event(), []
    bodies = iter([{"type": "http.request", "body": json.dumps(LONG).encode()}])

    async def receive():
        if message := next(bodies, None):
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if message.get("body") and not began:
            began.append(True)
            if at_first_event():
                gone.set()
            if not reads:
                await asyncio.Event().wait()

    scope = {
        "type": "http",
        "asgi": {"spec_version": "2.3"},
        "method": "POST",
        "path": "/v1/decode",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"x-request-timeout", timeout)],
    }
    client.portal.call(client.app, scope, receive, send)
    return b"".join(message.get("body", b"") for message in sent).decode()


def engine_of(client):
    """Return the client of the engine that runs now."""
    return client.app.state.service.registry.served["g2p-en"].engine


def test_an_engine_that_dies_ends_the_stream_with_a_problem(client):
    engine = engine_of(client)
    text = send_until(client, lambda: os.kill(engine.process.pid, signal.SIGKILL))
    *_, (name, problem) = events_of(text)
    assert name == "error"
    assert (problem["status"], problem["code"]) == (503, "unavailable")


def test_a_service_that_loses_its_engine_answers_again_after_seconds(client, may_start):
    ask = {"source": "heed"}
    expected = client.post("/v1/decode", json=ask).json()
    os.kill(engine_of(client).process.pid, signal.SIGKILL)
    refused, ready = set(), []

    def answered():
        answer = client.post("/v1/decode", json=ask)
        if answer.is_success:
            return answer.json()
        refused.add((answer.status_code, answer.headers["retry-after"]))
        ready.append(client.get("/readyz").status_code)  # the last may already be 200
        may_start.set()
        assert client.get("/livez").status_code == 200  # a new start would only take longer
        return None

    assert wait_until(answered) == expected
    assert refused == {(503, "5")}
    assert ready[0] == 503
    assert client.get("/readyz").status_code == 200


def test_a_client_that_leaves_a_stream_frees_its_rows(client):
    text = send_until(client, lambda: True)
    assert "event: done" not in text
    assert_nothing_left(client)


def assert_nothing_left(client):
    engine = engine_of(client)
    wait_until(lambda: not client.portal.call(engine.status).rows)
    assert not engine._pending
    assert not engine._listeners


def test_a_client_that_does_not_read_is_cut_off_after_the_deadline(client, monkeypatch):
    monkeypatch.setattr("service.api.answering.stream.GRACE", 0.1)
    text = send_until(client, lambda: False, reads=False, timeout=b"1")
    assert text.count("event: ") == len(events_of(text))
    assert "event: done" not in text
    assert_nothing_left(client)


def test_when_one_source_fails_the_others_are_cancelled(client, monkeypatch):
    """Their rows too, although the answer ends with the first failure."""
    engine = engine_of(client)
    submit, submitted, failed = engine.submit, [], []

    def submit_and_fail(entries, on_progress, *_):
        def fail_at_first_progress(place, progress):
            on_progress(place, progress)
            if not failed:
                failed.append(place)
                submitted[place].set_exception(PassFailed("broken"))

        submitted.extend(submit(entries, fail_at_first_progress))
        return submitted

    monkeypatch.setattr(engine, "submit", submit_and_fail)
    answer = client.post("/v1/decode", json=LONG)
    *_, (name, problem) = events_of(answer.text)
    assert (name, problem["code"]) == ("error", "pass_failed")
    assert all(future.done() for future in submitted)
