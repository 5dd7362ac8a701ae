"""Folders that cannot be converted are refused in one sentence, and nothing of them runs."""

import json
import os
import shutil
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from model.importers.checkpoint import read_json, read_toml
from model.importers.proofs import hugging_face
from model.importers.tokenizers.piece_file import read_vocabulary
from model.network.config import InputError
from tests.model.importers.checkpoints import write_marian
from tests.model.importers.served import refusal, run


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused") / "marian"
    folder.mkdir()
    write_marian(folder)
    return folder


def edit(folder, name="config.json", **changes):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut(folder, name):
    path = folder / name
    os.truncate(path, path.stat().st_size // 2)


def change(folder, name, changed):
    """Replace a tensor by what `changed` makes of it."""
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {name: changed(tensors[name])}, folder / "model.safetensors")


def write_bin(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def point(folder, name):
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\n")


def write_shards(folder):
    tensors, places = load_file(folder / "model.safetensors"), {}
    for i in (1, 2, 3):
        file = f"model-0000{i}-of-00003.safetensors"
        names = sorted(tensors)[i - 1 :: 3]
        save_file({name: tensors[name] for name in names}, folder / file)
        places |= dict.fromkeys(names, file)
    index = {"weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()


SECOND = "model-00002-of-00003.safetensors"
WEIGHT = "model.encoder.layers.0.fc1.weight"


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda f: (f / "vocab.json").unlink(), "has no vocab.json"),
        (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
        (lambda f: cut(f, "model.safetensors"), "model.safetensors is damaged or cut short"),
        (lambda f: (write_bin(f), cut(f, "pytorch_model.bin")), "pytorch_model.bin is damaged"),
        (lambda f: (write_shards(f), cut(f, SECOND)), f"{SECOND} is damaged or cut short"),
        (lambda f: (write_shards(f), (f / SECOND).unlink()), f"shard 2 of 3, {SECOND}, is missing"),
        (lambda f: change(f, WEIGHT, lambda t: t / 0), f"tensor {WEIGHT} holds NaN or infinity"),
        (lambda f: change(f, WEIGHT, lambda t: t[1:]), f"tensor {WEIGHT} has shape (47, 32)"),
        (lambda f: cut(f, "source.spm"), "source.spm"),
        (lambda f: edit(f, model_type="longt5"), "model_type 'longt5': Heed knows bart, mbart"),
        (
            lambda f: edit(f, model_type="IndicTrans", auto_map={"AutoConfig": "x.Y"}),
            "is IndicTrans2, which Heed does not convert: its IndicProcessor, outside of the",
        ),
        (
            lambda f: edit(f, encoder_attention_heads=3, decoder_attention_heads=3),
            "config.json has encoder_attention_heads 3; expected a divisor of d_model, 32",
        ),
        (lambda f: edit(f, decoder_ffn_dim=64), "encoder_ffn_dim 48 and decoder_ffn_dim 64"),
        (
            lambda f: edit(f, model_type="llama", architectures=["LlamaForCausalLM"]),
            "umt5; it has a decoder alone, and Heed serves encoder-decoders",
        ),
        (lambda f: edit(f, activation_function="mish"), "activation_function 'mish'"),
        (lambda f: edit(f, decoder_layers=1), "tensors that a model of this kind does not have"),
        (lambda f: edit(f, decoder_layers=3), "incomplete, so download its weights again"),
        (lambda f: edit(f, "generation_config.json", do_sample=True), "do_sample True"),
        (
            lambda f: ((f / "README.md").write_text("a"), cut(f, "model.safetensors")),
            "README.md names no license at its head: give --licence",
        ),
        (lambda f: point(f, "model.safetensors"), "model.safetensors is a git-lfs pointer"),
        (lambda f: point(f, "source.spm"), "source.spm is a git-lfs pointer to the file itself:"),
        (lambda f: point(f, "vocab.json"), "vocab.json is a git-lfs pointer to the file itself"),
        (lambda f: point(f, "config.json"), "config.json is a git-lfs pointer to the file itself"),
        (
            lambda f: (write_bin(f), point(f, "pytorch_model.bin")),
            "pytorch_model.bin is a git-lfs pointer to the file itself: run git lfs pull",
        ),
        (
            lambda f: edit(f, "generation_config.json", early_stopping="never"),
            "generation_config.json has early_stopping 'never': expected true or false",
        ),
        (lambda f: edit(f, "generation_config.json", stop_strings=["."]), "stop_strings ['.']: "),
    ],
)
def test_a_folder_that_cannot_be_converted_is_refused_in_one_sentence(
    checkpoint, tmp_path, break_it, said
):
    folder, bundle = tmp_path / "marian", tmp_path / "bundle"
    shutil.copytree(checkpoint, folder)
    bundle.mkdir()
    (bundle / "bundle.json").write_text("an older bundle")
    break_it(folder)
    assert said in refusal(folder, bundle)
    assert [path.name for path in bundle.iterdir()] == ["bundle.json"]
    assert {path.name for path in tmp_path.iterdir()} == {"marian", "bundle"}


@pytest.mark.parametrize("content", ["[" * 100_000, "9" * 5000], ids=["nested", "huge"])
@pytest.mark.parametrize(
    ("read_file", "start"), [(read_json, ""), (read_vocabulary, ""), (read_toml, "key = ")]
)
def test_a_file_that_is_nested_too_deep_or_has_huge_numbers_is_refused(
    tmp_path, read_file, start, content
):
    (tmp_path / "file").write_text(start + content)
    with pytest.raises(InputError, match=r"is not (JSON|TOML)"):
        read_file(tmp_path / "file")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["opus mt"], "name 'opus mt', which the folder's name gives, must begin"),
        (["opus", "--name", "a b"], "name 'a b' must begin with"),
        (["opus", "--expected-share", "0.9"], "says nothing without --expected FILE: give both"),
        (["opus", "--max-length", "32"], "is for T5 and its kin, and for files of "),
    ],
)
def test_an_option_that_does_not_fit_is_refused(checkpoint, tmp_path, arguments, said):
    bundle, *options = arguments
    assert said in refusal(checkpoint, tmp_path / bundle, *options)


class Shell:
    """An object whose pickle runs a command when it is loaded."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pickle_does_not_run(checkpoint, tmp_path, zipped):
    folder, ran = tmp_path / "marian", tmp_path / "ran"
    shutil.copytree(checkpoint, folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weights = folder / "pytorch_model.bin"
    content = tensors | {"extra": Shell(f"touch {ran}")}
    torch.save(content, weights, _use_new_zipfile_serialization=zipped)
    torch.load(weights, weights_only=False)
    assert ran.exists()  # the trap works
    ran.unlink()
    done = run(folder, tmp_path / "bundle")
    assert not ran.exists()
    assert done.exit_code == 2
    assert "pytorch_model.bin holds more than tensors, namely posix.system" in done.output


def test_a_failed_proof_leaves_no_bundle(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(hugging_face, "their_log_probs", lambda *_: np.zeros(1, np.float32))
    done = run(checkpoint, tmp_path / "bundle")
    assert done.exit_code == 3
    assert "| network |" in done.output
    assert "FAILS" in done.output
    assert not any(tmp_path.iterdir())


@pytest.mark.long
def test_a_checkpoint_is_converted_without_transformers(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    done = run(checkpoint, tmp_path / "bundle", "--precision", "fp32")
    assert done.exit_code == 0, done.output
    assert "not compared" in done.output
