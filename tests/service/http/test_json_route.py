"""A body read from its bytes is the one that FastAPI reads."""

import asyncio
import itertools
import json

import pytest
from fastapi import Request
from pydantic import TypeAdapter, ValidationError

from service.api.decode import DecodeRequest
from service.app import ENDPOINTS
from service.http.json_route import JsonRoute

POSTS = [
    route
    for endpoint in ENDPOINTS
    for route in endpoint.router.routes
    if "POST" in getattr(route, "methods", ())
]
USUAL = {  # a valid body of each endpoint
    "attend": {"mechanism": "average", "queries": [1], "keys": [1.5], "values": [[2]]},
    "detokenize": {"token_ids": [[5, 6]]},
    "score": {"source": "heed", "target": "HH IY1 D"},
    "tokenize": {"text": "heed"},
}
VALUES = [
    *(None, True, False, 0, 1, 3, -1, 10**30, 0.5, 1.0, 1e400),
    *("", "heed", "é", "\ud800", "1", "1.5", "true", "none", "sentences", "PT1S"),
    *([], ["heed"], [1], [[5, 6]], [1.0], ["1"], ["heed", [5]], [[0.5, 1.5]], {}, {"layers": [0]}),
    {"kinds": ["cross"], "heads": "all", "rows": [0, 2]},
]


@pytest.mark.parametrize("route", POSTS, ids=lambda route: route.name)
def test_valid_bytes_give_what_the_parsed_body_gives(route):
    body = TypeAdapter(route.body_field.field_info.annotation)
    fields = route.body_field.field_info.annotation.model_fields
    compared = 0
    for name, value in itertools.product(fields, VALUES):
        text = json.dumps({**USUAL.get(route.name, {"source": "heed"}), name: value})
        try:
            read = body.validate_json(text)
        except ValidationError:
            continue  # FastAPI reads such a body
        assert repr(read) == repr(body.validate_python(json.loads(text)))
        compared += 1
    assert compared > 2 * len(fields)


def test_every_endpoint_with_a_body_has_the_route():
    assert len(POSTS) >= 7
    assert all(isinstance(route, JsonRoute) for route in POSTS)


def test_an_endpoint_with_other_parameters_is_refused():
    def endpoint(body: DecodeRequest, request: Request, name: str) -> None:
        """Take a query parameter besides the body."""

    with pytest.raises(TypeError, match="/x has other parameters than body and request"):
        JsonRoute("/x", endpoint, methods=["POST"])


def test_a_client_that_leaves_while_it_sends_is_no_error_of_the_service(client, caplog):
    messages = iter(
        [
            {"type": "http.request", "body": b'{"sour', "more_body": True},
            {"type": "http.disconnect"},
        ]
    )
    sent = []

    async def receive():
        return next(messages)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/decode",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    asyncio.run(client.app(scope, receive, send))
    assert sent[0]["status"] == 499
    assert "unexpected" not in caplog.text


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8"])
def test_plain_json_does_not_pass_through_fastapi(client, monkeypatch, content_type):
    monkeypatch.setattr("fastapi.routing.solve_dependencies", None)
    answer = client.post(
        "/v1/decode",
        content=b'{"source": "heed", "model": "g2p-en"}',
        headers={"content-type": content_type},
    )
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/problem+json", 200),
        ("text/plain", 415),
        ("application/json; charset=utf8", 200),
    ],
)
def test_other_content_types_are_left_to_fastapi(client, content_type, status):
    answer = client.post(
        "/v1/decode",
        content=b'{"source": "heed", "model": "g2p-en"}',
        headers={"content-type": content_type},
    )
    assert answer.status_code == status
