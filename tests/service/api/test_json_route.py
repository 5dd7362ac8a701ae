"""A body validated from its bytes equals the one parsed first; a large one is read in a thread."""

import asyncio
import itertools
import json
import threading
from types import SimpleNamespace
from typing import Annotated

import pytest
from fastapi import FastAPI, Response
from fastapi.testclient import TestClient
from pydantic import AfterValidator, BaseModel, TypeAdapter, ValidationError

from service.api.endpoints.decode.body import DecodeRequest
from service.api.reading.call import SMALL, Call, one_of_each_class
from service.api.reading.json_route import JsonRoute
from service.api.routes import QUIET
from service.app import ENDPOINTS
from service.errors import HeedError
from service.http.messages.problems import Paths
from service.http.middleware.door import Admission, Door
from service.http.middleware.metrics import RequestMetrics
from service.http.middleware.observe import Observe
from service.settings.settings import Settings
from tests.service.api.bodies import BODIES, GOOD
from tests.service.http.asgi import JSON_HEADERS, limits_of, messages_of, scope_of

JSON = {"content-type": "application/json"}

POSTS = [
    route
    for endpoint in ENDPOINTS
    for route in endpoint.router.routes
    if "POST" in getattr(route, "methods", ())
]
USUAL = {**BODIES, "/v1/attend": GOOD}
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
        text = json.dumps({**USUAL.get(route.path, {}), name: value})
        try:
            read = body.validate_json(text)
        except ValidationError:
            continue  # such a body is parsed, to name its faults
        assert repr(read) == repr(body.validate_python(json.loads(text)))
        compared += 1
    assert compared > 2 * len(fields)


def test_every_endpoint_with_a_body_has_the_route():
    assert len(POSTS) >= 7
    assert all(isinstance(route, JsonRoute) for route in POSTS)


def test_an_endpoint_with_other_parameters_is_refused():
    def endpoint(body: DecodeRequest, call: Call, name: str) -> None:
        """Take a query parameter besides the body."""

    with pytest.raises(TypeError, match="/x has other parameters than body, call"):
        JsonRoute("/x", endpoint, methods=["POST"])


def test_a_client_that_leaves_while_it_sends_is_not_an_error_of_the_service(client, caplog):
    part = {"type": "http.request", "body": b'{"sour', "more_body": True}
    sent = asyncio.run(
        messages_of(client.app, scope_of(headers=JSON_HEADERS), [part, {"type": "http.disconnect"}])
    )
    assert sent[0]["status"] == 499
    assert "unexpected" not in caplog.text


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON ; charset=utf8", 200),
        ("application/problem+json", 200),
        ("application/jsonp", 415),
        ("text/plain", 415),
        ("", 415),
    ],
)
def test_a_body_is_json_by_its_content_type(client, content_type, status):
    answer = client.post(
        "/v1/decode",
        content=b'{"source": "heed", "model": "g2p-en"}',
        headers={"content-type": content_type},
    )
    assert answer.status_code == status


class Threads(BaseModel):
    """A body that notes which thread validates it."""

    text: Annotated[str, AfterValidator(lambda text: f"{text[:1]}{threading.get_ident()}")]


@pytest.mark.parametrize("fault", [b"", b'"'], ids=["right", "wrong"])
def test_only_a_large_body_is_read_outside_the_thread_of_the_event_loop(fault):
    """A wrong one is refused, but not before the event loop has done other things."""

    async def endpoint(body: Threads, call: Call) -> Response:
        return Response(f"{body.text[1:]} {threading.get_ident()}")

    app = FastAPI()
    app.router.add_api_route("/x", endpoint, methods=["POST"], route_class_override=JsonRoute)
    app.state.service = SimpleNamespace(
        settings=Settings(), classes=one_of_each_class(), ending=False
    )
    app.state.paths = Paths("", [], {}, {})
    app.add_middleware(Door, limits=limits_of(Admission(9, 60.0)))  # which sets the deadline
    app.add_middleware(Observe, metrics=RequestMetrics(), tracer=None, quiet=QUIET)
    app.add_exception_handler(HeedError, lambda request, error: Response(error.detail, 400))
    with TestClient(app) as client:
        for length, inline in ((SMALL - 100, True), (SMALL + 100, False)):
            content = b'{"text": "%b%b"}' % (b"a" * length, fault)
            answer = client.post("/x", content=content, headers=JSON_HEADERS)
            if fault:
                assert answer.text.startswith("the body is not valid JSON: at character")
            else:
                reader, own = answer.text.split()
                assert (reader == own) is inline


@pytest.mark.parametrize("brackets", [b"[]", b"{}"])
def test_a_body_of_very_many_lists_is_refused_before_they_are_built(client, brackets):
    content = b'{"source": [%b]}' % b",".join([brackets] * 50_000)
    answer = client.post("/v1/decode", content=content, headers=JSON_HEADERS)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert "has 50002 opening brackets, [ and {, and the limit is 20000" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (b'{"source": ["a\\ud800"], "model": "g2p-en"}', "/source/0 has half a surrogate pair"),
        (b'{"source": "a", "seed": 1%b}' % (b"0" * 5000), "the body cannot be read (Exceeds"),
        (b'{"source": "a", "temperature": NaN}', "/temperature must be a finite number"),
        (b'{"source": "a", "temperature": 1e400}', "/temperature must be"),
        (b'{"source": "a", "source": 5}', "the body has 'source' twice in an object"),
        (b'{"source": "a", "x": %b1%b}' % (b"[" * 900, b"]" * 900), "/x is not a field"),
    ],
)
def test_a_body_that_is_strange_json_is_refused_with_a_reason(client, content, detail):
    answer = client.post("/v1/decode", content=content, headers=JSON_HEADERS)
    assert answer.status_code in (400, 422)
    assert answer.json()["detail"].startswith(detail)
