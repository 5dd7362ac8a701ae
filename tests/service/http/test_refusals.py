"""Requests that are refused before the application sees them, while too many are in progress."""

import asyncio
import contextlib
import json
import re
import socket
import time
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from service.app import create_app
from service.http.messages.security import SECURITY_HEADERS
from service.http.middleware.door import Place
from service.http.middleware.metrics import RequestMetrics
from service.http.server import refusals as module
from service.http.server.protocol import NO_LINGER
from service.http.server.refusals import Refusals
from service.serving.supervisor import GONE, Supervisor
from service.settings.settings import Settings
from tests.service.http.sockets import CHUNKED, PROBE, connect, post, receive, received_until_closed
from tests.service.processes import running

WORD = post("/v1/decode", {"source": "heed"})
STRANGER = WORD.replace(b"localhost", b"example.com")
LONG = post("/v1/decode", {"source": "a" * 900_000})
LARGE = post("/v1/decode", {"source": ["a" * 60] * 256, "beam_size": 16})
MOST = 20


@pytest.fixture(scope="module")
def app():
    """The application of a service in which MOST requests are in progress."""
    app = create_app(Settings(max_requests=MOST, protocols="openai"))
    app.state.refusals = Refusals(app)
    app.state.places = [Place(app.state.service.admission) for _ in range(MOST)]
    return app


def refuse(app, target, headers=(), times=1):
    """The answers to requests that arrive together, empty if they are accepted."""

    async def ask():
        return [app.state.refusals.answer_overloaded(target, [*headers]) for _ in range(times)]

    return asyncio.run(ask())


def parse(answer):
    """The status line, the headers and the document of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    assert len(body) == int(headers["content-length"])
    return first, headers, json.loads(body)


def check_refusal(answer):
    first, headers, problem = parse(answer)
    assert first == "HTTP/1.1 429 Too Many Requests"
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    assert headers["retry-after"] == "1"
    assert headers["x-request-id"] == problem["request_id"]
    assert all(headers[name.lower()] == each.lower() for name, each in SECURITY_HEADERS.items())
    assert (problem["status"], problem["code"]) == (429, "overloaded")
    assert problem["instance"] == "/v1/decode"
    return problem


def test_a_refusal_has_the_form_of_the_protocol_of_its_path(app):
    first, headers, document = parse(*refuse(app, b"/v1/embeddings"))
    assert (first, headers["retry-after"]) == ("HTTP/1.1 429 Too Many Requests", "1")
    assert headers["content-type"] == "application/json"
    assert document["error"]["code"] == "overloaded"


@pytest.mark.parametrize("given", ["mine", "a" * 128, "0:1.2_3-4"])
def test_a_refusal_is_a_whole_answer_with_the_request_id(app, given):
    answers = refuse(app, b"/v1/decode", [(b"x-request-id", given.encode())])
    assert check_refusal(*answers)["request_id"] == given


@pytest.mark.parametrize("given", [b"a b", b"<x>", b"a" * 129, b"\xff", b"~", b""])
def test_an_id_that_is_not_safe_is_replaced(app, given):
    answers = refuse(app, b"/v1/decode", [(b"x-request-id", given)], 2)
    ids = [check_refusal(each)["request_id"] for each in answers]
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)
    assert ids[0] != ids[1]


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        (b"/v1/decode?a=1", []),
        (b"/nowhere", []),
        (b"/v1/models", []),
        (b"/v1/models/first/unload", []),
        (b"http://localhost/v1/decode", []),
        (b"/v1/decode", [(b"origin", b"https://example.org")]),
        (b"/v1/decode", [(b"host", b"example.com")]),
    ],
)
def test_all_but_plain_requests_for_known_paths_are_left_to_the_application(app, target, headers):
    assert refuse(app, target, headers) == [b""]


def test_of_many_that_arrive_together_as_many_are_accepted_as_there_is_room_for(app):
    for place in app.state.places[:3]:
        place.leave()
    answers = refuse(app, b"/v1/decode", times=10)
    assert [bool(each) for each in answers] == [False] * 3 + [True] * 7
    assert refuse(app, b"/v1/decode") == [b""]  # in the next turn of the event loop
    app.state.places += [Place(app.state.service.admission) for _ in range(3)]


@contextlib.contextmanager
def arrived(data):
    """The ends of a connection that has sent `data`."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        yield ours, theirs


