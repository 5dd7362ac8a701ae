"""A body read from its bytes is the one that FastAPI reads."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from service.api.attend_request import AttendRequest
from service.api.attention import AttentionRequest
from service.api.decode import DecodeRequest
from service.app import ENDPOINTS
from service.http.json_route import JsonRoute

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=4)
    | st.sampled_from(["1", "1.5", "true", "none", "sentences", "\ud800", "x" * 50]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def fields_of(model):
    return st.dictionaries(st.sampled_from([*model.model_fields]), VALUES, max_size=4)


@pytest.mark.parametrize("model", [DecodeRequest, AttentionRequest, AttendRequest])
@given(data=st.data())
def test_valid_bytes_give_what_the_parsed_body_gives(model, data):
    usual = {"source": "heed"} if "source" in model.model_fields else {}
    text = json.dumps({**usual, **data.draw(fields_of(model))})
    try:
        read = TypeAdapter(model).validate_json(text)
    except ValidationError:
        return  # FastAPI reads the body again
    assert repr(read) == repr(TypeAdapter(model).validate_python(json.loads(text)))


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


def test_every_endpoint_with_a_body_has_the_route():
    routes = [route for endpoint in ENDPOINTS for route in endpoint.router.routes]
    posts = [route for route in routes if "POST" in route.methods]
    assert len(posts) >= 7
    assert all(isinstance(route, JsonRoute) for route in posts)
