"""Large answers and bodies share a number of bytes, in the order in which they come."""

import asyncio
import contextlib
import json
import re
import time
from http.client import HTTPResponse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.http import limits
from service.http.limits import Budget, Share
from tests.service.http.sockets import OK, PROBE, connect, post, receive
from tests.service.processes import children_of, running

LIMIT = 100


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 150)), max_size=60))
def test_what_is_held_stays_within_the_limit_unless_one_is_alone(steps):
    """Each step releases a request that holds bytes, or adds to one."""
    shares = [Share() for _ in range(10)]
    shared = Budget(LIMIT)
    for place, nbytes in steps:
        share = shares[place]
        before = share.nbytes
        if before > 50:
            shared.release(share)
        elif not shared.add(share, nbytes):
            assert share.nbytes == before
            assert shared.held + nbytes > LIMIT
        held = [each.nbytes for each in shares if each.nbytes]
        assert sum(held) == shared.held
        assert shared.held <= LIMIT or len(held) == 1


def test_those_that_wait_get_theirs_in_order_and_leave_their_place():
    async def run():
        shared, first, order = Budget(LIMIT), Share(), []
        shared.add(first, 90)

        async def ask(name, nbytes):
            share = Share()
            try:
                await shared.wait(share, nbytes)
                order.append(name)
            except asyncio.CancelledError:
                shared.release(share)
            return share

        tasks = {}
        for name, nbytes in (("large", 80), ("gone", 90), ("small", 5), ("last", 15)):
            tasks[name] = asyncio.create_task(ask(name, nbytes))
            await asyncio.sleep(0)
        assert not order  # the small one would fit, but came later
        tasks["gone"].cancel()
        await asyncio.sleep(0)
        shared.release(first)
        shares = await asyncio.gather(*(tasks[name] for name in ("large", "small", "last")))
        assert order == ["large", "small", "last"]
        for share in shares:
            shared.release(share)
        assert shared.held == 0

    asyncio.run(run())


def test_a_request_that_gives_up_delays_no_other():
    async def run():
        shared = Budget(LIMIT)
        shared.add(Share(), 90)
        waiting = asyncio.create_task(shared.wait(Share(), 50))
        await asyncio.sleep(0)
        behind = asyncio.create_task(shared.wait(Share(), 4))
        await asyncio.sleep(0)
        assert not shared.give(Share(), 5)  # both would fit, but came later
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(behind, 60)
        assert shared.give(Share(), 5)

    asyncio.run(run())


def test_a_limited_number_of_requests_wait(monkeypatch):
    monkeypatch.setattr(limits, "MOST_WAITING_ANSWERS", 2)

    async def run():
        shared = Budget(LIMIT)
        shared.add(Share(), LIMIT)
        waiting = [asyncio.create_task(shared.wait(Share(), 1)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await shared.wait(Share(), 1)
        for task in waiting:
            task.cancel()

    asyncio.run(run())


@pytest.fixture(scope="module")
def port():
    flags = ["--max-held-bytes", "8000000", "--max-answer-bytes", "8000000", "--timeout", "60"]
    with running("-m", "service", *flags) as (_, port):
        yield port


def answer_of(client):
    """The status and the header lines of an answer, which is not read further."""
    head = client.makefile("rb", buffering=0).read(2000).partition(b"\r\n\r\n")[0]
    return int(head.split()[1]), head.lower()


def attend(count):
    numbers = [0.5] * count
    body = {"mechanism": "average", "queries": numbers, "keys": numbers, "values": numbers}
    return post("/v1/attend", body)


def attention(count):
    body = {"source": ["a" * 63] * count, "target": ["AH0 " * 60] * count}
    return post("/v1/attention", body)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(attend(700), id="written"),  # 7 MB of JSON
        pytest.param(attention(24), id="numbers"),  # 4 MB, whose JSON is made as it is read
    ],
)
def test_a_large_answer_waits_for_another_to_be_read(port, request_):
    with connect(port, 4096) as first, connect(port) as second, connect(port) as small:
        first.sendall(request_)
        assert answer_of(first)[0] == 200
        second.sendall(request_)
        small.sendall(attend(20))
        assert answer_of(small)[0] == 200
        second.settimeout(0.5)
        with pytest.raises(TimeoutError):
            answer_of(second)
        first.close()
        second.settimeout(60)
        assert answer_of(second)[0] == 200


def test_a_large_answer_says_its_length_to_clients_that_must_know_it(port):
    """HTTP/1.0 cannot tell the end of an answer from a broken connection otherwise."""
    answers = []
    for version in (b"1.0", b"1.1"):
        asked = attention(24).replace(b"HTTP/1.1", b"HTTP/" + version)
        with connect(port) as client:
            client.sendall(asked)
            reply = HTTPResponse(client)
            reply.begin()
            answers.append((reply.getheader("content-length"), reply.read()))
    (length, whole), (unknown, parts) = answers
    assert unknown is None
    assert int(length) == len(whole) == len(parts)
    assert json.loads(whole) == json.loads(parts)


@pytest.mark.long
def test_a_large_answer_that_waits_too_long_is_refused(port):
    with connect(port, 4096) as first, connect(port) as second:
        first.sendall(attend(700))
        assert answer_of(first)[0] == 200
        second.sendall(attend(700))
        status, head = answer_of(second)
        assert status == 429
        assert b"retry-after: 10\r\n" in head


def test_bodies_that_arrive_slowly_are_bounded_together(port):
    """A quarter of the limit: two of a megabyte."""
    half = post("/v1/decode", {"source": "x" * 900_000}, 1_000_000)
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(connect(port)).sendall(half)
        probe = stack.enter_context(connect(port))
        for _ in range(20):  # in each turn of the event loop, a part of each body is read
            probe.sendall(PROBE)
            receive(probe, OK)
        third = stack.enter_context(connect(port))
        third.sendall(half)
        status, head = answer_of(third)
        assert status == 429
        assert b"retry-after: 1\r\n" in head
        small = stack.enter_context(connect(port))
        small.sendall(post("/v1/decode", {"source": "heed"}))
        assert answer_of(small)[0] == 200


def memory_of(process):
    """Bytes of the service and its engine."""
    pages = 0
    for pid in (process.pid, *children_of(process)):
        status = Path(f"/proc/{pid}/status").read_text()
        pages += int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])
    return pages << 10


SOURCES = {"source": ["a" * 63] * 256, "target": ["AH0 " * 62] * 256}


@pytest.mark.long
@pytest.mark.parametrize("request_", [attend(3000), post("/v1/attention", SOURCES)])
def test_a_hundred_answers_that_nobody_reads_take_700_megabytes_at_most(request_):
    with running("-m", "service") as (process, port):
        for _ in range(3):
            with connect(port) as client:
                client.settimeout(60)
                client.sendall(
                    request_.replace(b"host: localhost", b"host: localhost\r\nconnection: close")
                )
                while client.recv(1 << 20):
                    pass
        time.sleep(11)
        before, most = memory_of(process), 0
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(connect(port, 4096)) for _ in range(100)]
            for client in clients:
                client.sendall(request_)
            for _ in range(120):
                time.sleep(0.1)
                most = max(most, memory_of(process))
        assert most < 700_000_000
        time.sleep(21)
        assert memory_of(process) < 1.5 * before