def turn_away(app, *connections):
    """Which of the connections that arrive together are turned away."""

    async def ask():
        return [app.state.refusals.turn_away(each) for each in connections]

    return asyncio.run(ask())


def test_a_new_connection_is_answered_and_closed_before_it_is_set_up(app):
    with arrived(WORD) as (ours, theirs):
        assert turn_away(app, theirs) == [True]
        check_refusal(received_until_closed(ours))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        PROBE,
        STRANGER,
        WORD[:-1],
        WORD.replace(b"/decode", b"/nowhere"),
        WORD.replace(b"host:", b"origin: https://example.org\r\nhost:"),
        WORD.replace(b"HTTP/1.1", b"HTTP/1.2"),
        WORD.replace(b"host:", b"ghost:"),
        WORD.replace(b"host:", b"upgrade: h2c\r\nconnection: upgrade\r\nhost:"),
        WORD + b"\0",
        CHUNKED + b"no size\r\n",
        LARGE,
    ],
)
def test_a_connection_without_a_whole_and_plain_request_keeps_its_bytes(app, data):
    with arrived(data) as (ours, theirs):
        assert turn_away(app, theirs) == [False]
        ours.sendall(b"more")
        assert theirs.recv(1 << 16) == data + b"more"
    assert not app.state.refusals.expected


def test_of_many_that_connect_together_as_many_are_accepted_as_there_is_room_for(app):
    with contextlib.ExitStack() as stack:
        coming = [stack.enter_context(arrived(WORD))[1] for _ in range(10)]
        for _ in range(3):
            app.state.places.pop().leave()
        assert turn_away(app, *coming) == [False] * 3 + [True] * 7
        app.state.places += [Place(app.state.service.admission) for _ in range(3)]
        app.state.refusals.expected.clear()  # as if they had been read


def test_refusals_are_counted_one_by_one_and_logged_together(app, monkeypatch):
    monkeypatch.setattr(module, "LOG_EVERY", 0.0)
    monkeypatch.setattr(app.state.service, "metrics", RequestMetrics())

    async def ask():
        refusals, later = Refusals(app), asyncio.Event()
        for _ in range(500):
            refusals.answer_overloaded(b"/v1/decode", [])
        asyncio.get_running_loop().call_later(0.0, later.set)
        await later.wait()

    with capture_logs() as logged:
        asyncio.run(ask())
    line = {"event": "requests refused", "log_level": "warning", "status": 429}
    assert logged == [{**line, "count": 500, "code": "overloaded"}]
    count = app.state.service.metrics.registry.get_sample_value
    assert count("heed_requests_total", {"code": "429", "route": "/v1/decode"}) == 500
    assert count("heed_rejected_total", {"reason": "overloaded"}) == 500


@pytest.mark.parametrize("reported", [True, False])
@pytest.mark.parametrize("inside", [15, 16])
def test_a_report_of_the_engine_is_enough_while_many_are_in_progress(
    client, monkeypatch, inside, reported
):
    """A new one comes too late."""
    monkeypatch.setattr("service.api.endpoints.models.STATUS_TIMEOUT", 0)
    monkeypatch.setattr(client.app.state.service.admission, "inside", inside)
    report = replace(GONE, ready=reported)
    latest = property(lambda self: report, lambda self, later: None)
    monkeypatch.setattr(Supervisor, "reported", latest, raising=False)
    status = 200 if reported and inside == 16 else 503
    assert client.get("/readyz").status_code == status


