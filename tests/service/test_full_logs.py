"""The service answers every request, whatever happens to its log."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import httpx2
import pytest

from benchmarks.kit.serving import is_ready, reserved_port
from tests.conftest import TINY
from tests.waiting import wait_until

REQUESTS, CLIENTS = 3000, 8
LONG_ID = "a" * 128  # 3,000 lines with it are more than a pipe and MOST_WAITING hold
BODY = json.dumps({"source": "red", "max_new_tokens": 1})


@contextmanager
def serving(log):
    """A service whose standard output is the file descriptor `log`; if None, it and standard error
    are closed."""
    with reserved_port() as port:
        command = f"exec {sys.executable} -m service --port {port} --bundles {TINY}"
        if log is None:
            command += " >&- 2>&-"
        process = subprocess.Popen(["sh", "-c", command], stdout=log, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: is_ready(f"http://127.0.0.1:{port}") or process.poll() is not None)
            yield process, port
        finally:
            process.kill()
            process.wait()


def send(port, count):
    """Send so many requests, one after the other; return the statuses."""
    headers = {"Content-Type": "application/json", "X-Request-Id": LONG_ID}
    statuses = []
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        for _ in range(count):
            connection.request("POST", "/v1/decode", BODY, headers)
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
    return statuses


def send_all(port, count):
    with ThreadPoolExecutor(CLIENTS) as clients:
        sent = [clients.submit(send, port, count // CLIENTS) for _ in range(CLIENTS)]
        return [status for each in sent for status in each.result()]


def dropped(port):
    text = httpx2.get(f"http://127.0.0.1:{port}/metrics").text
    return float(re.search(r"^heed_log_lines_dropped_total (.*)$", text, re.M)[1])


def told(lines):
    """How many lines each of those about dropped lines counts."""
    return [line["lines"] for line in lines if line["event"] == "log lines dropped"]


def end(process):
    process.send_signal(signal.SIGTERM)
    return process.wait(60)


def test_a_log_that_nobody_reads_blocks_nothing():
    reading, writing = os.pipe()
    with serving(writing) as (process, port):
        os.close(writing)
        assert send_all(port, REQUESTS) == [200] * REQUESTS
        missing = dropped(port)
        assert missing > 0
        lines = []
        with open(reading) as log:
            while len(lines) - len(told(lines)) + sum(told(lines)) < REQUESTS:
                line = json.loads(log.readline())
                if line.get("route") == "/v1/decode" or line["event"] == "log lines dropped":
                    lines.append(line)
            assert sum(told(lines)) == missing
            assert len(lines) - len(told(lines)) == REQUESTS - missing
            assert end(process) == 0


def test_a_service_whose_log_nobody_reads_ends_at_a_signal():
    reading, writing = os.pipe()
    with serving(writing) as (process, port):
        send_all(port, 240)  # more than the pipe holds
        assert end(process) == 0
    os.close(reading)
    os.close(writing)


def broken_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def full_disk():
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(broken_pipe, id="pipe"),
        pytest.param(full_disk, id="disk", marks=pytest.mark.long),
        pytest.param(lambda: None, id="none", marks=pytest.mark.long),
    ],
)
def test_a_log_that_cannot_be_written_loses_no_request(log):
    descriptor = log()
    with serving(descriptor) as (process, port):
        assert send_all(port, 800) == [200] * 800
        assert descriptor is None or wait_until(lambda: dropped(port) > 400)
        assert end(process) == 0
