"""Errors on the paths of a protocol have its own form, wherever they come from."""

import asyncio
import json

import httpx2
import pytest
from fastapi import FastAPI
from starlette.exceptions import HTTPException

from service.app import PROTOCOLS
from service.errors import Invalid, Overloaded, PassFailed, Unauthorized, Unavailable
from service.http.messages.problems import (
    Paths,
    answer_heed_error,
    answer_http_exception,
    answer_unexpected,
)
from tests.conftest import KEY, opened
from tests.service.api.conftest import copy_of
from tests.service.http.asgi import request_for

APP = FastAPI()  # what answers to errors look at
APP.state.paths = Paths("", [protocol.ERRORS for protocol in PROTOCOLS.values()], {}, {})
OPENAI, LIBRE, INFER = "/v1/embeddings", "/translate", "/v2/models/g2p-en/infer"
MODEL = "/models/g2p-en"
UNAUTHORIZED, INVALID = Unauthorized("no key"), Invalid.at("/dimensions", "is 0")


def answer_to(path, error):
    request = request_for(path, APP)
    if isinstance(error, HTTPException):
        return asyncio.run(answer_http_exception({}, request, error))
    if isinstance(error, RuntimeError):
        return answer_unexpected(request)
    return asyncio.run(answer_heed_error(request, error))


@pytest.mark.parametrize(
    ("path", "error", "status"),
    [
        (OPENAI, UNAUTHORIZED, 401),
        (OPENAI, INVALID, 400),
        (OPENAI, Overloaded("full"), 429),
        (OPENAI, Unavailable("closing"), 503),
        (OPENAI, PassFailed("broken"), 500),
        (OPENAI, RuntimeError("secret"), 500),
        (OPENAI, HTTPException(413, "the body is large"), 400),
        (OPENAI, HTTPException(408, "the body is slow"), 408),
        (LIBRE, UNAUTHORIZED, 403),
        (LIBRE, INVALID, 400),
        (LIBRE, Overloaded("full"), 429),
        (LIBRE, RuntimeError("secret"), 500),
        (LIBRE, HTTPException(413, "the body is large"), 400),
        ("/frontend/none", HTTPException(405), 405),
        (INFER, UNAUTHORIZED, 401),
        (INFER, INVALID, 400),
        (INFER, Overloaded("full"), 429),
        (INFER, Unavailable("closing"), 503),
        (INFER, RuntimeError("secret"), 500),
        (INFER, HTTPException(413, "the body is large"), 413),
        ("/v2", HTTPException(405), 405),
        (MODEL, UNAUTHORIZED, 401),
        (MODEL, INVALID, 400),
        (MODEL, Overloaded("full"), 429),
        (MODEL, RuntimeError("secret"), 500),
        (MODEL, HTTPException(413, "the body is large"), 400),
        ("/", INVALID, 400),
        ("/pipeline", HTTPException(405), 405),
    ],
)
def test_every_error_has_the_form_of_its_protocol(path, error, status):
    answer = answer_to(path, error)
    content, *_ = json.loads(answer.body).values()
    message = content if path != OPENAI else content["message"]
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert isinstance(message, str)
    assert "secret" not in message
    expected = {INVALID: "dimensions is 0", UNAUTHORIZED: "no key"}.get(error, "")
    assert message.removeprefix("/") == expected or not expected
    assert ("retry-after" in answer.headers) == (status in (429, 503))


@pytest.mark.parametrize(
    ("error", "kind", "param"),
    [
        (UNAUTHORIZED, "authentication_error", None),
        (INVALID, "invalid_request_error", "dimensions"),
        (Invalid.at("/input/3/1", "is 9"), "invalid_request_error", "input"),
        (Invalid.at("", "is a list"), "invalid_request_error", None),
        (Overloaded("full"), "rate_limit_error", None),
        (PassFailed("broken"), "server_error", None),
    ],
)
def test_an_openai_error_names_its_kind_its_field_and_its_code(error, kind, param):
    document = json.loads(answer_to(OPENAI, error).body)["error"]
    assert set(document) == {"message", "type", "param", "code"}
    assert (document["type"], document["param"], document["code"]) == (kind, param, error.code)


@pytest.mark.parametrize("path", [f"{OPENAI}s", "/v2s", "/v1/decode", "/models2", "/languages2"])
def test_other_paths_keep_problem_documents(path):
    answer = answer_to(path, INVALID)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.status_code == 422


@pytest.mark.parametrize("path", [OPENAI, LIBRE, "/languages", INFER, MODEL])
def test_a_protocol_is_off_unless_a_setting_names_it(client, path):
    answer = client.post(path, json={})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert path not in client.get("/openapi.json").json()["paths"]


@pytest.fixture(scope="module")
def without_languages(tiny):
    with opened(tiny, protocols="openai,libretranslate") as client:
        yield client


def test_a_service_without_languages_lists_none_and_says_how_to_have_some(without_languages):
    assert without_languages.get("/languages").json() == []
    asked = {"q": "red", "source": "en", "target": "fr"}
    for refused in (
        without_languages.get("/frontend/settings"),
        without_languages.post("/translate", json=asked),
    ):
        assert refused.status_code in (400, 404)
        assert "serve one that has, by HEED_BUNDLES" in refused.json()["error"]


def test_the_examples_of_embeddings_are_answered(protocol_server):
    key = {"Authorization": f"Bearer {KEY}"}
    with httpx2.Client(base_url=protocol_server, headers=key) as client:
        body = client.get("/openapi.json").json()["paths"]["/v1/embeddings"]["post"]["requestBody"]
        examples = body["content"]["application/json"]["examples"]
        assert len(examples) == 2
        for example in examples.values():
            assert client.post("/v1/embeddings", json=example["value"]).status_code == 200


def test_the_example_of_a_translation_has_languages_that_are_served(tiny, tmp_path):
    """So that `/docs` sends a request that is answered."""
    bundle = copy_of(
        tiny,
        tmp_path,
        "translator",
        decoder_start=["target_language"],
        languages={"source": {}, "target": {"fra_Latn": [7]}},
    )
    with opened(bundle, protocols="libretranslate") as client:
        body = client.get("/openapi.json").json()["paths"]["/translate"]["post"]["requestBody"]
        (example,) = body["content"]["application/json"]["examples"].values()
        asked = example["value"] | {"q": "red"}  # the words of the fixture are few
        assert (asked["source"], asked["target"]) == ("auto", "fra_Latn")
        assert client.post("/translate", json=asked).status_code == 200
