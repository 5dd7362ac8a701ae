"""An engine in its own process answers like one in this process, and its end is noticed."""

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from service.attention import NO_ATTENTION
from service.bundle import load_bundle
from service.engine.__main__ import EngineServer
from service.engine.client import EngineClient
from service.engine.engine import Engine
from service.engine.messages import Answer, Cancel, Entry, Status
from service.engine.wire import FRAME, HEADER, FrameDecoder
from service.errors import Overloaded, PassFailed, StartupError, Unavailable
from service.search.options import SearchOptions
from service.settings import Provider, Settings

SETTINGS = Settings(provider=Provider.cpu, max_queue=400, max_sources=100, threads=2)


@pytest.fixture(scope="module")
def tiny_bundle(tiny):
    return load_bundle(tiny)


@asynccontextmanager
async def running(bundle):
    client = EngineClient(bundle, SETTINGS)
    try:
        await client.start()
        yield client
    finally:
        await client.close()


def entries(count, max_new_tokens=9, selection=NO_ATTENTION):
    search = SearchOptions(max_new_tokens=max_new_tokens, beam_size=4, num_hypotheses=4)
    return [Entry(np.array([4, 5 + i % 4]), search, selection=selection) for i in range(count)]


async def none_left(client):
    """Wait until the cancelled rows have left, which they do at the next step."""
    for _ in range(1000):
        if not (await client.status()).rows:
            return True
        await asyncio.sleep(0.01)
    return False


def test_answers_are_those_of_an_engine_in_this_process(tiny_bundle, every_weight):
    """Including an answer of megabytes, which is read in a thread."""
    everything = every_weight(tiny_bundle)
    large = Entry(np.full(20, 4), None, [5] * 39, everything)
    asked = [*entries(20, selection=everything), *entries(20), Entry(np.array([4])), large]

    async def run():
        async with running(tiny_bundle) as client:
            return await asyncio.gather(*client.submit(asked))

    there = asyncio.run(run())
    engine = Engine(tiny_bundle, SETTINGS)
    engine.start()
    engine.queue.put(asked)
    engine.close()
    for one, other in zip(there, [entry.result.result(0) for entry in asked], strict=True):
        assert [h.token_ids for h in one.hypotheses] == [h.token_ids for h in other.hypotheses]
        assert len(one.attention) == len(other.attention)
        for weights, others in zip(one.attention, other.attention, strict=True):
            assert weights.keys() == others.keys()
            for kind in weights:
                np.testing.assert_allclose(weights[kind], others[kind], rtol=1e-4, atol=1e-5)
        if other.memory is not None:
            np.testing.assert_allclose(one.memory, other.memory, rtol=1e-4, atol=1e-5)


def test_an_answer_of_megabytes_arrives_whole(tiny_bundle, every_weight):
    everything = every_weight(tiny_bundle)

    async def run():
        async with running(tiny_bundle) as client:
            (answer,) = client.submit([Entry(np.full(20, 4), beams(30), [], everything)])
            return await answer

    answer = asyncio.run(run())
    sizes = [weights.nbytes for kinds in answer.attention for weights in kinds.values()]
    assert sum(sizes) > FRAME
    rows = [w.sum(-1) for kinds in answer.attention for w in kinds.values()]
    assert all(np.allclose(row, 1, atol=1e-5) for row in rows)


def beams(count):
    return SearchOptions(max_new_tokens=40, beam_size=count, num_hypotheses=count)


