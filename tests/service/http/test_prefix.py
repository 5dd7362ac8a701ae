"""The service behind a proxy that shows it below a prefix, and strips the prefix or does not."""

import pytest
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from service.app import create_app
from service.errors import StartupError
from service.settings.settings import Settings
from tests.conftest import TINY, opened

KEY = "first-0123456789abcdef"


@pytest.fixture(scope="module")
def prefixed():
    with opened(TINY, api_keys=KEY, root_path="/heed") as client:
        yield client


@pytest.fixture(params=["", "/heed"], ids=["stripped", "not stripped"])
def get(request, prefixed):
    def send(path, **headers):
        return prefixed.get(request.param + path, headers=headers, follow_redirects=False)

    return send


def test_every_page_is_there(get, prefixed):
    for path in ("/", "/docs", "/openapi.json", "/livez", "/metrics", "/web/page/app.js"):
        assert get(path).status_code == 200, path
    body, headers = {"source": "red"}, {"Authorization": f"Bearer {KEY}"}
    for path in ("/v1/decode", "/heed/v1/decode"):
        assert prefixed.post(path, json=body, headers=headers).status_code == 200


def test_the_openapi_document_names_the_prefix(get):
    assert get("/openapi.json").json()["servers"] == [{"url": "/heed"}]


def test_addresses_in_answers_have_the_prefix(get):
    answer = get("/v1/decod", Authorization=f"Bearer {KEY}")
    problem = answer.json()
    assert problem["instance"] == "/heed/v1/decod"
    assert "did you mean /heed/v1/decode? /heed/docs describes" in problem["detail"]
    assert (
        "/heed/docs shows how" in get("/v1/decode", Authorization=f"Bearer {KEY}").json()["detail"]
    )
    assert 'content="http://localhost/heed/web/' in get("/").text


def test_the_prefix_alone_leads_to_the_page(prefixed):
    answer = prefixed.get("/heed", follow_redirects=False)
    assert answer.headers["location"] == "/heed/"


@pytest.mark.parametrize("path", ["/v1/models", "/heed/v1/models", "/heed/heed/v1/models"])
def test_the_prefix_leads_around_no_key(prefixed, path):
    assert prefixed.get(path).status_code != 200
    assert prefixed.head(path).status_code != 200


def test_routes_in_the_log_have_no_prefix(get):
    with capture_logs() as logged:
        get("/v1/models")
        get("/livez")
        get("/web/v1/models")
    assert [(line["route"], line["status"]) for line in logged] == [
        ("/v1/models", 401),
        ("other", 404),
    ]


@pytest.mark.parametrize("prefix", ["/v1", "/web", "/docs", "/metrics"])
def test_a_prefix_that_begins_a_path_of_the_service_is_refused(prefix):
    with pytest.raises(StartupError, match=f"begins with {prefix}: choose another"):
        create_app(Settings(root_path=prefix))


def test_a_path_that_only_begins_like_the_prefix_is_another_one():
    client = TestClient(create_app(Settings(root_path="/he")), "http://localhost")
    assert client.get("/heed/livez").status_code == 404
    assert client.get("/livez").status_code == 200
