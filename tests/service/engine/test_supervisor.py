"""An engine that dies, stops or makes no progress is replaced, and the next one answers as well."""

import asyncio
import os
import shutil
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from service.bundle.manifest import load_bundle
from service.errors import Overloaded, StartupError, Unavailable
from service.serving import supervisor
from service.serving.client import EngineClient
from service.serving.supervisor import Supervisor
from service.wire import Status
from tests.service.engine.clients import SETTINGS, entries, running


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """Look often and start another engine soon, but wait long for a report of a slow machine."""
    monkeypatch.setattr(supervisor, "CHECK_EVERY", 0.03)
    monkeypatch.setattr(supervisor, "PATIENCE", 60.0)
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.05)


@asynccontextmanager
async def supervised(bundle, settings=SETTINGS, open_engine=EngineClient):
    served = Supervisor(bundle, settings, open_engine)
    try:
        await served.start()
        yield served
    finally:
        await served.close()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  conditions of another process set no event
            await asyncio.sleep(0.01)


def is_alive(pid):
    return Path("/proc", str(pid)).exists()


def pid_of(served):
    return served.engine.process.pid


async def answers_of(served):
    answers = await asyncio.gather(*served.engine.submit(entries(4)))
    return [hypothesis.token_ids for answer in answers for hypothesis in answer.hypotheses]


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_is_killed_or_stopped_is_replaced(tiny_bundle, fault, monkeypatch, capsys):
    async def run():
        async with supervised(tiny_bundle) as served:
            before, first = await answers_of(served), pid_of(served)
            await until(lambda: served.reported.ready)
            latest = served.reported
            monkeypatch.setattr(supervisor, "PATIENCE", 0.5)
            await until(lambda: served.reported is not latest)  # the next one is asked for with it
            os.kill(first, fault)
            lost = asyncio.gather(*served.engine.submit(entries(9)), return_exceptions=True)
            await until(lambda: not served.reported.ready)
            assert served.restarts == 0
            await until(lambda: served.restarts == 1)
            monkeypatch.setattr(supervisor, "PATIENCE", 60.0)
            return before, await lost, await answers_of(served), (first, pid_of(served))

    before, lost, after, (first, second) = asyncio.run(run())
    assert after == before
    assert {type(outcome) for outcome in lost} == {Unavailable}
    assert not is_alive(first)
    assert not is_alive(second)  # it was closed
    assert "engine restarted" in capsys.readouterr().out


def test_every_further_engine_is_watched_too(tiny_bundle):
    async def run():
        async with supervised(tiny_bundle) as served:
            for count in (1, 2, 3):
                os.kill(pid_of(served), signal.SIGKILL)
                await until(lambda count=count: served.restarts == count)
            return await answers_of(served)

    assert len(asyncio.run(run())) == 16


def test_requests_meanwhile_are_told_to_come_back(tiny_bundle, monkeypatch):
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 60)

    async def run():
        async with supervised(tiny_bundle) as served:
            os.kill(pid_of(served), signal.SIGKILL)
            await served.engine.ended.wait()
            with pytest.raises(Unavailable, match="another one is being started; try again later"):
                served.engine.submit(entries(1))
            with pytest.raises(Unavailable) as refused:
                await served.engine.status()
            return refused.value.retry_after

    assert asyncio.run(run()) > 0


def test_a_bundle_that_does_not_open_is_tried_again(tiny_bundle, tmp_path, monkeypatch, capsys):
    """Each time after a longer pause, until it opens."""
    pauses = []
    sleep = asyncio.sleep

    async def count(seconds):
        if seconds >= supervisor.FIRST_PAUSE:
            pauses.append(seconds)
        await sleep(min(seconds, 0.1))

    root = tmp_path / "bundle"
    shutil.copytree(tiny_bundle.root, root)
    graph = root / "fp32" / "step.onnx"

    async def run():
        async with supervised(load_bundle(root)) as served:
            monkeypatch.setattr(asyncio, "sleep", count)
            graph.rename(root / "away")
            os.kill(pid_of(served), signal.SIGKILL)
            await until(lambda: pauses[-1:] == [0.4])
            (root / "away").rename(graph)
            await until(lambda: served.restarts == 1)
            return await answers_of(served)

    assert len(asyncio.run(run())) == 16
    assert pauses[:4] == [0.05, 0.1, 0.2, 0.4]
    assert "engine not restarted" in capsys.readouterr().out


