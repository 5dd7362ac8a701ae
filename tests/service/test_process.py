"""The service in a process of its own, as it is started."""

import json
import os
import re
import signal
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET, socket

import pytest

from service.settings.settings import DEFAULT_BUNDLE
from tests.service.processes import children_of, run_python, running
from tests.waiting import wait_until

SERVE_ONCE = """
import asyncio, sys
import numpy as np
from service.__main__ import create_app
from service.wire import Entry
from service.search.options import SearchOptions
from service.settings.settings import Settings

async def main():
    app = create_app(Settings())
    async with app.router.lifespan_context(app):
        engine = app.state.service.registry.served["g2p-en"].engine
        entry = Entry(source_ids=np.array([5, 6]), search=SearchOptions(max_new_tokens=5))
        (answer,) = engine.submit([entry])
        assert (await answer).hypotheses

asyncio.run(main())
roots = {name.partition(".")[0] for name in sys.modules}
assert "onnxruntime" in roots
print(sorted(roots & {"torch", "model", "onnx", "transformers"}))
"""


REFUSE = """
import json, os, sys
from service.__main__ import main

for arguments, variables in json.load(sys.stdin):
    sys.argv[1:] = arguments
    os.environ |= variables
    try:
        main()
    except SystemExit as end:
        print(end.code, file=sys.stderr)
    for name in variables:
        del os.environ[name]
"""


def python(*arguments, stdin="", **environment):
    """Without what this process or a CI machine sets that would silence the runtime's telemetry."""
    silent = {"CI", "ORT_DISABLE_TELEMETRY"}
    inherited = {name: value for name, value in os.environ.items() if name not in silent}
    return run_python(*arguments, env={**inherited, **environment}, input=stdin)


def test_the_service_imports_no_torch():
    done = python("-c", SERVE_ONCE)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr  # after lines of the log


def test_a_forced_provider_that_is_missing_is_a_start_up_error():
    done = python("-m", "service", HEED_PROVIDER="tensorrt", HEED_PORT="0")
    assert done.returncode == 1
    assert done.stderr.startswith("heed: provider tensorrt is not installed; choose one of: ")
    assert "cpu" in done.stderr
    assert "Traceback" not in done.stderr


WRONG = [
    (["--port", "99999"], {}, "settings: port must be at most 65535"),
    ([], {"HEED_PORT": "abc"}, "settings: port must be an integer"),
    ([], {"HEED_BUNDLES": ""}, "settings: bundles must have 1 or more items"),
    (["--port", "0"], {"HEED_BUNDLES": " /nowhere ,/else"}, "/nowhere does not exist: give the fo"),
    (["--host", "203.0.113.1"], {}, "port 8000 of 203.0.113.1 cannot be used ("),
    ([], {"HEED_MAX_ROWS": "9"}, "settings: max_sources is 256 but max_rows is 9"),
    ([], {"HEED_PROT": "9000"}, "HEED_PROT is unknown: did you mean HEED_PORT?"),
    ([], {"HEED_TIMEOUT": "inf"}, "settings: timeout must be a finite number"),
    ([], {"HEED_HOST": ""}, "settings: host must not be empty: give 127.0.0.1"),
    (["--host", "a" * 64], {}, f"{'a' * 64} is not a host name: change HEED_HOST"),
    ([], {"HEED_MODELS": "/nowhere"}, "settings: models must be an existing folder"),
    (["--prot", "9000"], {}, "the flag --prot is unknown: did you mean --port?"),
    (["--host", ""], {}, "settings: host must not be empty: give 127.0.0.1"),
    (["--port", "-1", "--threads", "x"], {}, "port must be at least 0; threads must be an"),
]


def test_a_wrong_setting_is_a_line_that_names_it():
    """In one process: the test below looks at how it ends."""
    given = [(arguments, variables) for arguments, variables, _ in WRONG]
    lines = python("-c", REFUSE, stdin=json.dumps(given)).stderr.splitlines()
    for line, (*_, said) in zip(lines, WRONG, strict=True):
        assert line.startswith("heed: ")
        assert said in line


