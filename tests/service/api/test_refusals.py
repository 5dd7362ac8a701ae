"""What the service refuses, how it says so, and that nothing is left behind."""

import asyncio
import gc
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from fastapi.testclient import TestClient
from starlette.exceptions import HTTPException
from structlog.testing import capture_logs

from service.app import create_app
from service.errors import DeadlineExceeded, PassFailed, Unavailable
from service.http.validation_errors import OTHER_NAMES
from service.settings import Provider, Settings
from tests.conftest import TINY

ENDPOINTS = ["/v1/decode", "/v1/attention", "/v1/encode"]


def decode_scope():
    return {
        "type": "http",
        "method": "POST",
        "path": "/v1/decode",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }


BAD = [
    ({"source": ""}, 422, "/source", "holds no token"),
    ({"source": "   "}, 422, "/source", "holds no token"),
    ({"source": []}, 422, "/source", "must have 1 or more items"),
    ({"source": ["cat", ""]}, 422, "/source/1", "holds no token"),
    ({"source": "a" * 10_000}, 413, "/source", "the limit is 64 tokens"),
    ({"source": ["a"] * 257}, 413, "/source", "the limit is 256"),
    (
        {"source": ["a", "a", "a", "naïve 7"]},
        422,
        "/source/3",
        "' ' at offset 5, '7' at offset 6",
    ),
    ({"source": [[5, 6], [5, 31]]}, 422, "/source/1/1", "ids are 0 to 30"),
    ({"source": [[5, -1]]}, 422, "/source/0/1", "ids are 0 to 30"),
    ({"source": [[10**30]]}, 422, "/source/0/0", "ids are 0 to 30"),
    ({"source": [[]]}, 422, "/source/0", "at least one id"),
    ({"source": 5}, 422, "/source", "must be a text, a list of texts, or a list of lists"),
    ({"source": {"a": 1}}, 422, "/source", "must be a text"),
    ({"source": ["a", 5]}, 422, "/source/1", "must be a string"),
    ({"source": [["a"]]}, 422, "/source/0/0", "must be an integer"),
    ({}, 422, "/source", "is required"),
    ({"source": "a", "qqq": 5}, 422, "/qqq", "is not a field; the fields are model"),
    ({"source": "a", "max_length": 5}, 422, "/max_length", "did you mean max_new_tokens? The fi"),
    ({"source": "a", "num_beams": 5}, 422, "/num_beams", "did you mean beam_size?"),
    ({"source": "a", "num_return_sequences": 5}, 422, None, "did you mean num_hypotheses?"),
    ({"source": "a", "src_lang": "en"}, 422, "/src_lang", "did you mean source_language?"),
    ({"source": "a", "tgt_lang": "fr"}, 422, "/tgt_lang", "did you mean target_language?"),
    ({"source": "a", "do_sample": True}, 422, "/do_sample", "did you mean temperature?"),
    ({"source": "a", "lenght_penalty": 1}, 422, None, "did you mean length_penalty?"),
    ({"source": "a", "attention": {"head": 1}}, 422, "/attention/head", "did you mean heads?"),
    ({"input": "a"}, 422, None, "did you mean source?"),
    ({"text": "a"}, 422, None, "did you mean source?"),
    ({"source": "a", "max_new_tokens": 0}, 422, "/max_new_tokens", "must be at least 1"),
    ({"source": "a", "max_new_tokens": 65}, 422, "/max_new_tokens", "give 1 to 64"),
    ({"source": "a", "max_new_tokens": "5"}, 422, "/max_new_tokens", "must be an integer"),
    ({"source": "a", "beam_size": 0}, 422, "/beam_size", "must be at least 1"),
    ({"source": "a", "beam_size": 65}, 422, "/beam_size", "must be at most 64"),
    ({"source": "a", "num_hypotheses": 2}, 422, "/num_hypotheses", "beam_size is 1"),
    ({"source": "a", "length_penalty": 1e3}, 422, "/length_penalty", "must be at most 10"),
    ({"source": "a", "attention": {"layers": [0, 3]}}, 422, "/attention/layers/1", "give -3 to 2"),
    ({"source": "a", "attention": {"heads": [4]}}, 422, "/attention/heads/0", "give -4 to 3"),
    (
        {"source": "a", "attention": {"heads": "some"}},
        422,
        "/attention/heads",
        "'all' or a list of indices",
    ),
    (
        {"source": "a", "attention": {"kinds": ["self"]}},
        422,
        "/attention/kinds/0",
        "must be 'encoder'",
    ),
    (
        {"source": "a", "attention": {"kind": []}},
        422,
        "/attention/kind",
        "did you mean kinds? The fields are kinds, layers",
    ),
    ({"source": "a", "attention": {"heads": [0, -4]}}, 422, "/attention/heads", "a head twice"),
    ({"source": "a", "attention": {"kinds": ["cross"] * 2}}, 422, "/attention/kinds", "kind twice"),
    ({"source": "a", "attention": {"layers": 0}}, 422, "/attention/layers", "list of indices"),
    ({"source": "a\ud800"}, 422, "/source", "surrogate pair at offset 1"),
    ({"source": ["a", "\ud800"]}, 422, "/source/1", "surrogate pair at offset 0"),
    ({"source": "a", "\ud800": 1}, 422, None, "must be valid Unicode"),
    (
        {"source": "a", **{f"x{i}": i for i in range(5000)}},
        422,
        "",
        "has 5002 fields but only these are allowed: model",
    ),
    ({"source": [5, 6]}, 422, "/source", "must be a text, a list of texts, or a list of lists"),
    ({"source": "a", "model": "other"}, 404, None, "give one of g2p-en, tiny"),
]


