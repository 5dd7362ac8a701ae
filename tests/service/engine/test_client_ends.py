"""An engine that does not open, dies or closes: its client knows, and nothing is left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from service.errors import StartupError, Unavailable
from service.serving.client import EngineClient
from service.settings.settings import Provider, Settings
from service.wire.messages import Answer, Entry
from tests.service.engine.clients import SETTINGS, entries, running


def test_everything_pending_fails_when_an_engine_dies(tiny_bundle):
    async def run():
        async with running(tiny_bundle) as client:
            futures = client.submit(entries(80, max_new_tokens=40))
            os.kill(client._process.pid, signal.SIGKILL)
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            for ask in (lambda: client.submit(entries(1)), client.status):
                with pytest.raises(Unavailable, match="another one is being started"):
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
            with pytest.raises(Unavailable, match="is being closed"):
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
    monkeypatch.setattr("service.serving.client.sys.executable", "/bin/false")
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


def test_an_engine_that_does_not_end_in_time_is_killed(tiny_bundle, capsys):
    async def run():
        async with running(tiny_bundle) as client:
            client.close_timeout = 0.1
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
