"""Bytes of a request outside its body are bounded, and bytes that are not a request are refused."""

import contextlib
import json

import pytest

from service.http.server.protocol import MOST_HEADERS
from tests.service.http.sockets import (
    BODY,
    CHUNKED,
    HEAD,
    OK,
    PROBE,
    WORD,
    answers_in,
    chunks,
    exchange,
    open_to,
    receive,
)


def answer(server, parts):
    """Send bytes, and return the status line that is answered."""
    return exchange(server, parts).partition(b"\r\n")[0]


@pytest.mark.parametrize("count", [1, 20])
def test_long_headers_are_read_up_to_a_limit(server, count):
    """In one header, or in many."""
    headers = b"".join(b"x-%d: %s\r\n" % (i, b"a" * (60_000 // count)) for i in range(count))
    body = [b"content-length: %d\r\n\r\n" % len(BODY), BODY]
    assert b" 200 " in answer(server, [HEAD, headers, *body])
    assert b" 400 " in answer(server, [HEAD, headers.replace(b"a", b"ab"), *body])


@pytest.mark.parametrize("name", [b"x", b"accept", b"x-%d"])
def test_many_headers_are_read_up_to_a_limit(server, name):
    """Four others are in the head."""
    headers = [b"%s: 1\r\n" % (name % i if b"%" in name else name) for i in range(MOST_HEADERS)]
    body = [b"content-length: %d\r\n\r\n" % len(BODY), BODY]
    status = b" 406 " if name == b"accept" else b" 200 "
    assert status in answer(server, [HEAD, *headers[4:], *body])
    refused = exchange(server, [HEAD, *headers[3:], *body])
    assert refused.startswith(b"HTTP/1.1 400 ")
    assert b"more than 256 headers" in refused


def test_a_header_that_never_ends_is_cut_off(server):
    assert b" 400 " in answer(server, [HEAD, b"x: ", *[b"a" * 65_536] * 64])


def test_a_body_in_small_chunks_is_read(server):
    assert b" 200 " in answer(server, [CHUNKED, *chunks(BODY, 1), b"0\r\n\r\n"])


def test_chunks_and_trailers_without_end_are_cut_off(server):
    padded = BODY + b" " * 200_000
    assert b" 200 " in answer(server, [CHUNKED, *chunks(padded, 4096), b"0\r\n\r\n"])
    assert b" 400 " in answer(server, [CHUNKED, b"".join(chunks(padded, 1)), b"0\r\n\r\n"])
    trailers = [b"0\r\n", *[b"x: " + b"a" * 1000 + b"\r\n"] * 200, b"\r\n"]
    assert b" 200 " in answer(server, [CHUNKED, *chunks(BODY, 9), *trailers[:1], b"\r\n"])
    assert b" 400 " in answer(
        server, [CHUNKED.replace(b"close", b"keep-alive"), *chunks(BODY, 9), *trailers]
    )


@pytest.mark.parametrize(
    "sent",
    [
        b"FOO / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /%s HTTP/1.1\r\nhost: localhost\r\n\r\n" % (b"a" * 70_000),
        b"GET / HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
    ids=["unknown method", "connect", "long path", "no length", "TLS"],
)
@pytest.mark.parametrize("before", [b"", PROBE])
def test_bytes_that_are_not_a_request_get_a_problem_document(server, before, sent):
    """On a new connection, and after an answer on the same."""
    with open_to(server) as connection:
        connection.sendall(before)
        if before:
            receive(connection, OK)
        connection.sendall(sent)
        head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    problem = json.loads(body)
    assert problem["code"] == "unparsable"
    assert f"X-Request-Id: {problem['request_id']}".encode() in head
    assert b"application/problem+json" in head


SLOW = json.dumps({"source": ["transformers"] * 16, "beam_size": 4}).encode()
SLOW = WORD.replace(b"length: 18", b"length: %d" % len(SLOW)).replace(BODY, SLOW)
BROKEN = [
    b"FOO / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nno header\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01",
    WORD.replace(b"content-length: 18", b"content-length: 18\r\ncontent-length: 18"),
    WORD.replace(b"content-length: 18", b"transfer-encoding: chunked, gzip"),
    CHUNKED.replace(b"connection: close\r\n", b"") + b"5\r\nhello!\r\n",
    b"GET /%s HTTP/1.1\r\nhost: localhost\r\n\r\n" % (b"a" * 140_000),
    PROBE.replace(b"\r\n\r\n", b"\r\nx: %s\r\n\r\n" % (b"a" * 70_000)),
    CHUNKED + b"".join(chunks(b" " * 140_000, 1)),
]


@pytest.mark.parametrize("broken", BROKEN, ids=[repr(each[:50]) for each in BROKEN])
@pytest.mark.parametrize("before", [[PROBE], [WORD], [SLOW, PROBE], [PROBE, WORD, PROBE]])
@pytest.mark.parametrize("together", [True, False])
def test_requests_before_broken_bytes_are_answered(server, before, broken, together):
    """Then comes the refusal, and the end of the connection."""
    parts = [*before, broken, PROBE]
    found = answers_in(exchange(server, [b"".join(parts)] if together else parts))
    said = {PROBE: "ok", WORD: "HH IY1 D"}
    assert [status for status, _ in found] == [200] * len(before) + [400]
    for sent, (_, answered) in zip(before, found, strict=False):
        assert answered == said.get(sent, answered)


def test_more_requests_than_may_wait_cost_those_before_nothing(server):
    found = answers_in(exchange(server, [SLOW + PROBE * 200]))
    assert [status for status, _ in found] == [200] * 129 + [400]
    assert "128 requests" in found[-1][1]


def test_a_body_that_breaks_after_its_answer_gets_no_second_one(server):
    """The client would take it for the answer to its next request."""
    sent = CHUNKED.replace(b"/v1/decode", b"/nowhere").replace(b"connection: close\r\n", b"")
    with open_to(server) as connection:
        connection.sendall(sent + b"5\r\nhello\r\n")
        received = receive(connection, b"]}\n")
        connection.sendall(b"no size\r\n" + PROBE)
        with contextlib.suppress(ConnectionResetError):
            received += connection.recv(1 << 16)
    assert [status for status, _ in answers_in(received)] == [404]
