"""Requests from pages of other sites."""

import pytest

from tests.conftest import TINY, opened

SITE = "https://site.example"
KEY = "first-0123456789abcdef"
BODY = {"source": "red"}


@pytest.fixture(scope="module")
def shared():
    """The service with a key, open to the pages of one site."""
    with opened(TINY, api_keys=KEY, cors_origins=SITE) as client:
        yield client


def preflight(client, origin=SITE, method="POST", **headers):
    asked = {"Origin": origin, "Access-Control-Request-Method": method, **headers}
    return client.options("/v1/decode", headers=asked)


def test_no_other_site_may_ask_by_default(client):
    answers = [preflight(client), client.get("/v1/models", headers={"Origin": SITE})]
    assert not any("access-control" in name for answer in answers for name in answer.headers)


def test_a_browser_may_send_a_key_from_the_site(shared):
    """The preflight has no key (https://fetch.spec.whatwg.org/#cors-preflight-fetch)."""
    wanted = "authorization,content-type,x-request-timeout"
    answer = preflight(shared, **{"Access-Control-Request-Headers": wanted})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == SITE
    allowed = answer.headers["access-control-allow-headers"].lower().split(",")
    assert {*wanted.split(",")} <= {name.strip() for name in allowed}
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in answer.headers
    assert "default-src" in answer.headers["content-security-policy"]
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(("key", "status"), [(KEY, 200), ("wrong", 401)])
def test_the_site_reads_answers_and_refusals(shared, key, status):
    headers = {"Origin": SITE, "Authorization": f"Bearer {key}"}
    answer = shared.post("/v1/decode", json=BODY, headers=headers)
    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == SITE
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {"X-Request-Id", "Retry-After"} <= {*exposed}
    assert "Origin" in answer.headers["vary"]


def test_the_site_reads_that_the_service_failed(shared, monkeypatch):
    def fail(*_):
        raise RuntimeError("secret")

    monkeypatch.setattr(shared.app.state.service.registry.served["tiny"].engine, "submit", fail)
    headers = {"Origin": SITE, "Authorization": f"Bearer {KEY}"}
    failed = shared.post("/v1/decode", json=BODY, headers=headers)
    assert (failed.status_code, failed.json()["code"]) == (500, "internal")
    assert failed.headers["access-control-allow-origin"] == SITE


@pytest.mark.parametrize(
    ("origin", "method", "named"),
    [
        ("https://evil.example", "POST", "origin https://evil.example "),
        (f"{SITE}.evil.example", "POST", f"origin {SITE}.evil.example "),
        ("http://site.example", "POST", "origin http://site.example "),
        ("null", "POST", "origin null "),
        (SITE, "DELETE", "method DELETE "),
    ],
)
def test_other_sites_and_methods_are_refused(shared, origin, method, named):
    answer = preflight(shared, origin, method)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert answer.json()["detail"].startswith(f"{named}is not allowed: ")
    assert "access-control-allow-methods" not in answer.headers
    if origin != SITE:
        headers = {"Origin": origin, "Authorization": f"Bearer {KEY}"}
        read = shared.post("/v1/decode", json=BODY, headers=headers)
        assert "access-control-allow-origin" not in read.headers


@pytest.mark.parametrize("path", ["/v1/decode", "/livez", "/nowhere"])
def test_the_site_reads_that_it_named_a_wrong_host(shared, path):
    """It could not read a refusal of the preflight."""
    assert preflight(shared, Host="evil.example").status_code == 200
    headers = {"Origin": SITE, "Authorization": f"Bearer {KEY}", "Host": "evil.example"}
    answer = shared.post(path, json=BODY, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (421, "misdirected")
    assert answer.headers["access-control-allow-origin"] == SITE
    assert "X-Request-Id" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", ["https://evil.example", "http://evil.example:8000", "null"])
def test_other_sites_cannot_read_that_they_named_a_wrong_host(shared, origin):
    answer = shared.post(
        "/v1/decode", json=BODY, headers={"Origin": origin, "Host": "evil.example"}
    )
    assert answer.status_code == 421
    assert "access-control-allow-origin" not in answer.headers
    assert preflight(shared, origin, Host="evil.example").status_code == 403


def test_options_without_a_preflight_name_the_methods(shared):
    assert (
        shared.options("/v1/decode", headers={"Origin": SITE}).headers["allow"] == "POST, OPTIONS"
    )
