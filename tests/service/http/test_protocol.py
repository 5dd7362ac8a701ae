"""The bytes of a request that are no body are bounded."""

import socket
from urllib.parse import urlsplit

import pytest

BODY = b'{"source": "heed"}'
HEAD = (
    b"POST /v1/decode HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    b"content-type: application/json\r\n"
)
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


def answer(server, parts):
    """Send bytes, and return the status line that is answered."""
    address = urlsplit(server)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the service has answered and closed
        return connection.makefile("rb").readline()


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
