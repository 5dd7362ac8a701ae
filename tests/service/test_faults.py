"""Faults of the machine: stopped processes, no memory, no disk. The service goes on afterwards."""

import json
import os
import re
import resource
import signal
from pathlib import Path

import httpx2
import pytest

from tests.service.http.sockets import ATTEND
from tests.service.processes import children_of, running
from tests.waiting import wait_until

NO_DISK = """
import os, resource
os.environ |= {"HOME": "/nowhere", "TMPDIR": "/nowhere"}
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
from service.__main__ import main
main()
"""
HEED = "HH IY1 D"
MEGABYTES = 24
LARGE = {
    "/v1/attention": {"source": ["a" * 63] * 256, "target": ["AH0 " * 62] * 256},
    "/v1/attend": ATTEND | {name: [0.5] * 3000 for name in ("queries", "keys", "values")},
}


def ask(port):
    """The pronunciation of a word, or the status of a refusal."""
    answer = httpx2.post(f"http://127.0.0.1:{port}/v1/decode", json={"source": "heed"}, timeout=60)
    found = answer.json()
    return found["results"][0]["hypotheses"][0]["text"] if answer.is_success else found["status"]


def ask_until_right(port):
    def is_right():
        found = ask(port)
        assert found in {HEED, 429, 500, 503, 504}
        return found == HEED

    wait_until(is_right)


def limit_memory(pid):
    """Let a process allocate MEGABYTES more than it has now."""
    # RLIMIT_AS would count what glibc reserves for its heaps as in use already.
    held = re.search(r"VmData:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]
    most = (int(held) << 10) + (MEGABYTES << 20)
    resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))


def test_a_service_that_can_write_no_file_serves():
    with running("-c", NO_DISK) as (_, port):
        assert ask(port) == HEED


@pytest.mark.long
def test_an_engine_that_is_stopped_for_good_is_replaced_while_clients_wait():
    with running("-m", "service") as (process, port):
        (first,) = children_of(process)
        os.kill(int(first), signal.SIGSTOP)
        assert httpx2.get(f"http://127.0.0.1:{port}/livez").is_success
        assert ask(port) == 503  # after 12 seconds, when the engine is given up
        ask_until_right(port)
        assert first not in children_of(process)


@pytest.mark.long
@pytest.mark.parametrize("path", LARGE)
def test_a_process_without_memory_fails_what_is_large_and_goes_on(path):
    """The engine computes attention, the HTTP process what needs no model. An engine may die of it;
    the one that replaces it is limited too."""
    with running("-m", "service") as (process, port):
        assert ask(port) == HEED
        url = f"http://127.0.0.1:{port}{path}"
        limited = None
        for _ in range(3):
            pid = process.pid if path == "/v1/attend" else int(children_of(process)[0])
            if pid != limited:
                limit_memory(pid)
                limited = pid
            answer = httpx2.post(url, content=json.dumps(LARGE[path]), timeout=60, headers=JSON)
            assert answer.status_code in {500, 503}
            assert answer.headers["content-type"] == "application/problem+json"
            ask_until_right(port)


JSON = {"content-type": "application/json"}
