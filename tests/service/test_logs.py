"""The log: lines in each format, and what happens when they cannot be written."""

import json
import os
import re
import threading
from contextlib import suppress

import pytest
import structlog
from structlog.testing import capture_logs

from service import logs
from service.logs import LogWriter
from tests.service.processes import run_python
from tests.waiting import wait_until


def log_of(code, log_format="json"):
    """The output of a process that logs."""
    start = f"import structlog, logging; from service.logs import *; configure_logs({log_format!r})"
    done = run_python("-c", f"{start}\n{code}\nflush_logs()")
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_a_line_of_json_is_an_object():
    code = "structlog.get_logger().info('request', route='/', seconds={'encode': 0.5})"
    line = json.loads(log_of(code))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", line.pop("timestamp"))
    expected = {"level": "info", "event": "request", "route": "/", "seconds": {"encode": 0.5}}
    assert line == expected


@pytest.mark.parametrize("value", ["'\\ud83d'", "1 << 70", "object()", "{1}", "b'x'"])
def test_a_value_that_json_lacks_is_logged_all_the_same(value):
    assert json.loads(log_of(f"log_error('failed', value={value})"))["event"] == "failed"


def test_messages_of_the_server_are_lines_of_the_same_log():
    code = (
        "logging.getLogger('uvicorn.error').warning('%s %d', 'Unsupported', 7)\n"
        "logging.getLogger('uvicorn').log(5, 'detail')\n"
        "logging.getLogger('uvicorn').log(35, 'between')"
    )
    lines = [json.loads(line) for line in log_of(code).splitlines()]
    assert [(line["level"], line["event"], line["logger"]) for line in lines] == [
        ("warning", "Unsupported 7", "uvicorn.error"),
        ("warning", "between", "uvicorn"),
    ]


RAISE = """
def read(text):
    raise ValueError(len(text))
try:
    read("a word of a user")
except ValueError:
    structlog.get_logger().exception("pass failed")
"""


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_traceback_in_the_log_shows_no_values(log_format):
    """They would be what people sent."""
    said = log_of(RAISE, log_format)
    assert "ValueError: 16" in said
    assert "a word of a user" not in said


@pytest.mark.parametrize("log_format", ["auto", "json", "console"])
def test_without_a_terminal_there_are_no_colours(log_format):
    said = log_of("structlog.get_logger().error('failed', why='x')", log_format)
    assert said.count("\n") == 1
    assert "\x1b" not in said
    assert said.startswith("{") == (log_format != "console")


LINE = b"x" * 999


def test_lines_that_nobody_reads_are_dropped_and_counted():
    """Once they are read again, the log says how many are missing."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = os.write(writing, bytes(1 << 20))  # what the pipe holds
    os.set_blocking(writing, True)
    writer = LogWriter(writing)
    with capture_logs() as logged:
        for _ in range(3000):
            writer.write(LINE)  # returns, though the pipe is full
        dropped, received = writer.dropped, -before
        while received < (3000 - dropped) * (len(LINE) + 1):
            received += len(os.read(reading, 1 << 16))
        wait_until(lambda: logged)
    assert 1900 < dropped < 2000
    assert received == (3000 - dropped) * (len(LINE) + 1)
    assert [(line["event"], line["lines"]) for line in logged] == [("log lines dropped", dropped)]
    os.close(reading)
    writer.write(LINE)
    wait_until(lambda: writer.dropped == dropped + 1)  # a broken pipe


def test_a_log_that_is_full_to_the_last_byte_still_tells_what_is_missing():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    writer = LogWriter(writing)
    before, received = structlog.get_config(), b""
    structlog.configure(processors=[structlog.processors.JSONRenderer()], logger_factory=writer)
    try:
        for line in (LINE, b"x"):
            dropped = writer.dropped
            while writer.dropped == dropped:
                writer.write(line)

        def is_told():
            nonlocal received
            with suppress(BlockingIOError):
                received += os.read(reading, 1 << 20)
            return sum(map(int, re.findall(rb'"lines": (\d+)', received))) == writer.dropped

        wait_until(is_told)
    finally:
        structlog.configure(**before)
        os.close(reading)


def test_flushing_gives_up_on_a_log_that_nobody_reads(monkeypatch):
    monkeypatch.setattr(logs, "FLUSH_TIMEOUT", 0.2)
    reading, writing = os.pipe()
    writer = LogWriter(writing)
    for _ in range(200):
        writer.write(LINE)
    writer.flush()
    assert len(os.read(reading, 1 << 20)) < 200 * len(LINE)
    os.close(reading)


def test_the_lines_of_several_writers_of_a_pipe_never_mix():
    reading, writing = os.pipe()
    writers = [LogWriter(writing) for _ in range(4)]
    for i in range(500):
        for name, writer in zip("abcd", writers, strict=True):
            writer.write(name * (i + 1))
    received = b""
    closing = threading.Thread(
        target=lambda: ([each.flush() for each in writers], os.close(writing))
    )
    closing.start()
    while part := os.read(reading, 1000):
        received += part
    assert len(received.splitlines()) == 2000
    assert all(len(set(line)) == 1 for line in received.splitlines())