def test_a_full_queue_refuses_all_of_a_request(tiny_bundle):
    async def run():
        async with running(tiny_bundle) as client:
            outcomes = await asyncio.gather(
                *client.submit(entries(SETTINGS.max_queue // 4 + 1)), return_exceptions=True
            )
            (answer,) = await asyncio.gather(*client.submit(entries(1)))
            return outcomes, answer

    outcomes, answer = asyncio.run(run())
    assert {type(outcome) for outcome in outcomes} == {Overloaded}
    assert "the limit is 400" in outcomes[0].detail
    assert len(answer.hypotheses) == 4


def test_cancelled_entries_free_their_rows(tiny_bundle):
    async def run():
        async with running(tiny_bundle) as client:
            futures = client.submit(entries(60, max_new_tokens=40))
            for future in futures[::2]:
                future.cancel()
            kept = await asyncio.gather(*futures[1::2])
            return kept, await none_left(client)

    kept, freed = asyncio.run(run())
    assert all(len(answer.hypotheses) == 4 for answer in kept)
    assert freed


def test_everything_pending_fails_when_an_engine_dies(tiny_bundle):
    async def run():
        async with running(tiny_bundle) as client:
            futures = client.submit(entries(80, max_new_tokens=40))
            os.kill(client._process.pid, signal.SIGKILL)
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            for ask in (lambda: client.submit(entries(1)), client.status):
                with pytest.raises(Unavailable, match="has lost its engine"):
                    await ask()
            return outcomes

    assert {type(outcome) for outcome in asyncio.run(run())} == {Unavailable}


def test_a_worker_that_ends_unasked_ends_its_engine(tiny_bundle):
    """An entry without a source breaks the loop of whichever worker takes it."""

    async def run():
        async with running(tiny_bundle) as client:
            futures = client.submit([*entries(5), Entry(None), *entries(5)])
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            await asyncio.wait_for(client._ended.wait(), 30)
            assert client.gone
        return outcomes, client._process.returncode

    outcomes, code = asyncio.run(run())
    assert {type(outcome) for outcome in outcomes} <= {Answer, Unavailable}
    assert type(outcomes[5]) is Unavailable
    assert code == 1


def test_an_engine_answers_all_it_accepted_before_it_closes(tiny_bundle):
    async def run():
        async with running(tiny_bundle) as client:
            futures = client.submit(entries(60, max_new_tokens=40))
        return [future.result() for future in futures], client._process.returncode

    answers, code = asyncio.run(run())
    assert len(answers) == 60
    assert code == 0


def test_a_closing_engine_accepts_nothing_and_still_obeys_cancellations(tiny_bundle):
    async def run():
        client = EngineClient(tiny_bundle, SETTINGS)
        await client.start()
        futures = client.submit(entries(90, max_new_tokens=40))
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        for ask in (lambda: client.submit(entries(1)), client.status):
            with pytest.raises(Unavailable, match="takes no requests now"):
                await ask()
        for future in futures[1:]:
            future.cancel()
        await closing
        return futures[0].result(), client._process.returncode

    answer, code = asyncio.run(run())
    assert len(answer.hypotheses) == 4
    assert code == 0


async def start(bundle, settings=SETTINGS):
    """Start an engine that will not open; close() must leave nothing behind."""
    client = EngineClient(bundle, settings)
    try:
        await client.start()
    finally:
        await client.close()
        assert client._process.returncode is not None


def test_a_process_that_dies_while_it_opens_is_a_start_up_error(tiny_bundle, monkeypatch):
    monkeypatch.setattr("service.engine.client.sys.executable", "/bin/false")
    with pytest.raises(StartupError, match="died while it opened this bundle"):
        asyncio.run(start(tiny_bundle))


def test_the_reason_why_an_engine_does_not_open_is_the_start_up_error(tiny_bundle):
    settings = Settings(provider=Provider.tensorrt)
    with pytest.raises(StartupError, match="provider tensorrt is not installed"):
        asyncio.run(start(tiny_bundle, settings))


HANG = """#!{python}
import pathlib, os, socket, sys, time
connection = socket.socket(fileno=int(sys.argv[3]))
connection.recv(1)
pathlib.Path(__file__).with_name("pid").write_text(f"{{os.getpid()}}\\n")
time.sleep(1000)
"""
SERVE = "import sys; sys.executable = sys.argv.pop(); from service.__main__ import main; main()"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_service_whose_engine_hangs_while_it_opens(tmp_path, number):
    hanging, pid = tmp_path / "hanging", tmp_path / "pid"
    hanging.write_text(HANG.format(python=sys.executable))
    hanging.chmod(0o755)
    command = [sys.executable, "-c", SERVE, "--port", "0", str(hanging)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        while not (pid.exists() and pid.read_text().endswith("\n")):
            assert service.poll() is None
            time.sleep(0.01)
        service.send_signal(number)
        _, said = service.communicate(timeout=60)
    assert service.returncode == 0, said
    assert not Path("/proc", pid.read_text().strip()).exists()


def test_an_engine_ends_when_its_client_is_gone(tiny_bundle):
    async def run():
        client = EngineClient(tiny_bundle, SETTINGS)
        await client.start()
        client._transport.abort()
        async with asyncio.timeout(10):
            return await client._process.wait()

    assert asyncio.run(run()) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_of_a_service_fails_no_accepted_entry(tiny_bundle, number):
    """The engine leaves it to the client to end it."""

    async def run():
        async with running(tiny_bundle) as client:
            futures = client.submit(entries(80, max_new_tokens=40))
            os.kill(client._process.pid, number)
            answers = await asyncio.gather(*futures)
        return answers, client._process.returncode

    answers, code = asyncio.run(run())
    assert all(len(answer.hypotheses) == 4 for answer in answers)
    assert code == 0


def test_an_engine_that_does_not_end_in_time_is_killed(tiny_bundle, monkeypatch, capsys):
    monkeypatch.setattr("service.engine.client.CLOSE_TIMEOUT", 0.1)

    async def run():
        async with running(tiny_bundle) as client:
            os.kill(client._process.pid, signal.SIGSTOP)
            futures = client.submit(entries(3))
        return await asyncio.gather(*futures, return_exceptions=True), client._process.returncode

    outcomes, code = asyncio.run(run())
    assert {type(outcome) for outcome in outcomes} == {Unavailable}
    assert code == -signal.SIGKILL
    assert "engine killed" in (said := capsys.readouterr().out)
    assert "pending=3" in said


@pytest.mark.parametrize("pending", [0, 3])
def test_the_death_of_an_engine_is_logged_even_if_nobody_waits(tiny_bundle, capsys, pending):
    async def run():
        async with running(tiny_bundle) as client:
            os.kill(client._process.pid, signal.SIGSTOP)
            futures = client.submit(entries(pending))
            os.kill(client._process.pid, signal.SIGKILL)
            await client._ended.wait()
            await client._reporting
            await asyncio.gather(*futures, return_exceptions=True)

    asyncio.run(run())
    said = capsys.readouterr().out
    assert "engine died" in said
    assert "model=tiny" in said
    assert "exit_code=-9" in said
    assert f"pending={pending}" in said


def test_no_thread_to_read_a_long_answer_is_no_reason_to_lose_the_engine(tiny_bundle, every_weight):
    class NoThreads(ThreadPoolExecutor):
        def submit(self, *_):
            raise RuntimeError("can't start new thread")

    async def run():
        asyncio.get_running_loop().set_default_executor(NoThreads())
        async with running(tiny_bundle) as client:
            large = Entry(np.full(20, 4), beams(30), [], every_weight(tiny_bundle))
            async with asyncio.timeout(30):
                (answer,) = await asyncio.gather(*client.submit([large]))
            return answer, (await client.status()).ready

    answer, ready = asyncio.run(run())
    assert len(answer.hypotheses) == 30
    assert ready


def test_other_messages_come_between_the_frames_of_a_long_one():
    """Each frame is read before the next is sent, and in between there is room for others."""
    ours, theirs = socket.socketpair()
    server = EngineServer(theirs)
    sender = threading.Thread(target=server._send, args=(1, b"x" * (20 * FRAME)))
    with ours, theirs, ours.makefile("rb") as incoming:
        sender.start()
        frames = [read_frame(incoming)]
        other = threading.Thread(target=server._send, args=(2, "short"))
        other.start()
        deadline = time.monotonic() + 10
        while (
            len(server._sending._line) < 2 and time.monotonic() < deadline
        ):  # nobody reads, nobody goes on
            time.sleep(0.001)
        while frames[-1][0] != 1 or frames[-1][1]:
            frames.append(read_frame(incoming))
        sender.join()
        other.join()
    numbers = [number for number, _, _ in frames]
    assert numbers.count(1) > 20
    assert 2 in numbers[:4]
    long = b"".join(content for number, _, content in frames if number == 1)
    assert pickle.loads(long) == b"x" * (20 * FRAME)


@pytest.mark.parametrize("error", [pickle.PicklingError, TypeError, AttributeError, MemoryError])
def test_an_answer_that_cannot_be_sent_fails_its_entry(error):
    """Whoever waits hears of it at once, and others get theirs."""

    class Stubborn:
        def __reduce__(self):
            raise error("no")

    ours, theirs = socket.socketpair()
    server = EngineServer(theirs)
    with ours, theirs:
        for number, answer in [(1, Answer(memory=Stubborn())), (2, Answer(seconds={"queue": 0.5}))]:
            server._entries[number] = entry = Entry(np.array([4]))
            entry.result.add_done_callback(partial(server._answer, number))
            entry.finish(answer)
        decoder, arrived = FrameDecoder(), {}
        ours.settimeout(10)
        while len(arrived) < 2:
            for message in decoder.feed(ours.recv(1 << 16)):
                arrived[message.number] = message.load()
    assert type(arrived[1]) is PassFailed
    assert arrived[2].seconds == {"queue": 0.5}


def test_orders_about_entries_that_are_gone_or_never_were_change_nothing(tiny_bundle):
    async def run():
        async with running(tiny_bundle) as client:
            (first,) = client.submit(entries(1))
            await first
            for number in (1, 2, 2, 999):
                client._order(Cancel(number))
            (second,) = client.submit(entries(1))
            second.cancel()
            client._order(Cancel(3))
            (third,) = client.submit(entries(1))
            return await third, await client.status()

    answer, status = asyncio.run(run())
    assert len(answer.hypotheses) == 4
    assert status == Status(ready=True, rows=0)


def read_frame(incoming):
    length, more, number = HEADER.unpack(incoming.read(HEADER.size))
    return number, more, incoming.read(length)