@pytest.mark.parametrize(("body", "status", "pointer", "said"), BAD)
def test_bad_input_is_refused_with_its_place_and_what_is_allowed(
    client, caplog, body, status, pointer, said
):
    content = json.dumps({"model": "g2p-en", **body})
    headers = {"content-type": "application/json"}
    answer = client.post("/v1/decode", content=content, headers=headers)
    document = answer.json()
    assert (answer.status_code, document["status"]) == (status, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert document["request_id"] == answer.headers["x-request-id"]
    assert document["instance"] == "/v1/decode"
    assert said in document["detail"] + str([fault["detail"] for fault in document["errors"]])
    if pointer is not None:
        assert document["errors"][0]["pointer"] == pointer
    assert len(answer.content) < 2000
    assert "Traceback" not in caplog.text
    assert client.post("/v1/decode", json={"model": "g2p-en", "source": "a"}).status_code == 200


@pytest.mark.parametrize(
    ("content", "content_type", "status", "code"),
    [
        (b'{"source": "a"', "application/json", 400, "unparsable"),
        (b"\xff\xfe{}", "application/json", 400, "unparsable"),
        (b"[" * 100_000, "application/json", 400, "unparsable"),
        (b'{"source": "a"}', "text/plain", 415, "unsupported_media_type"),
        (b"source=a", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b'{"source": "' + b"a" * 5_000_000 + b'"}', "application/json", 413, "too_large"),
        (b"", "application/json", 422, "invalid"),
        (b"null", "application/json", 422, "invalid"),
        (b"[1]", "application/json", 422, "invalid"),
    ],
)
@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_body_that_cannot_be_read_is_refused(server, path, content, content_type, status, code):
    headers = {"content-type": content_type}
    answer = httpx2.post(server + path, content=content, headers=headers, timeout=30)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert httpx2.get(f"{server}/readyz").status_code == 200


@pytest.mark.parametrize(
    ("content", "coding", "status", "said"),
    [
        (b"\x1f\x8b\x08", "gzip", 415, "content-encoding gzip is not supported: send the body unc"),
        (b'{"source": "\xff"}', "identity", 400, "the body is not UTF-8: byte 0xff at 12"),
        (b"[" * 100_000, "identity", 400, "the body is nested too deeply: send a flat JSON object"),
    ],
)
def test_an_unreadable_body_is_explained_without_the_words_of_python(
    client, content, coding, status, said
):
    headers = {"content-type": "application/json", "content-encoding": coding}
    answer = client.post("/v1/decode", content=content, headers=headers)
    assert answer.status_code == status
    assert answer.json()["detail"].startswith(said)


def test_the_answer_to_an_unknown_path_lists_the_endpoints(client):
    answer = client.get("/v2")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in answer.json()["detail"]
    assert "/docs" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/decode", "POST"),
        ("POST", "/livez", "GET, HEAD"),
        ("DELETE", "/v1/models/g2p-en", "GET, HEAD"),
        ("POST", "/", "GET, HEAD"),
        ("PUT", "/static-offline-docs/swagger-ui.css", "GET, HEAD"),
        ("POST", "/openapi.json", "GET, HEAD"),
    ],
)
def test_the_answer_to_a_wrong_method_names_the_right_ones(client, method, path, allow):
    answer = client.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == allow
    named = allow.replace(", ", " or ")
    assert answer.json()["detail"] == f"{method} is not supported here: send {named}"


LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ({"source": "a", LONG: 1}, 422),
        ({"source": "a", "attention": {LONG: 1}}, 422),
        ({"source": "a", **{f"{i}{LONG}": 1 for i in range(10)}}, 422),
        ({"source": "a", 10 * LONG: 1}, 422),
        ({"source": "a", "model": LONG}, 404),
        ({"source": "a", "beam_size": LONG}, 422),
    ],
)
def test_a_refusal_is_small_however_much_was_sent(client, content, status):
    answer = client.post("/v1/decode", json={"model": "g2p-en", **content})
    assert answer.status_code == status
    assert len(answer.content) < 8_000
    assert "x" * 65 not in answer.text


def test_a_refusal_is_small_however_long_the_content_type_is(client):
    answer = client.post("/v1/decode", content=b"{}", headers={"content-type": LONG})
    assert answer.status_code == 415
    assert len(answer.content) < 8_000


def test_a_refusal_is_small_however_long_the_path_is(client):
    answer = client.get(f"/{LONG[:50_000]}")
    assert answer.status_code == 404
    assert len(answer.content) < 8_000


def test_every_name_of_another_library_leads_to_a_field(client):
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    fields = {name for each in schemas.values() for name in each.get("properties", ())}
    for theirs, ours in OTHER_NAMES.items():
        assert {*ours} <= fields
        assert theirs not in ours


def test_a_hint_names_a_field_of_this_endpoint(client):
    answer = client.post("/v1/tokenize", json={"model": "g2p-en", "inputs": "a"})
    details = [fault["detail"] for fault in answer.json()["errors"]]
    assert any("did you mean text?" in detail for detail in details)


@pytest.mark.parametrize("name", ["a/b", "~", "as text", "\n"])
def test_the_pointer_to_an_unknown_field_leads_to_it(client, name):
    answer = client.post("/v1/decode", json={"model": "g2p-en", "source": "a", name: 1})
    (fault,) = answer.json()["errors"]
    assert fault["pointer"] == "/" + name.replace("~", "~0").replace("/", "~1")


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

    monkeypatch.setattr(client.app.state.models["tiny"].engine, "submit", fail)
    headers = {"X-Request-Id": "mine-1"}
    with capture_logs() as logged:
        answer = client.post("/v1/decode", json={"model": "tiny", "source": "red"}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json()["request_id"] == answer.headers["x-request-id"] == "mine-1"
    assert "secret" not in answer.text
    (line,) = (each for each in logged if each["event"] == "request failed")
    found = {name: line[name] for name in ("log_level", "request_id", "instance", "status", "code")}
    assert found == {
        "log_level": "error",
        "request_id": "mine-1",
        "instance": "/v1/decode",
        "status": status,
        "code": code,
    }


def test_an_error_of_the_client_is_not_logged(client):
    with capture_logs() as logged:
        assert client.post("/v1/decode", json={"source": 5}).status_code == 422
    assert not logged


def assert_no_rows(client):
    """Every worker drops abandoned rows at its next step."""
    engine = client.app.state.models["g2p-en"].engine
    deadline = time.monotonic() + 10
    while (rows := client.portal.call(engine.status).rows) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert rows == 0


def test_a_request_that_takes_too_long_is_told_so_and_leaves_nothing_behind(client, limit, caplog):
    limit(timeout=1e-4)
    body = {"model": "g2p-en", "source": ["transformer"] * 100}
    answer = client.post("/v1/decode", json=body)
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")
    limit()
    again = client.post("/v1/decode", json={"model": "g2p-en", "source": "a"})
    assert again.status_code == 200
    assert_no_rows(client)
    gc.collect()
    assert caplog.text == ""


def test_a_full_queue_says_when_to_come_back():
    """Of 30 requests at once two are decoded and one waits."""
    settings = Settings(
        bundles=[TINY], threads=2, max_queue=1, max_sources=1, max_batch_tokens=1, self_check=False
    )
    with TestClient(create_app(settings)) as client, ThreadPoolExecutor(30) as pool:
        answers = [
            *pool.map(lambda _: client.post("/v1/decode", json={"source": "red"}), range(30))
        ]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429}
    assert {answer.json()["code"] for answer in refused} == {"overloaded"}
    assert {answer.headers["retry-after"] for answer in refused} == {"1"}