class Late(EngineClient):
    """An engine whose status reports do not come in time, and that sends answers if it is used."""

    asked, used = 0, True

    async def status(self):
        self.asked += 1
        if self.used:
            await asyncio.gather(*self.submit(entries(1)))
        raise TimeoutError


def test_an_engine_that_sends_answers_is_kept_though_its_reports_are_late(tiny_bundle, capsys):
    kinds = iter([Late, EngineClient])

    async def run():
        open_engine = lambda *arguments: next(kinds)(*arguments)  # noqa: E731
        async with supervised(tiny_bundle, open_engine=open_engine) as served:
            late = served.engine
            await until(lambda: late.asked > 2 * supervisor.MISSES)
            kept, late.used = served.restarts, False
            await until(lambda: served.restarts == 1)
            return kept

    assert asyncio.run(run()) == 0
    assert "status reports did not come" in capsys.readouterr().out


class Idle(EngineClient):
    """An engine that reports no progress, every time it is asked."""

    asked = 0

    async def status(self):
        await super().status()
        self.asked += 1
        return Status(ready=False, rows=1)


def test_an_engine_without_progress_is_replaced_when_nobody_waits_for_it_any_more(tiny_bundle):
    opened = []

    def open_engine(*arguments):
        opened.append((EngineClient if opened else Idle)(*arguments))
        return opened[-1]

    async def run(seconds):
        settings = SETTINGS.model_copy(update={"timeout": seconds})
        async with supervised(tiny_bundle, settings, open_engine) as served:
            await until(lambda: opened[0].asked > 10)
            young = served.restarts
            if seconds < 60:
                await until(lambda: served.restarts == 1)
            return young

    assert asyncio.run(run(2.0)) == 0
    opened.clear()
    assert asyncio.run(run(60.0)) == 0
    assert len(opened) == 1


def test_closing_while_another_engine_opens_leaves_no_process(tiny_bundle):
    opened = []

    def open_engine(*arguments):
        opened.append(EngineClient(*arguments))
        return opened[-1]

    async def run():
        async with supervised(tiny_bundle, open_engine=open_engine) as served:
            os.kill(pid_of(served), signal.SIGKILL)
            await until(lambda: len(opened) == 2 and opened[1].process)
        return [client.process.returncode for client in opened]

    assert None not in asyncio.run(run())


def test_orders_that_a_stopped_engine_does_not_read_are_bounded(tiny_bundle, monkeypatch):
    monkeypatch.setattr("service.serving.client.MOST_UNSENT", 1 << 16)

    async def run():
        async with running(tiny_bundle) as client:
            client.process.send_signal(signal.SIGSTOP)
            futures = []

            def ask_for_ever():
                while len(futures) < 10_000:
                    futures.extend(client.submit(entries(1)))

            with pytest.raises(Overloaded, match="wait for the engine, which is the limit"):
                ask_for_ever()
            client.process.send_signal(signal.SIGCONT)
            return len(await asyncio.gather(*futures, return_exceptions=True))

    assert asyncio.run(run()) > 100


class Failing(EngineClient):
    """An engine that does not start."""

    errors = iter([RuntimeError("no more threads"), StartupError("it took too long")])

    async def start(self):
        raise next(self.errors)


def test_an_engine_that_does_not_open_is_followed_by_another(tiny_bundle, capsys):
    kinds = iter([EngineClient, Failing, Failing, EngineClient])

    async def run():
        open_engine = lambda *arguments: next(kinds)(*arguments)  # noqa: E731
        async with supervised(tiny_bundle, open_engine=open_engine) as served:
            os.kill(pid_of(served), signal.SIGKILL)
            await until(lambda: served.restarts == 1)
            return await answers_of(served)

    assert len(asyncio.run(run())) == 16
    said = capsys.readouterr().out
    assert "it took too long" in said
    assert "no more threads" in said
    assert "reason='it has ended'" in said
    assert said.count("engine not restarted") == 2
