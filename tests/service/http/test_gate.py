"""Requests that are refused by their first bytes, while too many are in progress."""

import asyncio
import contextlib
import json
import re
import time
from functools import partial

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from service.api.protocols import openai
from service.http.limits.admission import Admission, Place
from service.http.limits.record import Record
from service.http.messages.security import SECURITY_HEADERS
from service.http.middleware.door import Door
from service.http.middleware.hosts import LOCAL, allows
from service.http.middleware.metrics import RequestMetrics
from service.http.server import gate as gate_module
from service.http.server.gate import ACCEPTED, Gate
from tests.service.http.sockets import APP, PROBE, connect, post, received_until_closed
from tests.service.processes import running

WORD = post("/v1/decode", {"source": "heed"})
LARGE = post("/v1/decode", {"source": ["a" * 60] * 256, "beam_size": 16})
MOST = 20


def with_header(name, value):
    return WORD.replace(b"host: localhost", b"host: localhost\r\n%s: %s" % (name, value))


def closed_gate(most=MOST):
    """A gate before a service in which `most` requests are in progress."""
    admission = Admission(most, 60.0)
    probes = {"/livez": partial(allows, LOCAL), "/readyz": lambda _: False}
    gate = Gate(admission, RequestMetrics(), ["/v1/decode", "/v1/score"], probes)
    places = [Place(admission) for _ in range(most)]
    return gate, places


def judge_all(gate, requests):
    async def judge():
        return [gate.judge(each) for each in requests]

    return asyncio.run(judge())


def parse(answer):
    """Return the status line, the headers and the document of an answer."""
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


def test_a_refusal_has_the_form_of_the_protocol_of_its_path():
    gate = Gate(Admission(MOST, 60.0), RequestMetrics(), ["/v1/embeddings"], {}, [openai.ERRORS])
    places = [Place(gate.admission) for _ in range(MOST)]
    (verdict,) = judge_all(gate, [post("/v1/embeddings", {"input": "heed"})])
    first, headers, document = parse(verdict.answer)
    assert (first, headers["retry-after"]) == ("HTTP/1.1 429 Too Many Requests", "1")
    assert headers["content-type"] == "application/json"
    assert document["error"]["code"] == "overloaded"
    assert len(places) == gate.admission.inside


@pytest.mark.parametrize("given", ["mine", "a" * 128, "0:1.2_3-4"])
def test_a_refusal_is_a_whole_answer_with_the_request_id(given):
    gate, _ = closed_gate()
    (verdict,) = judge_all(gate, [with_header(b"X-Request-Id", given.encode())])
    assert check_refusal(verdict.answer)["request_id"] == given.lower()


@pytest.mark.parametrize("given", [b"a b", b"<x>", b"a" * 129, b"\xff", b""])
def test_an_id_that_is_not_safe_is_replaced(given):
    gate, _ = closed_gate()
    verdicts = judge_all(gate, [with_header(b"x-request-id", given)] * 2)
    ids = [check_refusal(verdict.answer)["request_id"] for verdict in verdicts]
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)
    assert ids[0] != ids[1]


