"""The bytes of a request that are no body are bounded, and what is no request is refused."""

import json
import socket
from urllib.parse import urlsplit

import pytest

from service.http.protocol import MOST_HEADERS

BODY = b'{"source": "heed"}'
HEAD = (
    b"POST /v1/decode HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    b"content-type: application/json\r\n"
)
OK = b'{"status":"ok"}'
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


def answer(server, parts):
    """Send bytes, and return the status line that is answered."""
    return exchange(server, parts).partition(b"\r\n")[0]


def exchange(server, parts):
    """Send bytes, and return all that is answered until the connection ends."""
    address = urlsplit(server)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the service has answered and closed
        received = b""
        try:
            while data := connection.recv(1 << 16):
                received += data
        except ConnectionResetError:
            pass  # it closed before all was sent
        return received


def chunks(body, size):
    for start in range(0, len(body), size):
        part = body[start : start + size]
        yield b"%x\r\n%s\r\n" % (len(part), part)


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
@pytest.mark.parametrize("before", [b"", b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"])
def test_what_is_no_request_gets_a_problem_document(server, before, sent):
    """On a new connection, and after an answer on the same."""
    address = urlsplit(server)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        reader = connection.makefile("rb")
        connection.sendall(before)
        if before:
            while reader.readline() != b"\r\n":
                pass
            assert reader.read(len(OK)) == OK
        connection.sendall(sent)
        head, _, body = reader.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    problem = json.loads(body)
    assert problem["code"] == "unparsable"
    assert f"X-Request-Id: {problem['request_id']}".encode() in head
    assert b"application/problem+json" in head
