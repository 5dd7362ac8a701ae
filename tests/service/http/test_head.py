"""An upgrade that is not wanted is ignored, and a head that is not HTTP/1.1 is refused."""

import random
import re
from itertools import pairwise

import pytest
from httptools import HttpRequestParser

from service.errors import Unparsable
from service.http.server.head import Parser, check_head
from tests.service.http.sockets import BODY, END, PROBE, answers_in, exchange, open_to, receive

JAVA = (  # HttpClient of JDK 17, POST with its defaults
    b"POST /v1/decode HTTP/1.1\r\n"
    b"Connection: Upgrade, HTTP2-Settings\r\n"
    b"Content-Length: 18\r\n"
    b"Host: localhost:8000\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\n"
    b"Upgrade: h2c\r\n"
    b"User-Agent: Java-http-client/17.0.15\r\n"
    b"content-type: application/json\r\n"
    b"\r\n"
)
CURL = (  # curl 7.88 --http2 --json
    b"POST /v1/decode HTTP/1.1\r\n"
    b"Host: localhost:8000\r\n"
    b"User-Agent: curl/7.88.1\r\n"
    b"Connection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
    b"Content-Type: application/json\r\n"
    b"Accept: application/json\r\n"
    b"Content-Length: 18\r\n"
    b"\r\n"
)
PLAIN = (
    b"POST /v1/decode HTTP/1.1\r\n"
    b"Host: localhost\r\n"
    b"Content-Type: application/json\r\n"
    b"Content-Length: 18\r\n"
    b"\r\n"
)
CHUNKED = PLAIN.replace(b"Content-Length: 18", b"Transfer-Encoding: chunked")
CHUNKS = b"5;a=b\r\n" + BODY[:5] + b"\r\nd\r\n" + BODY[5:] + b"\r\n0\r\nX-Trailer: 1\r\n\r\n"
FRAMINGS = ["length", "chunks"]
MATTERS = [  # headers of RFC 9110 and 9112 on connections, messages and their ends, and Java's
    b"Connection: Upgrade\r\nUpgrade: h2c",
    b"Upgrade: h2c\r\nConnection: upgrade",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
    b"Connection: HTTP2-Settings\r\nConnection: Upgrade\r\nUpgrade: h2c",
    b"Connection: keep-alive, UPGRADE\r\nUPGRADE: HTTP/2.0, SHTTP/1.3, IRC/6.9, RTA/x11",
    b"Connection: Upgrade\r\nUpgrade: TLS/1.0\r\nUpgrade: h2c",
    b"Connection: Upgrade\r\nUpgrade:",
    b"Connection: Upgrade\r\nUpgrade: xwebsocket",
    b"Proxy-Connection: Upgrade\r\nUpgrade: h2c",
    b"Connection: Upgrade",
    b"Upgrade: h2c",
    b"Upgrade: websocket",
    b"Connection: keep-alive",
    b"Keep-Alive: timeout=5, max=1000",
    b"Proxy-Connection: keep-alive",
    b"TE: trailers, deflate;q=0.5",
    b"Connection: TE\r\nTE: chunked",
    b"Trailer: X-Trailer",
    b"Content-Encoding: identity",
    b"Content-Range: bytes 0-1/2",
    b"Range: bytes=0-1",
    b"Max-Forwards: 0",
    b"Via: 1.0 a, 1.1 b",
    b"HTTP2-Settings: AAMAAABk",
    b"Expect: 200-maybe",
]


class Events:
    """What a parser says of requests; each byte of a body by itself, however it was received."""

    def __init__(self, parser):
        self.found, self.url, self.headers = [], b"", []
        self.parser = parser(self)

    def on_message_begin(self):
        self.url, self.headers = b"", []

    def on_url(self, url):
        self.url += url

    def on_header(self, name, value):
        self.headers.append((name.lower(), value))

    def on_headers_complete(self):
        if not self.parser.should_upgrade():
            headers = [each for each in self.headers if each[0] != b"upgrade"]
            self.found += [self.parser.get_method(), self.url, *headers]

    def on_body(self, body):
        self.found += body

    def on_message_complete(self):
        if not self.parser.should_upgrade():
            self.found.append("complete")


def events_of(parser, *parts):
    events = Events(parser)
    for part in parts:
        events.parser.feed_data(part)
    return events.found


