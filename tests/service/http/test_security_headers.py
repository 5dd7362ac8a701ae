"""The security headers of every kind of answer."""

import base64
import hashlib
import re

import httpx2
import pytest

from tests.conftest import serving

REQUIRED = {
    "object-src": "'none'",
    "base-uri": "'none'",
    "form-action": "'self'",
}


def policy_of(answer):
    (header,) = answer.headers.get_list("content-security-policy")
    return dict(part.strip().split(" ", 1) for part in header.split(";"))


@pytest.mark.parametrize(
    "path",
    ["/", "/docs", "/openapi.json", "/livez", "/v1/models", "/web/page/app.js", "/none"],
)
def test_every_answer_has_the_headers(client, path):
    answer = client.get(path)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    policy = policy_of(answer)
    assert policy.items() >= REQUIRED.items()
    assert policy["default-src"] == "'self'"
    assert policy["frame-ancestors"] == ("'self'" if path == "/" else "'none'")
    assert "unsafe" not in policy["script-src"]
    assert policy["script-src"].startswith("'self'")


def test_an_answer_that_fails_unexpectedly_has_them_too(client, monkeypatch):
    def fail(*_):
        raise RuntimeError("secret")

    monkeypatch.setattr(client.app.state.service.registry.served["tiny"].engine, "submit", fail)
    failed = client.post("/v1/decode", json={"model": "tiny", "source": "red"})
    assert failed.status_code == 500
    usual = client.get("/livez").headers
    names = ["content-security-policy", "x-content-type-options", "referrer-policy"]
    assert [failed.headers[name] for name in names] == [usual[name] for name in names]


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_the_inline_scripts_of_a_page_and_no_others_may_run(client, path):
    """The browser tests run them."""
    answer = client.get(path)
    scripts = re.findall(r"<script(?: type=\"importmap\")?>(.*?)</script>", answer.text, re.S)
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts]
    expected = ["'self'", *(f"'sha256-{each.decode()}'" for each in hashes)]
    assert policy_of(answer)["script-src"].split() == expected


def test_an_exported_page_reaches_no_host(client):
    body = {"model": "tiny", "source": "red", "attention": {}}
    answer = client.post("/v1/attention", json=body, headers={"Accept": "text/html"})
    (own,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', answer.text)
    policy = policy_of(answer)
    assert answer.headers["content-security-policy"] == f"{own}; frame-ancestors 'none'"
    assert policy["default-src"] == "'none'"
    assert "unsafe" not in policy["script-src"]
    assert not re.search(r"'self'|https?:|\*", own)


def test_the_server_does_not_name_itself(server):
    assert "server" not in httpx2.get(f"{server}/livez").headers


def test_forwarded_headers_are_trusted_where_configured(server):
    """The absolute address of the page's preview shows which scheme the service trusts."""
    headers = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.9"}
    assert 'content="http://' in httpx2.get(server, headers=headers).text
    with serving("--trusted-proxies", "127.0.0.0/8") as address:
        assert 'content="https://' in httpx2.get(address, headers=headers).text
