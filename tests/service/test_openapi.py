"""The service answers as its OpenAPI document says. Schemathesis makes requests from the document,
valid and invalid ones, and checks the answers; schemathesis.toml holds its settings."""

import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from service.settings.settings import DEFAULT_BUNDLE
from service.settings.types import PROTOCOL_NAMES
from tests.conftest import serving

SETTINGS = Path(__file__).with_name("schemathesis.toml")
EXAMPLES = [
    pytest.param(4, 500, False, id="short"),
    pytest.param(1500, 20_000, False, id="long", marks=pytest.mark.long),
    pytest.param(300, 5_000, True, id="languages", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("examples", "least", "translates"), EXAMPLES)
def test_the_service_answers_as_its_document_says(
    translator, tmp_path, examples, least, translates
):
    """`examples` counts for each endpoint and phase, `least` all requests that are made. All
    protocols are on; two models, one of which has languages, reach more of them and less of the
    endpoints that need a model's name then."""
    bundles = f"{DEFAULT_BUNDLE},{translator}" if translates else str(DEFAULT_BUNDLE)
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", SETTINGS, "run"]
    with serving("--protocols", ",".join(PROTOCOL_NAMES), "--bundles", bundles) as address:
        document = httpx2.get(f"{address}/openapi.json").json()
        command += [f"{address}/openapi.json", "--checks", "all", "--max-examples", str(examples)]
        ran = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=1500
        )
    assert ran.returncode == 0, ran.stdout
    (made,) = re.findall(r"([\d,]+) generated", ran.stdout)
    assert int(made.replace(",", "")) >= least
    count = sum(len(path) for path in document["paths"].values())
    assert f"Operations:       {count} selected / {count} total" in ran.stdout
