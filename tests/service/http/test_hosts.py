"""The hosts that requests may be for."""

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from service.app import create_app
from service.http.middleware.door import ANY_HOST, LOCAL, hosts_of
from service.settings.settings import Settings


def status(name, **settings):
    """Of a request that needs no model."""
    client = TestClient(create_app(Settings(**settings)), "http://localhost")
    answer = client.get("/livez", headers={"Host": name})
    if answer.status_code != 200:
        assert answer.headers["content-type"] == "application/problem+json"
        assert "HEED_ALLOWED_HOSTS" in answer.json()["detail"]
    return answer.status_code


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", 200),
        ("LocalHost:8000", 200),
        ("page.localhost", 200),
        ("127.0.0.1:8000", 200),
        ("10.1.2.3", 200),
        ("[::1]:8000", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("evil.example:localhost", 421),
        ("evillocalhost", 421),
        ("", 421),
    ],
)
def test_a_service_for_this_machine_answers_for_no_other_name(host, expected):
    """A name of another site may resolve to this machine (DNS rebinding)."""
    assert status(host) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("heed.example", 200),
        ("a.b.example.org", 200),
        ("10.1.2.3:8000", 200),
        ("example.org", 421),
        ("localhost", 421),
    ],
)
def test_a_setting_names_the_hosts(host, expected):
    assert status(host, allowed_hosts="heed.example, *.example.org") == expected


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "heed.internal"])
def test_a_service_for_other_machines_answers_for_every_name(host):
    assert hosts_of(Settings(host=host)) == ANY_HOST
    assert status("any.example", host=host) == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_by_default_only_this_machine_can_reach_the_service(host):
    assert hosts_of(Settings(host=host)) == LOCAL


@pytest.mark.parametrize("name", ["http://heed.example", "heed.example:80", "heed*", "a b"])
def test_a_setting_that_no_host_matches_is_refused(name):
    with pytest.raises(ValidationError, match="without scheme and port"):
        Settings(allowed_hosts=name)
