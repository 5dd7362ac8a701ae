"""The service in a process of its own, as it is started."""

import os
import signal
import subprocess
import sys

import pytest
import structlog

from service.logs import configure_logs

SERVE_ONCE = """
import asyncio, sys
import numpy as np
from service.__main__ import create_app
from service.engine.messages import Entry
from service.search.rules import SearchOptions
from service.settings import Settings

async def main():
    app = create_app(Settings())
    async with app.router.lifespan_context(app):
        engine = app.state.models["g2p-en"].engine
        entry = Entry(source_ids=np.array([5, 6]), search=SearchOptions(max_new_tokens=5))
        (answer,) = engine.submit([entry])
        assert (await answer).hypotheses

asyncio.run(main())
roots = {name.partition(".")[0] for name in sys.modules}
assert "onnxruntime" in roots
print(sorted(roots & {"torch", "model", "onnx", "transformers"}))
"""


def python(*arguments, **environment):
    """Without what this process or a CI machine sets that would silence the runtime's telemetry."""
    silent = {"CI", "ORT_DISABLE_TELEMETRY"}
    inherited = {name: value for name, value in os.environ.items() if name not in silent}
    return subprocess.run(
        [sys.executable, *arguments],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_service_imports_no_torch():
    done = python("-c", SERVE_ONCE)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_forced_provider_that_is_missing_is_a_start_up_error():
    done = python("-m", "service", HEED_PROVIDER="tensorrt")
    assert done.returncode == 1
    assert done.stderr.startswith("heed: provider tensorrt is not here; available: ")
    assert "cpu" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["--port", "99999"], {}, "heed: settings: port: Input should be less than"),
        ([], {"HEED_PORT": "abc"}, "heed: settings: port: Input should be a valid integer"),
        ([], {"HEED_BUNDLES": ""}, "heed: settings: bundles: "),
        ([], {"HEED_BUNDLES": "/nowhere,/else"}, "heed: /nowhere is not a bundle"),
        ([], {"HEED_MAX_QUEUE": "9"}, "max_sources 256 is above max_queue 9"),
    ],
)
def test_a_wrong_setting_is_a_line_that_names_it(arguments, variables, said):
    done = python("-m", "service", *arguments, **variables)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_service_cleanly(number):
    command = [sys.executable, "-m", "service", "--port", "0"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    for line in process.stderr:
        if "Uvicorn running" in line:
            break
    process.send_signal(number)
    _, rest = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Finished server process" in rest
    assert "Traceback" not in rest


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


def test_a_traceback_in_the_log_shows_no_values(capsys):
    """They would be what people sent."""
    before = structlog.get_config()
    configure_logs()
    try:
        read("a word of a user")
    except ValueError:
        structlog.get_logger().exception("pass failed")
    finally:
        structlog.configure(**before)
    said = capsys.readouterr().out
    assert "ValueError" in said
    assert "a word of a user" not in said.replace('read("a word of a user")', "")


def read(text):
    raise ValueError(len(text))