@pytest.mark.parametrize(
    "sent",
    [
        WORD[:-1],
        WORD + b" ",
        WORD + WORD,
        WORD[: WORD.index(b"\r\n\r\n")],
        WORD.replace(b"/v1/decode", b"/v1/decode?a=1"),
        WORD.replace(b"/v1/decode", b"/nowhere"),
        WORD.replace(b"POST", b"PUT"),
        re.sub(rb"content-length: \d+", b"transfer-encoding: chunked", WORD),
        with_header(b"Origin", b"https://example.org"),
        b"POST /v1/decode",
        b"",
    ],
)
def test_all_but_whole_requests_for_known_paths_are_left_to_the_door(sent):
    gate, _ = closed_gate()
    assert judge_all(gate, [sent]) == [ACCEPTED]


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"accept: */*\r\n",
        b"Accept-Encoding: gzip\r\n",
        b"User-Agent: kube-probe/1.30\r\nAccept:*/*\r\nConnection: close\r\n",
        b"x-forwarded-for: 10.0.0.1\r\nX-Real-IP: 10.0.0.1\r\n",
    ],
)
@pytest.mark.parametrize("host", [b"localhost", b"LocalHost:8000", b"10.0.0.1", b" [::1]:80 "])
def test_a_probe_of_a_healthy_service_is_answered_and_counted(header, host):
    gate, _ = closed_gate()
    probe = PROBE.replace(b"localhost", host)
    (verdict,) = judge_all(gate, [probe[:-2] + header + b"\r\n"])
    first, headers, document = parse(verdict.answer)
    assert (first, document) == ("HTTP/1.1 200 OK", {"status": "ok"})
    assert all(headers[name.lower()] == each.lower() for name, each in SECURITY_HEADERS.items())
    counted = generate_latest(gate._metrics.registry).decode()
    assert 'heed_requests_total{code="200",route="/livez"} 1.0' in counted


@pytest.mark.parametrize(
    "sent",
    [
        PROBE.replace(b"/livez", b"/readyz"),  # it is not ready: the application says why
        PROBE.replace(b"/livez", b"/livez?a=1"),
        PROBE.replace(b"/livez", b"/metrics"),
        PROBE.replace(b"GET", b"HEAD"),
        PROBE.replace(b"HTTP/1.1", b"HTTP/3"),
        PROBE.replace(b"HTTP/1.1", b"HTTP/1.0"),
        PROBE.replace(b" HTTP/1.1", b""),
        PROBE.replace(b"GET", b"get"),
        PROBE.replace(b"localhost", b"evil.example"),
        PROBE.replace(b"localhost", b"localhost.evil.example"),
        PROBE.replace(b"localhost", b"localhost, evil.example"),
        PROBE.replace(b"localhost", b"local\xffhost"),
        PROBE.replace(b"localhost", b""),
        PROBE.replace(b"host:", b"host :"),
        PROBE.replace(b"host: localhost\r\n", b""),
        PROBE.replace(b"host: localhost\r\n", b"host: localhost\r\nHOST: localhost\r\n"),
        PROBE.replace(b"host: localhost\r\n", b"host: localhost\n"),
        PROBE.replace(b"/livez", b"http://evil.example/livez"),
        PROBE[:-2],
        PROBE + PROBE,
        PROBE + b" ",
        b"\r\n" + PROBE,
        *(
            PROBE[:-2] + header + b"\r\n\r\n"
            for header in (
                b"Accept: text/html",
                b"accept:*/*, text/html",
                b"Origin: https://example.org",
                b"Content-Length: 0",
                b"X-Request-Timeout: none",
                b"Transfer-Encoding: chunked",
                b"Connection: upgrade\r\nUpgrade: websocket",
                b"no header",
                b": no name",
                b"accept : */*",
                b"user-agent: a\x00b",
                b"user-agent: a\rb",
                b"user-agent: a\nb",
                b"user-agent: a\r\n b",
                b"user-agent: \xff",
                b"host: localhost",
            )
        ),
    ],
)
def test_all_but_plain_probes_of_a_healthy_service_are_left_to_the_application(sent):
    gate, _ = closed_gate()
    assert judge_all(gate, [sent]) == [ACCEPTED]


def test_of_many_that_arrive_together_as_many_are_accepted_as_there_is_room_for():
    gate, places = closed_gate()
    for place in places[:3]:
        place.leave()
    verdicts = judge_all(gate, [WORD] * 10)
    assert [bool(verdict.answer) for verdict in verdicts] == [False] * 3 + [True] * 7
    for verdict in verdicts[:3]:
        verdict.place.leave()
        verdict.place.leave()
    assert gate.admission.inside == MOST - 3


