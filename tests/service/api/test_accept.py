"""Every endpoint and page refuses an Accept header that excludes its media types."""

import time

import pytest

from service.http.middleware.answers import read_accept
from tests.service.api.bodies import BODIES

OTHERS = ("/v1/attention", "/v1/attribution")  # have other formats, too
JSON_ALONE = {path: body for path, body in BODIES.items() if path not in OTHERS}
CHANGES = {"/v1/models/tiny/load": {"path": "tiny"}} | {
    f"/v1/models/tiny/{change}": None for change in ("reload", "unload")
}


@pytest.mark.parametrize(
    ("path", "body"),
    [*((path, {"model": "g2p-en", **body}) for path, body in JSON_ALONE.items()), *CHANGES.items()],
)
@pytest.mark.parametrize("accept", ["application/npz", "text/html", "application/json;q=0, */*"])
def test_endpoints_that_send_json_say_so_to_clients_that_exclude_it(client, path, body, accept):
    refused = client.post(path, json=body, headers={"accept": accept})
    assert (refused.status_code, refused.json()["code"]) == (406, "not_acceptable")
    assert "application/json" in refused.json()["detail"]


@pytest.mark.parametrize("path", JSON_ALONE)
@pytest.mark.parametrize("accept", ["*/*", "application/*", "text/html, application/json;q=0.1"])
def test_clients_that_accept_json_get_it(client, path, accept):
    answer = client.post(
        path, json={"model": "g2p-en", **JSON_ALONE[path]}, headers={"accept": accept}
    )
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")


@pytest.mark.parametrize("accept", ["text/event-stream", "*/*", "application/json"])
def test_a_stream_is_sent_to_clients_that_accept_events_or_json(client, accept):
    """Clients of other services send application/json and ask for a stream in the body."""
    body = {"model": "g2p-en", "source": "heed", "stream": True}
    answer = client.post("/v1/decode", json=body, headers={"accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(("stream", "accept"), [(True, "text/html"), (False, "text/event-stream")])
def test_events_are_sent_only_if_the_body_asks_for_them(client, stream, accept):
    body = {"model": "g2p-en", "source": "heed", "stream": stream}
    refused = client.post("/v1/decode", json=body, headers={"accept": accept})
    assert refused.status_code == 406
    assert ("text/event-stream" in refused.json()["detail"]) is stream


PAGES = {
    "/v1/models": "application/json",
    "/v1/models/tiny": "application/json",
    "/openapi.json": "application/json",
    "/livez": "application/json",
    "/readyz": "application/json",
    "/readyz/tiny": "application/json",
    "/metrics": "text/plain",
    "/": "text/html",
    "/docs": "text/html",
    "/web/page/page.css": "text/css",
}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(("path", "form"), PAGES.items())
def test_a_page_of_another_type_than_the_client_accepts_is_406(client, method, path, form):
    refused = client.request(method, path, headers={"accept": f"image/png, {form};q=0"})
    assert refused.status_code == 406
    assert refused.headers["content-type"] == "application/problem+json"
    if method == "GET":
        assert refused.json()["detail"].endswith(f"available as {form}; accept one of these")
    for accept in ("*/*", form, f"image/png, {form.split('/')[0]}/*;q=0.1"):
        headers = {"accept": accept, "accept-encoding": "identity"}
        answer = client.request(method, path, headers=headers)
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] == form
        length = int(answer.headers["content-length"]) if method == "GET" else 0
        assert len(answer.content) == length


def test_the_scrape_of_prometheus_is_accepted(client):
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
    assert client.get("/metrics", headers={"accept": f"{accept},*/*;q=0.1"}).status_code == 200


def test_an_error_is_a_problem_whatever_is_accepted(client):
    for path in ("/v1/models/none", "/none"):
        assert client.get(path, headers={"accept": "image/png"}).status_code == 404


@pytest.mark.parametrize(
    ("quality", "value"),
    [
        *(("1", 1.0), ("0.5", 0.5), (".5", 0.5), ("1.", 1.0), ("0.000", 0.0), ("0 ", 0.0)),
        *(("0;a=b", 0.0), ("x", 1.0), ("", 1.0), ("0x", 1.0), ("-1", 1.0), ("0.5.5", 1.0)),
    ],
)
def test_a_quality_is_a_number_or_ignored(quality, value):
    assert read_accept([f"text/html; q={quality}"]) == {"text/html": value}


@pytest.mark.parametrize(
    "header",
    [
        f"a;q={'1' * 60_000}x",
        f"a;q=1.{'1' * 60_000}x",
        f"a;q=.{'1' * 60_000}x",
        f"a;q=1{' ' * 60_000}x",
        f"a;{'q=1 ' * 15_000}x",
        f"a;{'q=1;' * 15_000}x",
        "a;q=1x," * 9000,
        "," * 60_000,
    ],
    ids=lambda header: header[:7],
)
def test_a_long_header_is_read_in_linear_time(client, header):
    """60,000 digits took a minute, in which nobody else was answered."""
    started = time.process_time()
    read_accept([header])
    assert time.process_time() - started < 1
    answer = client.post("/v1/tokenize", json={"text": "a"}, headers={"accept": header})
    assert answer.status_code in (406, 422)
