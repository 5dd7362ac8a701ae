"""Connections whose clients are idle or slow, or read nothing, end; others find room."""

import contextlib
import resource
import select
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.service.http.sockets import (
    ATTEND,
    NUMBERS,
    OK,
    PROBE,
    connect,
    post,
    receive,
    received_until_closed,
)
from tests.service.processes import running

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))
from service.__main__ import main
main()
"""
PROMPT = ["-m", "service", "--idle-timeout", "0.5", "--timeout", "1", "--keep-alive-timeout", "5"]


@pytest.fixture(scope="module")
def service():
    """A service that waits half a second for headers, five for another request, and one for all
    else; and its port."""
    with running(*PROMPT) as service:
        yield service


@contextlib.contextmanager
def sending(service, *requests):
    """A connection for each request, which has been sent before the service looks at it: however
    slow the machine is, it comes in time."""
    process, port = service
    with contextlib.ExitStack() as stack:
        process.send_signal(signal.SIGSTOP)
        try:
            clients = [stack.enter_context(connect(port)) for _ in requests]
            for client, request in zip(clients, requests, strict=True):
                client.sendall(request)
        finally:
            process.send_signal(signal.SIGCONT)
        yield clients


UNFINISHED = {  # what a client sends at once, and again and again, and the statuses that it gets
    "nothing": (b"", b"", []),
    "no second request": (PROBE, b"", [200]),
    "half a line": (b"GET /li", b"", [408]),
    "half a header": (b"GET /livez HTTP/1.1\r\nhost: ", b"", [408]),
    "a header byte by byte": (b"GET /livez HTTP/1.1\r\nhost: ", b"x", [408]),
    "empty lines": (b"", b"\r\n", [408]),
    "empty lines after a request": (PROBE, b"\r\n", [200, 408]),
    "half a line after a request": (PROBE + b"GET /li", b"", [200, 408]),
    "half a body": (post("/v1/decode", {}, 9999), b"", [408]),
    "a body byte by byte": (post("/v1/decode", {}, 9999), b" ", [408]),
    "a body that nobody reads": (post("/nowhere", {}, 9999), b" ", [404]),
}


@pytest.fixture(scope="module")
def told(service):
    """What each of these clients, which come together, is told until it is left."""
    requests, drips, _ = zip(*UNFINISHED.values(), strict=True)
    with sending(service, *requests) as clients, ThreadPoolExecutor(len(clients)) as pool:
        received = pool.map(received_until_closed, clients, drips)
        return dict(zip(UNFINISHED, received, strict=True))


@pytest.mark.parametrize("kind", UNFINISHED)
def test_a_client_that_sends_no_whole_request_is_told_so_and_left(told, kind):
    (_, drip, statuses), answers = UNFINISHED[kind], told[kind]
    found = [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]
    assert found == statuses
    if not drip and statuses == [408]:
        assert b"within 0.5 seconds" in answers or b"within 1 seconds" in answers


def test_a_connection_that_was_answered_is_kept_for_longer(service):
    """A proxy may send a request on it just when it is closed: that must not be before the proxy
    closes it. A part of a next request has no more time than that of a first."""
    with sending(service, b"", PROBE, PROBE) as (new, answered, begun):
        for each in (answered, begun):
            receive(each, OK)
        begun.sendall(PROBE[:9])
        assert new.recv(1) == b""
        assert begun.recv(1 << 16).startswith(b"HTTP/1.1 408")
        answered.sendall(PROBE)
        receive(answered, OK)
        assert answered.recv(1) == b""


BODILESS = post("/nowhere", {})[:-2]


def end_body_after_answer(client):
    """Read an answer that comes before the end of the request's body, and send this end."""
    receive(client, b'"errors":[]}\n')
    client.sendall(b"{}")


def test_a_client_that_is_answered_before_its_body_ends_is_told_nothing_more(service):
    with sending(service, BODILESS) as (client,):
        end_body_after_answer(client)
        assert client.recv(1) == b""


def test_a_client_that_is_answered_before_its_body_ends_may_ask_again(service):
    """It then has no more time for headers than others."""
    with sending(service, BODILESS) as (client,):
        end_body_after_answer(client)
        client.sendall(PROBE)
        receive(client, OK)
        client.sendall(BODILESS)
        end_body_after_answer(client)
        client.sendall(PROBE[:-1])
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 408")


def get_answer(client):
    client.sendall(PROBE)
    receive(client, OK)


def get_early_answer(client):
    client.sendall(BODILESS)
    end_body_after_answer(client)


def test_clients_that_were_answered_give_way():
    with running("-c", LIMITED.format(files=96), "--keep-alive-timeout", "600") as (_, port):
        for get in (get_answer, get_early_answer):
            with contextlib.ExitStack() as stack:
                for _ in range(50):
                    get(stack.enter_context(connect(port)))
                assert ask(port) == b"HTTP/1.1 200"