@pytest.mark.parametrize("head", [JAVA, CURL], ids=["Java", "curl"])
def test_an_upgrade_changes_nothing_wherever_a_segment_ends(head):
    """httptools itself says what the same requests without Upgrade are."""
    sent = head + BODY + PROBE + head.replace(b"h2c", b"TLS/1.0, h2c") + BODY
    expected = events_of(HttpRequestParser, re.sub(rb"Upgrade: .*\r\n", b"", sent))
    assert expected.count("complete") == 3
    for end in range(len(sent)):
        assert events_of(Parser, sent[:end], sent[end:]) == expected
    assert events_of(Parser, *(sent[i : i + 1] for i in range(len(sent)))) == expected


@pytest.mark.parametrize("method", [b"PUT", b"GET", b"DELETE", b"OPTIONS", b"PATCH"])
@pytest.mark.parametrize(("head", "body"), [(PLAIN, BODY), (CHUNKED, CHUNKS)], ids=FRAMINGS)
def test_a_request_of_no_method_ends_at_an_upgrade(method, head, body):
    plain = head.replace(b"POST", method) + body
    upgrade = plain.replace(b"Host", b"Upgrade: h2c\r\nConnection: Upgrade\r\nHost")
    added = [(b"connection", b"Upgrade")]
    expected = events_of(HttpRequestParser, plain * 2)
    found = events_of(Parser, upgrade * 2)
    assert [each for each in found if each not in added] == expected


@pytest.mark.parametrize(
    "upgrade", [b"Upgrade", b"close, Upgrade", b"Upgrade\r\nConnection: close"]
)
@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
@pytest.mark.parametrize(("head", "body"), [(PLAIN, BODY), (CHUNKED, CHUNKS)], ids=FRAMINGS)
def test_the_last_request_of_a_connection_may_offer_an_upgrade(
    server, upgrade, version, head, body
):
    """The parser then expects no more requests, and must still read the body."""
    offer = b"Upgrade: h2c\r\nConnection: %s\r\nHost" % upgrade
    head = head.replace(b"Host", offer).replace(b"HTTP/1.1", version)
    for parts in ([head + body], [head, body], [head[:-2], b"\r\n" + body]):
        found = answers_in(exchange(server, parts, half_close=version == b"HTTP/1.1"))
        assert found == [(200, "HH IY1 D")]


@pytest.mark.parametrize("header", MATTERS)
@pytest.mark.parametrize(("head", "body"), [(PLAIN, BODY), (CHUNKED, CHUNKS)], ids=FRAMINGS)
def test_a_body_is_read_whatever_the_headers(server, header, head, body):
    """Alone and before another request, in one and in several segments."""
    head = head.replace(b"Host", header + b"\r\nHost")
    decoded, alive = (200, "HH IY1 D"), (200, "ok")
    pieces = random.Random(0).choices(range(1, len(head + body + PROBE)), k=5)
    for segments in ([], [len(head)], [len(head) - 2], sorted(pieces)):
        for sent, expected in ((head + body, [decoded]), (head + body + PROBE, [decoded, alive])):
            places = [0, *segments, len(sent)]
            parts = [sent[a:b] for a, b in pairwise(places)]
            assert answers_in(exchange(server, parts, half_close=True)) == expected


@pytest.mark.parametrize("head", [JAVA, CURL], ids=["Java", "curl"])
def test_the_requests_of_java_and_curl_are_answered_on_a_kept_connection(server, head):
    with open_to(server) as connection:
        for parts in ([head + BODY], [head, BODY], [head + BODY[:1], BODY[1:]]):
            for part in parts:
                connection.sendall(part)
            assert answers_in(receive(connection, END)) == [(200, "HH IY1 D")]


