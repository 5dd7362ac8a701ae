"""Requests leave nothing to the garbage collector: `collect_rarely` lets it run rarely."""

import asyncio
import gc
import json
import signal
import socket
import weakref

import httpx2
import pytest

from service.api.reading.call import answer_or_note
from service.api.reading.faults import Faults
from service.errors import PassFailed
from service.memory import YOUNG, collect_rarely
from tests.service.http.sockets import count_left
from tests.service.processes import running
from tests.waiting import wait_until

COUNTING = """
import gc, os, signal
from collections import Counter
from service.__main__ import main

def begin(*_):
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)

def report(*_):
    gc.collect()
    with open({report!r} + ".new", "w") as file:
        print(dict(Counter(type(each).__name__ for each in gc.garbage)), file=file)
    os.rename({report!r} + ".new", {report!r})

signal.signal(signal.SIGUSR1, begin)
signal.signal(signal.SIGUSR2, report)
main()
"""
REQUESTS = [
    ("/v1/decode", {"source": "heed"}),
    ("/v1/decode", {"source": ["heed", "hid"], "beam_size": 4}),
    ("/v1/decode", {"source": "heed", "stream": True}),
    ("/v1/decode", {"source": "heed", "attention": {}}),
    ("/v1/encode", {"source": "heed"}),
    ("/v1/score", {"source": "heed", "target": "HH IY1 D"}),
    ("/v1/attention", {"source": "heed", "target": "HH IY1 D"}),
    ("/v1/attribution", {"source": "heed", "contrast": "HH IH1 D"}),
    ("/v1/decode", {}),
    ("/v1/decode", {"source": 5}),
    ("/v1/decode", {"source": "π"}),
    ("/v1/decode", {"source": "heed", "beam_size": 4_000}),
    ("/v1/decode", {"source": "heed", "unknown": 1}),
    ("/v1/unknown", {"source": "heed"}),
]
HEADERS = [  # by which a request is refused, in the engine or before the endpoint
    ("X-Request-Timeout", "0.0001"),
    ("X-Request-Timeout", "soon"),
    ("Host", "evil.example"),
]


@pytest.fixture
def usual_collector():
    """The collector's own settings after the test."""
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


def send(port, path, content):
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


def test_neither_answers_nor_errors_nor_clients_that_leave_make_reference_cycles(tmp_path):
    report = tmp_path / "report"
    with running("-c", COUNTING.format(report=str(report))) as (process, port):

        def ask_all():
            for path, body in REQUESTS:
                answer = httpx2.post(f"{address}{path}", json=body, timeout=60)
                statuses.append(answer.status_code)
                for name, value in HEADERS:
                    headers = {name: value}
                    httpx2.post(f"{address}{path}", json=body, headers=headers)
            with send(port, "/v1/decode", b"{") as refused:
                assert b" 400 " in refused.recv(1 << 16)
            many = json.dumps({"source": ["heed" * 12] * 256, "beam_size": 16}).encode()
            send(port, "/v1/decode", many).close()  # noticed while it is being decoded

        address, statuses = f"http://127.0.0.1:{port}", []
        ask_all()  # what the first request of a kind builds is kept
        assert statuses == [200] * 8 + [422] * 5 + [404]
        wait_until(lambda: count_left(address) == 1)
        process.send_signal(signal.SIGUSR1)
        for _ in range(3):
            ask_all()
        wait_until(lambda: count_left(address) == 4)
        process.send_signal(signal.SIGUSR2)
        wait_until(report.exists)
        assert report.read_text() == "{}\n"


def test_the_fault_of_a_failed_source_does_not_keep_its_future():
    async def run():
        faults, future = Faults(partial=True), asyncio.get_running_loop().create_future()
        future.set_exception(PassFailed("the model computed NaN"))
        gone = weakref.ref(future)
        await answer_or_note(future, 0, faults)
        del future
        assert faults.size
        assert gone() is None

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


def test_the_collector_looks_at_new_objects_only_and_not_before_there_are_many(usual_collector):
    looks = []

    def look(phase, info):
        looks.append((phase, info["generation"]))

    collect_rarely()
    gc.callbacks.append(look)
    try:
        kept = [[] for _ in range(YOUNG // 2)]
        assert not looks
        kept += [[] for _ in range(YOUNG)]
    finally:
        gc.callbacks.remove(look)
    assert [phase for phase, _ in looks] == ["start", "stop"]
    assert gc.get_freeze_count() > 10_000
    assert len(kept) == YOUNG // 2 + YOUNG