# However slow the machine is, large requests do not come too late, and no connection is idle.
PATIENT = ["-m", "service", "--max-requests", str(MOST), "--timeout", "3600"]
PATIENT += ["--idle-timeout", "600"]


@pytest.fixture(scope="module")
def port():
    """The port of a service that answers at most MOST requests at once."""
    with running(*PATIENT) as (_, port):
        yield port


@contextlib.contextmanager
def in_progress(port, count):
    """Large requests that are being computed."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(connect(port)).sendall(LARGE)
        yield stack


def ask(port, request):
    with connect(port) as client:
        client.sendall(request)
        return client.recv(1 << 16)


def leave(port, request):
    """Send a request, and reset the connection at once."""
    with connect(port) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        client.sendall(request)


def ask_until_refused(port, large):
    """Send words until the requests before them have come, and to the stack `large` another large
    one after each answer: one of an earlier test may have had the place of one of these."""
    end = time.monotonic() + 60
    while not ask(port, WORD).startswith(b"HTTP/1.1 429"):
        assert time.monotonic() < end, "nothing was refused"
        large.enter_context(connect(port)).sendall(LARGE)


def test_a_full_service_refuses_on_new_and_on_kept_connections_and_answers_others(port):
    probes = [PROBE, PROBE.replace(b"/livez", b"/readyz")]
    with connect(port) as kept:
        kept.sendall(PROBE)
        receive(kept, b'{"status":"ok"}\n')
        with in_progress(port, MOST) as large:
            ask_until_refused(port, large)
            with connect(port) as new:
                new.sendall(WORD)
                check_refusal(received_until_closed(new))
            kept.sendall(WORD)
            check_refusal(received_until_closed(kept))
            with connect(port) as new:
                for probe in probes:
                    new.sendall(probe)
                    receive(new, b'{"status":"ok"}\n')
            assert ask(port, STRANGER).startswith(b"HTTP/1.1 421")


@pytest.mark.parametrize(
    "parts",
    [
        [WORD + WORD],
        [WORD + PROBE],
        [WORD[:-9], WORD[-9:]],
        [LONG[:1000], LONG[1000:] + WORD],
        [CHUNKED + b"5\r\nhello\r\n", b"no size\r\n"],
        [CHUNKED + b"no size\r\n"],
    ],
    ids=["two", "a probe after", "two segments", "a long body", "a broken body", "a broken one"],
)
def test_one_answer_is_read_however_a_refused_request_goes_on(port, parts):
    """A client that was reset while it sent could not read the answer."""
    with in_progress(port, MOST) as large:
        ask_until_refused(port, large)
        with connect(port) as client:
            client.sendall(parts[0])
            answer = client.recv(1 << 16)
            for part in parts[1:]:
                client.sendall(part)
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""
        check_refusal(answer)


@pytest.mark.parametrize(
    ("begin", "rest"),
    [
        (LONG[:1000], LONG[1000:]),
        (CHUNKED + b"0\r\na: ", b"x" * (64 << 10)),
        (CHUNKED, b"no size\r\n"),
    ],
    ids=["a whole body", "an endless trailer", "a broken chunk"],
)
def test_a_connection_closes_when_a_refused_request_is_read_or_cannot_be(port, begin, rest):
    with in_progress(port, MOST) as large:
        ask_until_refused(port, large)
        with connect(port) as client:
            client.sendall(begin)
            check_refusal(client.recv(1 << 16))
            client.sendall(rest)
            assert client.recv(1) == b""


def test_requests_that_are_refused_for_another_reason_take_no_places():
    """In a service of its own: those of the tests before have not all left when a word is taken."""
    with (
        running(*PATIENT) as (_, port),
        in_progress(port, MOST - 2),
        contextlib.ExitStack() as kept,
    ):
        for _ in range(3 * MOST):
            client = kept.enter_context(connect(port))
            client.sendall(STRANGER)
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 421")
            leave(port, STRANGER)
        assert ask(port, WORD).startswith(b"HTTP/1.1 200")
