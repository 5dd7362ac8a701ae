"""Conversions of large checkpoints fit into memory, and one that is cut off leaves no rest."""

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from benchmarks.kit.memory import run_command
from benchmarks.speed.random_checkpoint import TINY, nllb, write_checkpoint
from tests.conftest import opened
from tests.model.importers.checkpoints import write_marian, write_nllb
from tests.model.importers.served import convert, post

REPOSITORY = Path(__file__).parents[3]
# 0.5 GB, of which the tied matrix takes 40 %, as in NLLB-600M
MEDIUM = nllb("medium", vocab_size=65_000, d_model=768, encoder_layers=5, decoder_layers=5)


def command(*arguments):
    return [sys.executable, "-m", "model", "convert", *map(str, arguments)]


@pytest.mark.long
def test_a_conversion_needs_half_as_much_memory_as_the_checkpoint_again(tmp_path):
    folder, bundle = tmp_path / "medium", tmp_path / "bundle"
    write_checkpoint(TINY, tmp_path / "tiny")
    size = write_checkpoint(MEDIUM, folder)
    libraries = run_command(command(tmp_path / "tiny", bundle)).peak
    ran = run_command(command(folder, bundle))
    assert 500e6 < size < 600e6
    assert ran.peak - libraries < 1.5 * size
    with safe_open(bundle / "int8" / "model.safetensors", "pt") as file:
        held = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    matrices = [name for name, each in held.items() if len(each.get_shape()) > 1]
    positions = [f"{side}.embedding.positions" for side in ("encoder", "decoder")]
    assert [name for name in matrices if held[name].get_dtype() != "I8"] == sorted(positions)
    assert [name for name in matrices if held[name].get_shape() == [65_000, 768]] == [
        "encoder.embedding.tokens.weight"
    ]


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint, and an older bundle in the place of its bundle."""
    folder, bundle = tmp_path / "checkpoint", tmp_path / "bundle"
    folder.mkdir()
    bundle.mkdir()
    write_marian(folder)
    (bundle / "bundle.json").write_text("old")
    return folder, bundle


def names_next_to(bundle):
    return sorted(path.name for path in bundle.parent.iterdir())


@pytest.mark.long
def test_a_killed_conversion_leaves_the_old_bundle_and_the_next_removes_the_rest(checkpoint):
    folder, bundle = checkpoint
    with subprocess.Popen(
        command(folder, bundle), cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
    ) as process:
        assert any("exporting" in line for line in process.stderr)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert (bundle / "bundle.json").read_text() == "old"
    (rest,) = {*names_next_to(bundle)} - {"bundle", "checkpoint"}
    assert rest.startswith(".bundle-")
    assert convert(folder, "both") == bundle
    assert json.loads((bundle / "bundle.json").read_text())["name"] == "bundle"
    assert names_next_to(bundle) == ["bundle", "checkpoint"]


@pytest.mark.long
def test_a_full_disk_leaves_the_old_bundle_and_says_so(checkpoint):
    folder, bundle = checkpoint
    limit = (folder / "model.safetensors").stat().st_size // 2

    def fill():  # as a full disk does: the write fails after some bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run(
        command(folder, bundle, "--precision", "fp32"),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=fill,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"heed: {bundle} cannot be written: File too large; an older bundle stays as it was:"
        " make room, or name another folder"
    )
    assert done.stdout == ""
    assert (bundle / "bundle.json").read_text() == "old"
    assert names_next_to(bundle) == ["bundle", "checkpoint"]


@pytest.mark.long
def test_int8_alone_decodes_as_hugging_face_does(tmp_path):
    """At most positions: its numbers are rounded."""
    (tmp_path / "nllb").mkdir()
    theirs = write_nllb(tmp_path / "nllb")
    bundle = convert(tmp_path / "nllb", "int8")
    assert [path.name for path in bundle.iterdir() if path.is_dir()] == ["int8"]
    languages = {"source_language": "eng_Latn", "target_language": "fra_Latn"}
    with opened(bundle) as client:
        assert client.get("/v1/models").json()["models"][0]["precision"] == "int8"
        texts = ["house", "water", "tree", "the sun", "one", "two", "three", "hand", "day", "stone"]
        plain = {"beam_size": 1, "no_repeat_ngram_size": 0, "repetition_penalty": 1.0}
        results = post(client, "/v1/decode", source=texts, **plain, **languages)
        sources = post(client, "/v1/tokenize", text=texts, **languages)
    same = 0
    for source, result in zip(sources, results, strict=True):
        ours = result["hypotheses"][0]["token_ids"]
        start = [2, theirs.config.vocab_size - 3]  # </s>, and French: before German and <mask>
        with torch.no_grad():
            logits = theirs(
                input_ids=torch.tensor([source["token_ids"]]),
                decoder_input_ids=torch.tensor([[*start, *ours[:-1]]]),
            ).logits[0, 1:]
        same += (logits.argmax(-1) == torch.tensor(ours)).float().mean().item()
    assert same > 0.8 * len(texts)
