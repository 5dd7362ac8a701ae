"""A library that is written in Rust may panic on a text: its error is not an Exception."""

import asyncio
import json
import shutil

import pytest
from structlog.testing import capture_logs

from service.api.routes import QUIET
from service.http.middleware.answers import Errors
from service.http.middleware.metrics import RequestMetrics
from service.http.middleware.observe import Observe
from tests.conftest import TINY, edit_tokenizer, opened
from tests.service.http.asgi import door_before, messages_of, scope_of

SLOW = {"Regex": "^(a|a)*$"}  # takes more attempts than the library allows, and it panics
TEXT = f"{'a' * 30}b"
OTHERS = [i for i in range(13) if i != 12]


class Panic(BaseException):
    """As pyo3's PanicException, which only Rust can make."""


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A source tokenizer that panics on TEXT, and a target tokenizer that panics on the id 12."""
    bundle = shutil.copytree(TINY, tmp_path_factory.mktemp("bundles") / "panics")

    def change_source(document):
        split = {"type": "Split", "pattern": SLOW, "behavior": "Isolated", "invert": False}
        steps = [split, document["pre_tokenizer"]]
        document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}

    def change_target(document):
        vocabulary = document["model"]["vocab"]
        vocabulary[TEXT] = vocabulary.pop("i")
        replace = {"type": "Replace", "pattern": SLOW, "content": "x"}
        document["decoder"] = {"type": "Sequence", "decoders": [replace, document["decoder"]]}

    edit_tokenizer(bundle, "source.tokenizer.json", change_source)
    edit_tokenizer(bundle, "target.tokenizer.json", change_target)
    with opened(bundle, self_check=False) as found:
        yield found


def check(client, path, body, status, code):
    """A problem document with all headers; afterwards nothing is held, and all else works."""
    answer = client.post(path, json=body, headers={"X-Request-Id": "mine"})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "mine"
    assert "content-security-policy" in answer.headers
    state = client.app.state.service
    model = state.registry.served["tiny"]
    assert state.admission.inside == state.answers.held == 0
    assert [each.borrowed_tokens for each in (*state.classes, state.cores)] == [0, 0, 0, 0]
    assert model.unused.is_set()
    again = client.post("/v1/decode", json={"source": "red", "suppress_tokens": [12]})
    assert again.status_code == 200
    assert model.supervisor.restarts == 0
    return answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/decode", {"source": TEXT}),
        ("/v1/decode", {"source": ["red", TEXT]}),
        ("/v1/decode", {"source": f"red\n{TEXT}", "split": "sentences"}),
        ("/v1/decode", {"source": TEXT, "stream": True}),
        ("/v1/encode", {"source": TEXT}),
        ("/v1/tokenize", {"text": TEXT}),
        ("/v1/tokenize", {"text": [TEXT] * 40}),  # in a thread
        ("/v1/attention", {"source": TEXT, "target": "a"}),
    ],
)
def test_a_text_on_which_the_tokenizer_panics_is_refused(client, path, body):
    detail = check(client, path, body, 422, "invalid")
    assert "cannot be tokenized (Onig: Regex search error: retry-limit-in-match over)" in detail


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/detokenize", {"token_ids": [[12]]}),
        ("/v1/decode", {"source": "red", "suppress_tokens": OTHERS, "max_new_tokens": 2}),
        (
            "/v1/decode",  # in the engine
            {"source": "red", "suppress_tokens": OTHERS, "max_new_tokens": 2, "stop": "q"},
        ),
    ],
)
def test_ids_on_which_the_tokenizer_panics_fail(client, path, body):
    assert "the tokenizer cannot write these ids" in check(client, path, body, 500, "pass_failed")


def test_a_panic_in_a_stream_is_its_last_event(client):
    body = {"source": "red", "suppress_tokens": OTHERS, "max_new_tokens": 2, "stream": True}
    lines = client.post("/v1/decode", json=body).text.splitlines()
    assert "event: error" in lines
    data = json.loads(lines[lines.index("event: error") + 1].removeprefix("data: "))
    assert data["code"] == "pass_failed"


def test_a_source_that_panics_fails_alone_if_asked(client):
    body = {"source": [TEXT, "red"], "partial": True, "suppress_tokens": [12]}
    results = client.post("/v1/decode", json=body).json()["results"]
    assert [sorted(each) for each in results] == [["problem"], ["hypotheses", "source_tokens"]]


def test_any_other_panic_is_a_problem_too(client):
    """As the server sees it: the test client would take the error for its own end."""

    async def panic(scope, receive, send):
        await receive()
        raise Panic("in Rust")

    door, admission = door_before(panic)
    app = Observe(door, RequestMetrics(), None, QUIET)
    scope, sent = scope_of(headers=[(b"x-request-id", b"mine")], app=client.app), []
    with pytest.raises(Panic), capture_logs() as logged:
        asyncio.run(messages_of(app, scope, sent=sent))
    start, body = sent
    headers = dict(start["headers"])
    assert start["status"] == 500
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"x-request-id"] == b"mine"
    assert b"content-security-policy" in headers
    problem = json.loads(body["body"])
    assert (problem["code"], problem["request_id"]) == ("internal", "mine")
    assert admission.inside == 0
    assert [each["event"] for each in logged] == ["unexpected error", "request"]


def test_a_request_that_is_cancelled_is_not_answered(client):
    """Its client has gone."""

    async def run():
        async def wait(scope, receive, send):
            raise asyncio.CancelledError

        sent = []
        scope = {**scope_of(app=client.app), "state": {"request_id": "mine"}}
        with pytest.raises(asyncio.CancelledError):
            await messages_of(Errors(wait), scope, sent=sent)
        return sent

    with capture_logs() as logged:
        assert asyncio.run(run()) == logged == []
