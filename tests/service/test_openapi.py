"""The service answers as its OpenAPI document says. Schemathesis makes requests from the document,
valid and invalid ones, and checks the answers; schemathesis.toml holds its settings."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = Path(__file__).with_name("schemathesis.toml")
EXAMPLES = [
    pytest.param(4, 500, id="short"),
    pytest.param(1500, 20_000, id="long", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("examples", "least"), EXAMPLES)
def test_the_service_answers_as_its_document_says(server, tmp_path, examples, least):
    """`examples` counts for each endpoint and phase, `least` all requests that are made."""
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", SETTINGS, "run"]
    command += [f"{server}/openapi.json", "--checks", "all", "--max-examples", str(examples)]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=900
    )
    assert ran.returncode == 0, ran.stdout
    (made,) = re.findall(r"([\d,]+) generated", ran.stdout)
    assert int(made.replace(",", "")) >= least
    assert "Operations:       13 selected / 13 total" in ran.stdout
