"""Requests that no endpoint can read are refused, in an answer that is small."""

import httpx2
import pytest

from tests.conftest import KEY
from tests.service.api.bodies import BODIES

ENDPOINTS = ["/v1/decode", "/v1/attention", "/v1/encode"]


@pytest.mark.parametrize(
    ("content", "content_type", "status", "code"),
    [
        (b'{"source": "a"', "application/json", 400, "unparsable"),
        (b"\xff\xfe{}", "application/json", 400, "unparsable"),
        (b"[" * 10_000, "application/json", 400, "unparsable"),
        (b"[" * 100_000, "application/json", 413, "too_large"),
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
    answer = httpx2.post(server + path, content=content, headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert httpx2.get(f"{server}/readyz").status_code == 200


@pytest.mark.parametrize(
    ("content", "coding", "status", "said"),
    [
        (b"\x1f\x8b\x08", "gzip", 415, "content-encoding gzip is not supported: send the body unc"),
        (b'{"source": "\xff"}', "identity", 400, "the body is not UTF-8: byte 0xff at 12"),
        (b"[" * 10_000, "identity", 400, "the body is nested too deeply: send a flat JSON object"),
    ],
)
def test_an_unreadable_body_is_explained_without_the_words_of_python(
    client, content, coding, status, said
):
    headers = {"content-type": "application/json", "content-encoding": coding}
    answer = client.post("/v1/decode", content=content, headers=headers)
    assert answer.status_code == status
    assert answer.json()["detail"].startswith(said)


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/decode", '{"source": "a", "beam_size": 1, "beam_size": 4}', "beam_size"),
        ("/v1/decode", '{"source": "a", "s\\u006furce": "b"}', "source"),
        ("/v1/decode", '{"source" :"a", "source"\n:"a"}', "source"),
        ("/v1/decode", '{"source": "a", "seed": null, "seed": null}', "seed"),
        ("/v1/decode", '{"source": "a", "model": null, "qqq": 1, "qqq": 2}', "qqq"),
        ("/v1/decode", '{"source": "a", "glossary": {"a": "AH0", "a": "EY1"}}', "a"),
        ("/v1/decode", '{"source": "a", "attention": {"layers": [0], "layers": "all"}}', "layers"),
        ("/v1/decode", '{"source": "a", "ablate": [{"kind": "cross", "kind": "cross"}]}', "kind"),
        ("/v1/encode", '{"source": "%s", "source": "b"}' % ("a" * 5000), "source"),
        ("/v1/tokenize", '{"text": "a", "text": "a"}', "text"),
        ("/models/g2p-en", '{"inputs": "a", "parameters": {"seed": 1, "seed": 2}}', "seed"),
        ("/translate", '{"q": "a", "target": "fr", "target": "en"}', "target"),
        ("/v1/embeddings", '{"input": "a", "dimensions": 1, "dimensions": 2}', "dimensions"),
    ],
)
def test_a_field_that_is_given_twice_is_refused_by_name(protocol_server, path, body, name):
    """RFC 8259 leaves open which of the two counts."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    answer = httpx2.post(protocol_server + path, content=body, headers=headers)
    assert answer.status_code == (422 if path in BODIES else 400)
    assert f"has '{name}' twice in an object: send it once" in answer.text


@pytest.mark.parametrize(
    "body",
    [
        {"source": ["a", "b"], "attention": {}, "beam_size": None, "seed": None},
        {"source": "a", "ablate": [], "glossary": {"a": "AH0", "b": ["B", "IY1"], '"a":': "K"}},
        {"source": "a", "required": ["AH0"], "stop": ['"source":', '"source" :', "\\"]},
    ],
)
def test_what_looks_like_a_field_that_is_given_twice_is_read(post, body):
    status, answer = post("/v1/decode", **body)
    assert status == 200, answer


def test_the_answer_to_an_unknown_path_lists_the_endpoints(client):
    answer = client.get("/v2")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in answer.json()["detail"]
    assert "/docs" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body", "near"),
    [
        ("/v1/decod", {}, "did you mean /v1/decode?"),
        ("/v1/decode/", {}, "/v1/decode/ does not exist: did you mean /v1/decode?"),
        ("/decode", {}, "did you mean /v1/decode?"),
        ("/v1/decode", {"source": "red", "model": "g2p_en"}, "did you mean g2p-en?"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest(client, path, body, near):
    answer = client.post(path, json=body)
    assert (answer.status_code, near in answer.json()["detail"]) == (404, True)


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
    assert answer.headers["allow"] == f"{allow}, OPTIONS"
    named = allow.replace(", ", " or ")
    without = " without HEED_PROTOCOLS=hugging-face" if (method, path) == ("POST", "/") else ""
    said = f"{method} is not supported here{without}: send {named}; /docs shows how"
    assert answer.json()["detail"] == said
    options = client.options(path)
    assert (options.status_code, options.content) == (204, b"")
    assert options.headers["allow"] == answer.headers["allow"]


def test_options_of_an_unknown_path_are_refused(client):
    assert client.options("/v1/decod").status_code == 404


LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ({"source": "a", LONG: 1}, 422),
        ({"source": "a", "attention": {LONG: 1}}, 422),
        ({"source": "a", **{f"{i}{LONG}": 1 for i in range(10)}}, 422),
        ({"source": "a", 10 * LONG: 1}, 422),
        ({"source": "a", **{f"{i}\1{LONG}": 1 for i in range(9)}}, 422),
        ({"source": "a", **{f"{i}" + 99 * "\1": 1 for i in range(12)}}, 422),
        ({"source": "a", "attention": {f"{i}" + 99 * "\U0001f600": 1 for i in range(12)}}, 422),
        ({"source": "a", "model": LONG}, 404),
        ({"source": "a", "beam_size": LONG}, 422),
    ],
)
def test_a_refusal_is_small_however_much_was_sent(client, content, status):
    answer = client.post("/v1/decode", json={"model": "g2p-en", **content})
    assert answer.status_code == status
    assert len(answer.content) <= 4096
    assert "x" * 65 not in answer.text


@pytest.mark.parametrize(
    ("path", "content_type", "status"),
    [("/v1/decode", LONG, 415), (f"/{LONG[:50_000]}", "application/json", 404)],
    ids=["content type", "path"],
)
def test_a_refusal_is_small_however_long_the_head_is(client, path, content_type, status):
    answer = client.post(path, content=b"{}", headers={"content-type": content_type})
    assert answer.status_code == status
    assert len(answer.content) <= 4096
