"""An engine that does not open, dies or closes: its client knows, and nothing is left behind."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from service.errors import StartupError, Unavailable
from service.serving.client import EngineClient
from service.settings.settings import Provider, Settings
from tests.service.engine.clients import SETTINGS, entries, running


def test_a_closing_engine_accepts_nothing_and_answers_all_it_accepted(tiny_bundle):
    async def run():
        async with running(tiny_bundle) as client:
            futures = client.submit(entries(60, max_new_tokens=40))
            closing = asyncio.create_task(client.close())
            await asyncio.sleep(0)
            for ask in (lambda: client.submit(entries(1)), client.status):
                with pytest.raises(Unavailable, match="is being closed"):
                    await ask()
            await closing
            return [future.result() for future in futures], client.process.returncode

    answers, code = asyncio.run(run())
    assert len(answers) == 60
    assert code == 0


async def start(bundle, settings=SETTINGS):
    """Start an engine that will not open; close() must leave nothing behind."""
    client = EngineClient(bundle, settings)
    try:
        await client.start()
    finally:
        await client.close()
        assert client.process.returncode is not None


def test_a_process_that_dies_while_it_opens_is_a_start_up_error(tiny_bundle, monkeypatch):
    monkeypatch.setattr("service.serving.client.sys.executable", "/bin/false")
    with pytest.raises(StartupError, match="died while it opened this bundle"):
        asyncio.run(start(tiny_bundle))


def test_the_reason_why_an_engine_does_not_open_is_the_start_up_error(tiny_bundle):
    settings = Settings(provider=Provider.tensorrt)
    with pytest.raises(StartupError, match="provider tensorrt is not installed"):
        asyncio.run(start(tiny_bundle, settings))


def test_an_engine_that_does_not_open_in_time_is_a_start_up_error(tiny_bundle):
    settings = SETTINGS.model_copy(update={"opening_timeout": 1e-3})
    with pytest.raises(StartupError, match=r"was not open after 0\.001 seconds"):
        asyncio.run(start(tiny_bundle, settings))


HANG = """#!{python}
import os, socket, sys, time
connection = socket.socket(fileno=int(sys.argv[3]))
connection.recv(1)
print(os.getpid(), flush=True)
time.sleep(1000)
"""


SERVE = "import sys; sys.executable = sys.argv.pop(); from service.__main__ import main; main()"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_service_whose_engine_hangs_while_it_opens(tmp_path, number):
    hanging = tmp_path / "hanging"
    hanging.write_text(HANG.format(python=sys.executable))
    hanging.chmod(0o755)
    command = [sys.executable, "-c", SERVE, "--port", "0", str(hanging)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as service:
        pid = next(line for line in service.stdout if line.strip().isdigit())
        service.send_signal(number)
        _, said = service.communicate(timeout=60)
    assert service.returncode == 0, said
    assert not Path("/proc", pid.strip()).exists()


def test_an_engine_that_does_not_end_in_time_is_killed(tiny_bundle, capsys):
    async def run():
        async with running(tiny_bundle) as client:
            client.close_timeout = 0.1
            client.process.send_signal(signal.SIGSTOP)
            futures = client.submit(entries(3))
        return await asyncio.gather(*futures, return_exceptions=True), client.process.returncode

    outcomes, code = asyncio.run(run())
    assert {type(outcome) for outcome in outcomes} == {Unavailable}
    assert code == -signal.SIGKILL
    assert "engine killed" in (said := capsys.readouterr().out)
    assert "pending=3" in said


@pytest.mark.parametrize("pending", [0, 3])
def test_the_death_of_an_engine_is_logged_even_if_nobody_waits(tiny_bundle, capsys, pending):
    """Status reports that are given up do not count: they are not kept."""

    async def run():
        async with running(tiny_bundle) as client:
            client.process.send_signal(signal.SIGSTOP)
            futures = client.submit(entries(pending))
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.status(), 0.01)
            client.kill()
            await client.ended.wait()
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})  # it logs
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            assert all(type(outcome) is Unavailable for outcome in outcomes)

    asyncio.run(run())
    said = capsys.readouterr().out
    assert "engine died" in said
    assert "model=tiny" in said
    assert "exit_code=-9" in said
    assert f"pending={pending}" in said