def test_a_body_is_asked_for_despite_an_upgrade(server):
    """As curl does before it sends a large one."""
    with open_to(server) as connection:
        connection.sendall(CURL.replace(b"Accept", b"Expect: 100-continue\r\nAccept"))
        assert receive(connection, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert answers_in(receive(connection, END)) == [(200, "HH IY1 D")]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", "CONNECT is for proxies"),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", "CONNECT is"),
        *(
            (
                b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\n"
                b"Upgrade: %s\r\nSec-WebSocket-Version: 13\r\n\r\n" % name,
                "websockets are not supported",
            )
            for name in (
                b"websocket",
                b"WebSocket",
                b"h2c , websocket",
                b"h2c\r\nUpgrade: websocket",
            )
        ),
    ],
)
def test_another_protocol_gets_an_answer_and_the_end(server, sent, said):
    """What follows is not HTTP, however much it looks like it."""
    (status, detail), *more = answers_in(exchange(server, [sent + PROBE]))
    assert (status, more) == (400, [])
    assert said in detail
    assert answers_in(exchange(server, [PROBE + sent, PROBE])) == [(200, "ok"), (400, detail)]


HOST = [(b"host", b"localhost")]


@pytest.mark.parametrize(
    ("version", "target", "headers"),
    [
        ("1.1", b"/livez", HOST),
        ("1.0", b"/livez", HOST),
        ("1.0", b"/livez", []),
        ("1.1", b"*", HOST),
        ("1.1", b"http://localhost/livez", HOST),
        ("1.1", b"HTTP://LocalHost:80/", [(b"host", b"localhost:80")]),
        ("1.1", b"http://localhost:80/", HOST),
        ("1.1", b"http://localhost:/", HOST),
        ("1.1", b"http://localhost/", [(b"host", b"localhost:80")]),
        ("1.1", b"HTTPS://[::1]:443/", [(b"host", b"[::1]")]),
        ("1.1", b"//evil.example/livez", HOST),
        ("1.1", b"/http://evil.example/", HOST),
    ],
)
def test_a_request_for_one_host_passes(version, target, headers):
    check_head(version, target, headers)


@pytest.mark.parametrize(
    ("version", "target", "headers", "said"),
    [
        ("1.1", b"/livez", [], "no Host header"),
        ("1.1", b"http://localhost/", [], "no Host header"),
        ("1.1", b"/livez", HOST * 2, "2 Host headers"),
        ("1.0", b"/livez", HOST * 3, "3 Host headers"),
        ("1.1", b"http://evil.example/livez", HOST, "http://evil.example/livez"),
        ("1.0", b"https://localhost@evil.example/", HOST, "send the path alone"),
        ("1.1", b"http://localhost:81/", HOST, "send the path alone"),
        ("1.1", b"http://localhost:443/", HOST, "send the path alone"),
        ("1.1", b"https://localhost:80/", HOST, "send the path alone"),
        ("1.1", b"ws://localhost:80/", HOST, "send the path alone"),
        ("1.1", b"http://localhost:8080/", [(b"host", b"localhost:80")], "send the path alone"),
        ("1.1", b"http://localhost", HOST, "send the path alone"),
        ("1.1", b"http://localhost?/", HOST, "send the path alone"),
        ("0.9", b"/livez", HOST, "HTTP/1.1"),
        ("2.0", b"/livez", HOST, "HTTP/1.1"),
    ],
)
def test_a_request_for_no_host_or_several_is_refused(version, target, headers, said):
    with pytest.raises(Unparsable, match=re.escape(said)):
        check_head(version, target, headers)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nhost: localhost\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n\r\n",
        b"GET http://evil.example/livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /livez\r\n\r\n",
        b"GET /livez\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/0.9\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/2.0\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost:\r\n localhost\r\n\r\n",
        PLAIN.replace(b"Host: localhost\r\n", b"") + BODY,
        PLAIN.replace(b"Host", b"Host: a\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nHost") + BODY,
    ],
)
def test_such_requests_get_400_and_the_end_of_their_connection(server, sent):
    statuses = [status for status, _ in answers_in(exchange(server, [sent + PROBE]))]
    assert statuses == [400]


def test_http_1_0_needs_no_host(server):
    assert answers_in(exchange(server, [b"GET /livez HTTP/1.0\r\n\r\n"])) == [(200, "ok")]


@pytest.mark.parametrize(
    "name", [b"Host: evil.example", b"X-Request-Timeout: none", b"Accept: a/b"]
)
def test_trailers_are_not_headers(server, name):
    """A client that may add trailers may not change what a proxy has checked."""
    body = CHUNKS.replace(b"X-Trailer: 1", name)
    assert answers_in(exchange(server, [CHUNKED + body], half_close=True)) == [(200, "HH IY1 D")]
