"""A client may close its own side after its requests and still read the answers."""

import socket

import pytest

from tests.service.http.sockets import (
    BODY,
    CHUNKED,
    END,
    OK,
    PROBE,
    WORD,
    answers_in,
    chunks,
    count_left,
    exchange,
    open_to,
    post,
    receive,
)
from tests.waiting import wait_until

DECODED, ALIVE = (200, "HH IY1 D"), (200, "ok")
OLD = WORD.replace(b"HTTP/1.1", b"HTTP/1.0")
LONG = {"source": ["transformers"] * 16, "beam_size": 8, "min_new_tokens": 40}
LONGEST = {"source": ["transformers"] * 64, "beam_size": 32, "min_new_tokens": 60}


def decode(body, **more):
    return post("/v1/decode", {**body, **more})


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([WORD], [DECODED]),
        ([WORD[:-5], WORD[-5:]], [DECODED]),
        ([PROBE], [ALIVE]),
        ([OLD], [DECODED]),
        ([CHUNKED, *chunks(BODY, 5), b"0\r\n\r\n"], [DECODED]),
        ([WORD, PROBE, WORD], [DECODED, ALIVE, DECODED]),
        ([PROBE, WORD[:-1]], [ALIVE]),
        ([PROBE, PROBE[:-1]], [ALIVE]),
        ([WORD[:-1]], []),
        ([WORD[:30]], []),
        ([], []),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_whole_requests_are_answered(server, parts, expected, together):
    sent = [b"".join(parts)] if together else parts
    assert answers_in(exchange(server, sent, half_close=True)) == expected


@pytest.mark.parametrize("before", [[], [PROBE]])
def test_a_slow_answer_arrives_whole(server, before):
    found = answers_in(exchange(server, [*before, decode(LONG)], half_close=True))
    assert [status for status, _ in found] == [200] * (len(before) + 1)


def test_a_stream_arrives_whole(server):
    received = exchange(server, [decode(LONG, stream=True)], half_close=True)
    assert b"event: done" in received
    assert received.endswith(b"\r\n0\r\n\r\n")


def test_a_kept_connection_is_answered_again_before_it_ends(server):
    with open_to(server) as connection:
        connection.sendall(WORD)
        assert answers_in(receive(connection, END)) == [DECODED]
        connection.sendall(WORD)
        connection.shutdown(socket.SHUT_WR)
        assert answers_in(receive(connection, END)) == [DECODED]
        assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("sent", "reads"),
    [
        (decode(LONGEST), b""),
        (decode(LONGEST).replace(b"HTTP/1.1", b"HTTP/1.0"), b""),
        (decode(LONGEST, stream=True), b"event: "),
    ],
    ids=["before the answer", "HTTP/1.0", "in a stream"],
)
@pytest.mark.parametrize("first", [True, False])
def test_the_work_for_a_client_that_left_is_given_up(server, sent, reads, first):
    """On a new connection, and on one that was answered before."""
    before = count_left(server)
    with open_to(server) as connection:
        if not first:
            connection.sendall(PROBE)
            assert answers_in(receive(connection, OK)) == [ALIVE]
        connection.sendall(sent)
        received = b""
        while reads not in received:
            received += connection.recv(1 << 16)
    wait_until(lambda: count_left(server) > before)
