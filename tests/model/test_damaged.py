"""Runs and bundles with damaged files: each command says in one line which file it is."""

import errno
import shutil
from functools import partial

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from model.__main__ import app
from model.network.config import InputError
from model.training.run import load_pickle
from tests.model.runs import copying_run, small_command, teacher_run
from tests.service.mutations.edit import cut, edit_json, write

TOKENIZER = "source.tokenizer.json"


def remove(name, folder):
    (folder / name).unlink()


def replace_by_folder(name, folder):
    remove(name, folder)
    (folder / name).mkdir()


def configure(name, value, folder):
    """Change a size of the network in a bundle or a run."""
    manifest = folder / "bundle.json"
    file = manifest if manifest.exists() else folder / "config.json"
    edit_json(file.name, lambda found: found.get("config", found).__setitem__(name, value), folder)


def change_weights(change, folder):
    path = folder / "model.safetensors"
    change(path.name, folder) if path.exists() else change("fp32/model.safetensors", folder)


def save_others(name, folder):
    save_file({"other": torch.zeros(2)}, folder / name)


DAMAGES = {
    "weights cut": partial(change_weights, lambda name, folder: cut(name, 0.5, folder)),
    "weights empty": partial(change_weights, lambda name, folder: write(name, b"", folder)),
    "weights removed": partial(change_weights, remove),
    "other weights": partial(change_weights, save_others),
    "tokenizer removed": partial(remove, TOKENIZER),
    "tokenizer a folder": partial(replace_by_folder, TOKENIZER),
    "tokenizer cut": partial(cut, "target.tokenizer.json", 0.5),
    "tokenizer not UTF-8": partial(write, TOKENIZER, b"\x80\xff"),
    "tokenizer of nothing": partial(write, TOKENIZER, b"{}"),
    "larger": partial(configure, "d_ff", 64),
    "deeper": partial(configure, "num_decoder_layers", 3),
    "text": partial(configure, "d_model", "16"),
    "null": partial(configure, "num_heads", None),
    "fraction": partial(configure, "d_ff", 32.5),
}


def assert_one_line(result, name):
    assert isinstance(result.exception, InputError), result.exception
    assert name in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["run", "bundle"])
def test_a_command_names_the_damaged_file_and_writes_nothing(tmp_path, tiny, kind, damage):
    run, pairs = teacher_run(tmp_path / "a", seed=1)
    folder = run if kind == "run" else shutil.copytree(tiny, tmp_path / "tiny")
    DAMAGES[damage](folder)
    new, bundle = tmp_path / "new", tmp_path / "bundle"
    for refused in (
        CliRunner().invoke(app, ["evaluate", str(folder), str(pairs)]),
        CliRunner().invoke(app, ["export", str(folder), str(bundle)]),
        *(
            small_command(pairs, "--dev", pairs, "--run", new, flag, folder)
            for flag in ("--start", "--teacher")
        ),
    ):
        assert_one_line(refused, str(folder))
    assert not new.exists()
    assert not bundle.exists()


@pytest.mark.parametrize("name", ["fp32/model.safetensors", "fp32/step.onnx", TOKENIZER])
@pytest.mark.parametrize(
    "damage",
    [
        remove,
        lambda name, folder: cut(name, 0.5, folder),
        lambda name, folder: write(name, b"\x80", folder),
    ],
    ids=["removed", "cut", "overwritten"],
)
def test_no_alignment_is_written_into_a_damaged_bundle(tmp_path, tiny, name, damage):
    bundle = shutil.copytree(tiny, tmp_path / "tiny")
    damage(name, bundle)
    before = (bundle / "bundle.json").read_bytes()
    assert_one_line(CliRunner().invoke(app, ["align", str(bundle)]), str(bundle / name))
    assert (bundle / "bundle.json").read_bytes() == before


@pytest.mark.parametrize("content", ["", "{", "{}", "[1]", '"abc"', "null"])
def test_examples_of_a_run_that_are_damaged_are_named(tmp_path, content):
    run, _ = teacher_run(tmp_path / "a", seed=1)
    (run / "examples.json").write_text(content)
    command = ["export", str(run), str(tmp_path / "bundle")]
    assert_one_line(CliRunner().invoke(app, command), str(run / "examples.json"))


@pytest.mark.parametrize("name", ["checkpoint.pt", "soft-labels.pt"])
@pytest.mark.parametrize("share", [0, 0.1, 0.9])
def test_a_run_with_a_damaged_file_goes_on_once_it_is_removed(tmp_path, monkeypatch, name, share):
    teacher, pairs = teacher_run(tmp_path / "a", seed=1)
    run = tmp_path / "run"
    options = "--max-source-length 8 --max-target-length 8 --no-rotary --no-norm-first"
    command = (pairs, "--dev", pairs, "--run", run, "--teacher", teacher, *options.split())
    with monkeypatch.context() as patch:
        saved = iter([None])
        patch.setattr(
            "model.training.loop.train_epoch", lambda *_: 1 / 0 if next(saved, 1) else iter([1.0])
        )
        small_command(*command, "--epochs", "2")
    cut(name, share, run)
    refused = small_command(*command, "--epochs", "2")
    expected = f"{run / name} is damaged: remove it, and repeat the command to make it again"
    assert str(refused.exception) == expected
    remove(name, run)
    done = small_command(*command, "--epochs", "2")
    assert done.exit_code == 0, done.output


def test_a_damaged_byte_of_a_run_is_found_or_loads(tmp_path):
    file = tmp_path / "checkpoint.pt"
    torch.save({"epoch": 3, "names": ["é", "b"], "weights": torch.arange(4.0)}, file)
    whole, refused = file.read_bytes(), 0
    for place in range(0, len(whole), 3):
        for byte in (0xFF, whole[place] ^ 1):
            file.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
            try:
                load_pickle(file)
            except InputError:
                refused += 1
    assert refused > 100


def test_a_file_of_a_run_that_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(torch, "load", refuse)
    with pytest.raises(PermissionError):
        load_pickle(tmp_path / "checkpoint.pt")


def test_an_epoch_without_the_weights_of_the_one_before_names_them(tmp_path):
    _, pairs, _ = copying_run(tmp_path)
    command = pairs, "--dev", pairs, "--run", tmp_path / "new", "--epochs", "2"
    assert small_command(*command).exit_code == 0
    run = tmp_path / "new"
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    torch.save(state | {"epoch": 0}, run / "checkpoint.pt")
    cut("epoch-0.safetensors", 0.5, run)
    assert_one_line(small_command(*command), str(run / "epoch-0.safetensors"))