WORDS = ["transformers" * 5] * 32
UNREAD = {
    "large JSON": post("/v1/attend", ATTEND),
    "binary": post(
        "/v1/attention",
        {"source": ["a" * 63] * 32, "target": ["AH0 " * 62] * 32},
        accept="application/npz",
    ),
    "pipelined": post("/v1/attend", ATTEND | {"queries": NUMBERS[:60]}) * 20,
    "a stream": post("/v1/decode", {"source": WORDS, "top_log_probs": 20, "stream": True}),
}


UNREAD_FOR_6 = """
from service.http.server import server
Connections = server.Connections
server.Connections = lambda most, idle_timeout, _: Connections(most, idle_timeout, 6.0)
from service.__main__ import main
main()
"""


@pytest.fixture(scope="module")
def waiting_port():
    """The port of a service that waits six seconds for its clients to read, and has a minute for
    the work on large answers."""
    with running("-c", UNREAD_FOR_6) as (_, port):
        yield port


def test_answers_that_nobody_reads_are_given_up_with_their_sockets(waiting_port):
    """The client sees it as a reset: closing the socket would wait until the client reads. Each
    asks when the one before has its status, so that none waits for the work of all."""
    with contextlib.ExitStack() as stack:
        clients = {kind: stack.enter_context(connect(waiting_port, 4096)) for kind in UNREAD}
        for kind, client in clients.items():
            client.sendall(UNREAD[kind])
            assert client.recv(15, socket.MSG_PEEK) == b"HTTP/1.1 200 OK", kind
        for kind, client in clients.items():
            poll = select.poll()
            poll.register(client, 0)  # only errors and resets
            assert poll.poll(60_000), f"{kind}: the connection was kept"


@pytest.mark.long
def test_a_client_that_reads_slowly_gets_the_whole_answer(waiting_port):
    """It takes longer than the time in which it may read nothing."""
    with connect(waiting_port, buffer=4096) as client:
        client.sendall(post("/v1/attend", ATTEND))
        incoming = client.makefile("rb", buffering=1 << 16)
        assert incoming.readline() == b"HTTP/1.1 200 OK\r\n"
        length = next(int(line[15:]) for line in incoming if line.startswith(b"content-length:"))
        while incoming.readline().strip():
            pass
        assert length > 1 << 20
        rest, end = length, time.monotonic() + 8
        while rest:
            part = incoming.read(min(rest, 1 << 16))
            assert part, f"{rest} bytes are missing"
            rest -= len(part)
            if time.monotonic() < end:
                time.sleep(0.05)


def test_requests_sent_at_once_are_answered_in_order_up_to_a_limit(service):
    paths = ["/livez", "/v1/models", "/nowhere"] * 34
    request = "".join(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n" for path in paths).encode()
    with sending(service, request, PROBE * 500) as (client, other):
        answers = received_until_closed(client)
        assert received_until_closed(other).count(b"HTTP/1.1 200") < 500
    statuses = [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 200, 404] * 34


def ask(port):
    """The status of an answer on a new connection."""
    with connect(port) as client:
        client.sendall(post("/v1/decode", {"source": "heed"}))
        return client.recv(12)


@contextlib.contextmanager
def crowd(port, count, sent=b""):
    """Connections that were opened one after the other; the service may close any of them."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(port)) for _ in range(count)]
        for client in clients:
            with contextlib.suppress(ConnectionError):
                client.sendall(sent)
        yield clients


def besides_requests(log):
    return [line for line in log.splitlines() if '"event":"request"' not in line]


def test_many_idle_connections_shut_nobody_out():
    """Whether they have sent nothing or the beginning of a request."""
    patient = ["--idle-timeout", "600", "--timeout", "600"]
    with running("-c", LIMITED.format(files=96), *patient) as (process, port):
        for sent in (b"", post("/v1/decode", {}, 9999)):
            with crowd(port, 150, sent) as clients:
                assert [ask(port) for _ in range(20)] == [b"HTTP/1.1 200"] * 20
                oldest, newest = clients[0], clients[-1]
                with contextlib.suppress(ConnectionError):
                    assert oldest.recv(1) == b""
                newest.setblocking(False)
                with pytest.raises(BlockingIOError):
                    newest.recv(1)
        process.terminate()
        said, _ = process.communicate(timeout=60)
    assert len(besides_requests(said)) < 100


def test_files_that_cannot_be_opened_fill_no_log():
    """Fewer than the limit on connections was computed from."""
    with running("-m", "service", "--idle-timeout", "600") as (process, port):
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (40, 40))
        with crowd(port, 100):
            assert [ask(port) for _ in range(10)] == [b"HTTP/1.1 200"] * 10
        process.terminate()
        said, _ = process.communicate(timeout=60)
    assert len(besides_requests(said)) < 100


@pytest.mark.long
def test_thousands_of_idle_connections_shut_nobody_out():
    with running("-m", "service", "--idle-timeout", "600") as (_, port), crowd(port, 5000):
        assert [ask(port) for _ in range(50)] == [b"HTTP/1.1 200"] * 50