def test_a_client_that_leaves_frees_its_rows(client, caplog):
    body = json.dumps({"model": "g2p-en", "source": ["transformer"] * 100}).encode()
    messages = iter([{"type": "http.request", "body": body}, {"type": "http.disconnect"}])
    sent = []

    async def receive():
        return next(messages)

    async def send(message):
        sent.append(message)

    client.portal.call(client.app, decode_scope(), receive, send)
    assert sent[0]["status"] == 499  # to nobody
    client.post("/v1/decode", json={"model": "g2p-en", "source": "a"})
    assert_no_rows(client)
    gc.collect()
    assert caplog.text == ""


def test_a_model_must_be_named_where_there_are_several(client):
    answer = client.post("/v1/decode", json={"source": "a"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/model"


def test_targets_must_match_their_sources(post):
    status, document = post("/v1/attention", source=["a", "b"], target=["EY1"])
    assert (status, document["errors"][0]["pointer"]) == (422, "/target")
    status, document = post("/v1/attention", source="a", target="EY1", max_new_tokens=3)
    assert (status, document["errors"][0]["pointer"]) == (422, "/max_new_tokens")
    status, document = post("/v1/attention", source="a", target="EY1 QQ")
    assert status == 422
    assert "'QQ' at offset 4" in document["detail"]


def test_a_body_that_stops_arriving_is_given_up(tiny):
    """The service answers 408 instead of waiting for the rest."""
    settings = Settings(bundles=[tiny], provider=Provider.cpu, timeout=0.05)
    sent = []

    async def run():
        app, parts = (
            create_app(settings),
            [{"type": "http.request", "body": b"{", "more_body": True}],
        )

        async def receive():
            return parts.pop() if parts else await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        async with app.router.lifespan_context(app):
            await app(decode_scope(), receive, send)

    asyncio.run(run())
    assert sent[0]["status"] == 408
    detail = json.loads(sent[1]["body"])["detail"]
    assert detail == "no part of the body arrived for 0.05 seconds: send it faster"


def test_attention_that_a_bundle_cannot_show_is_not_supported(tiny, tmp_path):
    copy = shutil.copytree(tiny, tmp_path / "blind")
    manifest = json.loads((copy / "bundle.json").read_text())
    del manifest["precisions"]["fp32"]["attention"]
    (copy / "bundle.json").write_text(json.dumps(manifest))
    settings = Settings(bundles=[copy], provider=Provider.cpu)
    with TestClient(create_app(settings)) as blind:
        refused = blind.post("/v1/attention", json={"source": "red"})
        assert (refused.status_code, refused.json()["code"]) == (404, "not_supported")
        kinds = {"attention": {"kinds": ["encoder"]}}
        assert blind.post("/v1/attention", json={"source": "red", **kinds}).status_code == 200
        assert blind.get("/v1/models").json()["models"][0]["attention"] == ["encoder"]


def test_attention_that_a_setting_leaves_out_is_not_supported(tiny):
    settings = Settings(bundles=[tiny], provider=Provider.cpu, attention=False)
    with TestClient(create_app(settings)) as blind:
        refused = blind.post("/v1/attention", json={"source": "red"})
        assert (refused.status_code, refused.json()["code"]) == (404, "not_supported")
        assert blind.post("/v1/decode", json={"source": "red"}).status_code == 200
        assert blind.get("/v1/models").json()["models"][0]["attention"] == []