def test_refusals_are_counted_one_by_one_and_logged_together(monkeypatch):
    monkeypatch.setattr(gate_module, "LOG_EVERY", 0.0)
    gate, _ = closed_gate()

    async def refuse():
        for _ in range(500):
            gate.judge(WORD)
        await asyncio.sleep(0.001)  # the line is written by a timer of no delay

    with capture_logs() as lines:
        asyncio.run(refuse())
    assert lines == [
        {
            "event": "requests refused",
            "log_level": "warning",
            "count": 500,
            "status": 429,
            "code": "overloaded",
        }
    ]
    counted = generate_latest(gate._metrics.registry).decode()
    assert 'heed_requests_total{code="429",route="/v1/decode"} 500.0' in counted
    assert 'heed_rejected_total{reason="overloaded"} 500.0' in counted


def test_a_place_does_not_excuse_from_a_shorter_time_limit():
    """Eighteen in progress take 18 seconds; the gate knows only the limit of all requests."""
    now = 0.0
    admission = Admission(MOST, 60.0, clock=lambda: now)
    places = [Place(admission) for _ in range(17)]
    for _ in range(32):
        now += 1
        places.append(Place(admission))
        places.pop(0).leave(completed=True)
    place = Place(admission)
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/decode", "query_string": b""}
    scope["headers"] = [(b"x-request-timeout", b"5")]
    scope["state"] = {"place": place, "request_id": "mine", "record": Record()}
    scope["app"] = APP
    asyncio.run(Door(None, admission)(scope, None, send))
    assert sent[0]["status"] == 429


@pytest.fixture(scope="module")
def service():
    """The process and the port of a service that answers at most MOST requests at once."""
    with running("-m", "service", "--max-requests", str(MOST)) as found:
        yield found


@contextlib.contextmanager
def in_progress(port, count):
    """Large requests that are being computed."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(connect(port)).sendall(LARGE)
        yield


def ask(port, request):
    with connect(port) as client:
        client.sendall(request)
        return client.recv(1 << 16)


def probe(client, request):
    client.sendall(request)
    answer = b""
    while not answer.endswith(b'{"status":"ok"}'):
        answer += client.recv(1 << 16)
    return answer


def ask_until(port, status):
    """Send words until the requests before them have come, or gone."""
    end = time.monotonic() + 30
    while not ask(port, WORD).startswith(b"HTTP/1.1 %d" % status):
        assert time.monotonic() < end, f"nothing was answered with {status}"


def test_a_full_service_refuses_on_new_and_on_kept_connections_and_answers_probes(service):
    _, port = service
    probes = [PROBE, PROBE.replace(b"/livez", b"/readyz")]
    with connect(port) as kept:
        quiet = [probe(kept, each) for each in probes]
        with in_progress(port, MOST):
            ask_until(port, 429)
            with connect(port) as new:
                new.sendall(WORD)
                check_refusal(received_until_closed(new, b""))
            kept.sendall(WORD)
            check_refusal(received_until_closed(kept, b""))
            busy = []
            for each in probes:
                with connect(port) as new:
                    busy.append(probe(new, each))
    for before, answer in zip(quiet, busy, strict=True):
        first, headers, document = parse(before)
        assert first == "HTTP/1.1 200 OK"
        own = {"x-request-id": "", "date": "", "connection": ""}  # may differ
        assert parse(answer)[0::2] == (first, document)
        assert parse(answer)[1] | own == headers | own


def test_requests_that_are_refused_for_another_reason_leave_their_places(service):
    """The gate gives each a place before the Host is checked."""
    _, port = service
    ask_until(port, 200)
    with in_progress(port, MOST - 2):
        for _ in range(3 * MOST):
            stranger = ask(port, WORD.replace(b"localhost", b"example.com"))
            assert stranger.startswith(b"HTTP/1.1 421")
        assert ask(port, WORD).startswith(b"HTTP/1.1 200")
