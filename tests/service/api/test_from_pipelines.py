"""The programs of docs/from-pipelines.md print what is shown.

The models that they name are large. Two copies of the default one stand in for them, and read
letters instead of their texts.
"""

import re
import shutil
from pathlib import Path

import pytest

from service.settings.settings import DEFAULT_BUNDLE
from tests.conftest import edit_manifest, serving
from tests.documentation import assert_shown, programs
from tests.service.processes import run_python

PAGE = (Path(__file__).parents[3] / "docs" / "from-pipelines.md").read_text(encoding="utf-8")
PROGRAMS = [*programs(PAGE, "python")]
LANGUAGES = {"eng_Latn": [5], "fra_Latn": [6]}
STAND_INS = {
    "nllb-200-distilled-600M": {
        "source_prefix": ["source_language", "target_language"],
        "languages": {"source": LANGUAGES, "target": LANGUAGES},
        "examples": [],
    },
    "flan-t5-small": {"task": "text2text-generation"},
}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    bundles = []
    for name, changes in STAND_INS.items():
        bundles.append(str(shutil.copytree(DEFAULT_BUNDLE, folder / name)))
        edit_manifest(folder / name, name=name, **changes)
    with serving("--protocols", "hugging-face", "--bundles", ",".join(bundles)) as address:
        yield address


@pytest.mark.parametrize("program", PROGRAMS, ids=["import", "client"])
def test_a_program_prints_what_is_shown(address, program):
    code, shown = program
    readable = re.sub(r'"[A-Z][\w ]+[.?]"', '"rains"', code)
    assert readable.count('"rains"') in (2, 3)
    named = re.sub("opus-mt-en-fr|bart-large-cnn", "flan-t5-small", readable)
    code = named.replace("http://localhost:8000", address)
    done = run_python("-c", code)
    assert done.stderr == ""
    assert done.stdout.count("\n") == shown.count("\n")
    assert_shown(done.stdout, shown)