def test_a_port_that_is_taken_is_a_start_up_error_before_any_model_is_opened():
    with socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = python("-m", "service", HEED_PORT=str(port), HEED_BUNDLES="/nowhere")
    assert done.returncode == 1
    said = f"heed: port {port} of 127.0.0.1 is taken: choose another one with --port or HEED_PORT\n"
    assert done.stderr == said


def test_help_is_printed():
    done = python("-m", "service", "--help", COLUMNS="1000")
    assert done.returncode == 0
    assert f"(HEED_BUNDLES, default: {DEFAULT_BUNDLE})" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_service_cleanly(number):
    with running("-m", "service") as (process, _):
        process.send_signal(number)
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Finished server process" in rest
    assert "Traceback" not in rest


BUSY = """
import time
from starlette.concurrency import run_in_threadpool
import service.__main__ as start

async def sleep():
    await run_in_threadpool(time.sleep, 1000)

class Late(start.Server):
    async def shutdown(self, sockets=None):
        self.sleeping = start.asyncio.create_task(sleep())
        await super().shutdown(sockets)

start.Server = Late
start.main()
"""
MANY = [0.5] * 1023  # their weights are several megabytes, more than sockets hold
LARGE = json.dumps({"mechanism": "average", "queries": MANY, "keys": MANY, "values": MANY})


def request_to(path, body, length):
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("sent", "until"),
    [
        (request_to("/v1/attend", LARGE, len(LARGE)), b"HTTP/1.1 200 OK"),
        (request_to("/v1/decode", "{", 100), b"HTTP/1.1 100 Continue"),
    ],
    ids=["a client that does not read", "a client that sends half a body"],
)
def test_no_client_delays_the_end_of_the_service_until_its_own_timeout(sent, until):
    with soon_ending() as (process, port), socket() as client:
        client.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(sent)
        received = b""
        while until not in received:
            received += client.recv(1024)
        process.terminate()
        rest, _ = process.communicate(timeout=60)  # TimeoutExpired if it waits for the client
    assert process.returncode == 0
    assert "Finished server process" in rest


def soon_ending():
    """A service that has three seconds left when it has dropped its clients."""
    limits = "--timeout", "3600", "--max-sources", "2048", "--max-rows", "16384"
    return running("-m", "service", "--shutdown-timeout", "15", *limits)


@pytest.mark.parametrize("stops", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_stream_that_outlives_the_service_ends_with_an_error(stops):
    """Also if its engine has stopped, and is not left behind."""
    body = json.dumps({"source": ["transformers" * 5] * 2048, "beam_size": 8, "stream": True})
    with soon_ending() as (process, port), socket() as client:
        client.connect(("127.0.0.1", port))
        client.sendall(request_to("/v1/decode", body, len(body)))
        incoming = client.makefile("rb")
        while not incoming.readline().startswith(b"event: beam"):
            pass
        (engine,) = children_of(process)
        if stops:
            os.kill(int(engine), signal.SIGSTOP)
        process.terminate()
        rest = incoming.read()
        process.communicate(timeout=60)
    assert process.returncode == 0
    (problem,) = re.findall(rb"event: error\r?\ndata: (.*)", rest)
    assert json.loads(problem)["status"] == 503
    assert rest.endswith(b"\r\n0\r\n\r\n")  # the answer is complete
    assert not Path("/proc", engine).exists()


@pytest.mark.long
def test_a_service_that_cannot_end_in_time_is_killed(capfd):
    """As by a computation that keeps its thread."""
    with running("-c", BUSY, "--shutdown-timeout", "2") as (process, port), socket() as client:
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert client.recv(1)
        (engine,) = children_of(process)
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Timeout" in capfd.readouterr().err
    wait_until(lambda: not Path("/proc", engine).exists())


def test_the_runtime_reports_to_nobody(tmp_path):
    """Its telemetry leaves a database in the home directory as soon as it is imported."""
    for module, left in (("onnxruntime", True), ("service.runtime.session", False)):
        home = tmp_path / module
        home.mkdir()
        done = python("-c", f"import {module}", HOME=str(home), XDG_CACHE_HOME=str(home))
        assert done.returncode == 0, done.stderr
        assert bool(list(home.rglob("*.db"))) == left


def test_importing_the_application_starts_nothing():
    done = python("-c", "import threading, service.app; print(threading.active_count())")
    assert done.stdout.strip() == "1", done.stderr
