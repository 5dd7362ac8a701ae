"""Compression of answers: which ones, for whom, and what goes on meanwhile."""

import asyncio
import http.client
import json
import zlib

import httpx2
import pytest
from fastapi import FastAPI
from starlette.responses import StreamingResponse
from structlog.testing import capture_logs

from service.api.routes import QUIET
from service.http.middleware.answers import SMALLEST, Errors, Negotiation
from service.http.middleware.metrics import RequestMetrics
from service.http.middleware.observe import Observe
from tests.service.http.asgi import messages_of, scope_of

SOURCES = ["transformers" * 5] * 20  # their attention takes megabytes, which are sent in pieces
ALL = {"kinds": ["encoder", "decoder", "cross"]}
FILES = ["application/npz", "application/safetensors", "image/png"]
HEADERS = [(b"accept-encoding", b"gzip"), (b"x-request-id", b"mine-1")]


def encoding_of(answer):
    return answer.headers.get("content-encoding")


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        ("gzip", "gzip"),
        ("br;q=1.0, GZIP;q=0.8, *;q=0.1", "gzip"),
        ("*", "gzip"),
        ("identity;q=0.5, gzip", "gzip"),
        ("identity", None),
        ("br", None),
        ("", None),
        ("gzip;q=0", None),
        ("gzip;q=0, *", None),
        ("gzip;q=0.5, identity", None),
    ],
)
def test_a_client_gets_gzip_if_it_accepts_that(client, accepted, expected):
    """As by RFC 9110, section 12.5.3."""
    answer = client.get("/openapi.json", headers={"Accept-Encoding": accepted})
    assert encoding_of(answer) == expected
    assert answer.json()["openapi"].startswith("3.")
    assert "Accept-Encoding" in answer.headers["vary"]


@pytest.mark.parametrize("accept", ["application/json", "text/html"])
def test_an_answer_in_pieces_is_the_same_when_compressed(server, accept):
    body = {"source": SOURCES, "attention": ALL}
    plain, compressed = (
        httpx2.post(
            f"{server}/v1/attention",
            json=body,
            headers={"Accept": accept, "Accept-Encoding": coding},
            timeout=60,
        )
        for coding in ("identity", "gzip")
    )
    assert (encoding_of(plain), encoding_of(compressed)) == (None, "gzip")
    assert len(plain.content) > 2 << 20
    assert compressed.content == plain.content
    assert compressed.headers["transfer-encoding"] == "chunked"
    assert compressed.headers["vary"] == "Accept, Accept-Encoding"


@pytest.mark.parametrize("accept", FILES)
def test_files_that_hardly_get_smaller_are_not_compressed(client, accept):
    body = {"model": "g2p-en", "source": SOURCES[0], "attention": ALL}
    answer = client.post("/v1/attention", json=body, headers={"Accept": accept})
    assert len(answer.content) > SMALLEST
    assert (answer.headers["content-type"], encoding_of(answer)) == (accept, None)


def test_events_are_not_compressed(client):
    body = {"model": "g2p-en", "source": SOURCES, "stream": True}
    answer = client.post("/v1/decode", json=body)
    assert len(answer.content) > SMALLEST
    assert encoding_of(answer) is None


def test_small_answers_are_not_compressed(client):
    answer = client.post("/v1/decode", json={"model": "g2p-en", "source": "heed"})
    assert encoding_of(answer) is None
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_http_1_0_gets_a_length_instead_of_gzip(server):
    connection = http.client.HTTPConnection(server.removeprefix("http://"))
    connection._http_vsn, connection._http_vsn_str = 10, "HTTP/1.0"
    connection.request("GET", "/openapi.json", headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    assert answer.headers["content-encoding"] is None
    assert int(answer.headers["content-length"]) == len(answer.read())
    connection.close()


def test_the_tag_of_a_compressed_file_is_weak_and_still_matches(client):
    """Its bytes are others than those of the file (RFC 9110, section 8.8.1)."""
    path = "/static-offline-docs/swagger-ui.css"
    answer = client.get(path)
    assert encoding_of(answer) == "gzip"
    assert "accept-ranges" not in answer.headers
    tag = answer.headers["etag"]
    assert tag.startswith('W/"')
    assert client.get(path, headers={"If-None-Match": tag}).status_code == 304
    assert encoding_of(client.get(path, headers={"Range": "bytes=0-50000"})) is None


def test_a_large_answer_keeps_the_event_loop_free_while_it_is_compressed():
    """The client takes whatever is sent at once, so that only the compression can give way."""
    pieces = [bytes([i]) * (1 << 20) for i in range(50)]
    app = FastAPI()

    async def pieces_one_by_one():
        for piece in pieces:
            yield piece

    app.get("/")(lambda: StreamingResponse(pieces_one_by_one(), media_type="application/json"))
    app.add_middleware(Negotiation, cores=1)
    sent = []
    turns = []  # how often the event loop ran something else, at each message

    async def run():
        async def count():
            while True:
                turns[-1:] = [turns[-1] + 1]
                await asyncio.sleep(0)

        async def send(message):
            sent.append(message.get("body", b""))
            turns.append(0)

        async def receive():
            await asyncio.Event().wait()

        turns.append(0)
        counting = asyncio.create_task(count())
        await app(scope_of("GET", "/", HEADERS), receive, send)
        counting.cancel()

    asyncio.run(run())
    assert zlib.decompress(b"".join(sent), 16 + zlib.MAX_WBITS) == b"".join(pieces)
    assert all(turns[2 : len(pieces)])


def sent_by_failing(content_type, *parts):
    """What is sent of an answer that fails after these parts of its body, and the log."""
    start = {"type": "http.response.start", "status": 200}
    sent = []

    async def fail(scope, receive, send):
        await send({**start, "headers": [(b"content-type", content_type)]})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        raise RuntimeError("broken")

    async def run():
        app = Observe(Errors(Negotiation(fail, 1)), RequestMetrics(), None, QUIET)
        with pytest.raises(RuntimeError):
            await messages_of(app, scope_of("GET", "/", HEADERS), sent=sent)

    with capture_logs() as logged:
        asyncio.run(run())
    return sent, logged


def test_an_answer_that_fails_before_its_body_is_a_problem():
    (start, body), _ = sent_by_failing(b"application/json")
    assert start["status"] == 500
    headers = dict(start["headers"])
    assert headers[b"content-type"] == b"application/problem+json"
    assert b"content-encoding" not in headers
    assert json.loads(body["body"])["request_id"] == "mine-1"


def test_an_answer_that_fails_in_its_body_does_not_look_complete():
    (start, body), _ = sent_by_failing(b"application/json", b"[1, 2" * SMALLEST)
    assert (b"content-encoding", b"gzip") in start["headers"]
    assert body["more_body"]
    read = zlib.decompressobj(16 + zlib.MAX_WBITS)
    assert (b"[1, 2" * SMALLEST).startswith(read.decompress(body["body"]))
    assert not read.eof


@pytest.mark.parametrize("parts", [(), (b"event: token\n\n",)])
def test_a_bug_is_logged_whether_or_not_the_answer_has_begun(parts):
    _, (line, _) = sent_by_failing(b"text/event-stream", *parts)
    found = (line["event"], line["error"], line["request_id"])
    assert found == ("unexpected error", "RuntimeError('broken')", "mine-1")
