import os
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from model.__main__ import app, main
from model.network.config import InputError
from tests.model.runs import copying_run, small_command, teacher_run
from tests.service.processes import run_python


def test_a_refused_training_can_be_repeated_with_other_options(tmp_path):
    _, pairs, _ = copying_run(tmp_path)
    start = pairs, "--dev", pairs, "--run", tmp_path / "new", "--epochs", "1"
    refused = small_command(*start, "--max-source-length", "2")
    expected = (
        f"{pairs}:2: source 'abc' has 3 tokens, more than the max_source_length of 2:"
        " shorten or remove it, or train with a larger --max-source-length"
    )
    assert str(refused.exception) == expected
    done = small_command(*start, "--max-source-length", "3")
    assert done.exit_code == 0, done.output


def test_a_folder_without_a_model_is_refused(tmp_path):
    run, pairs, _ = copying_run(tmp_path)  # no epoch is finished
    start = pairs, "--dev", pairs, "--run", tmp_path / "new"
    for refused in (
        small_command(*start, "--start", run),
        small_command(*start, "--teacher", run),
        CliRunner().invoke(app, ["evaluate", str(run), str(pairs)]),
    ):
        expected = f"{run} is neither a bundle nor a training run with a finished epoch"
        assert str(refused.exception) == expected
    assert not (tmp_path / "new").exists()


def test_a_checkpoint_of_another_library_is_referred_to_convert(tmp_path):
    """Its files may have the names of a training run's."""
    _, pairs, _ = copying_run(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").touch()
    (other / "config.json").write_text('{"model_type": "marian", "d_model": 512}')
    start = pairs, "--dev", pairs, "--run", tmp_path / "new"
    for refused in (
        small_command(*start, "--start", other),
        small_command(*start, "--teacher", other),
        CliRunner().invoke(app, ["evaluate", str(other), str(pairs)]),
        CliRunner().invoke(app, ["export", str(other), str(tmp_path / "bundle")]),
    ):
        assert str(refused.exception) == (
            f"{other / 'config.json'} does not describe a network of Heed's: give a training run or"
            " a bundle; `heed convert` makes a bundle of another library's checkpoint"
        )
    (other / "config.json").unlink()
    refused = CliRunner().invoke(app, ["evaluate", str(other), str(pairs)])
    expected = f"{other} has neither config.json nor bundle.json: give a run or a bundle"
    assert str(refused.exception) == expected
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_bundle_json_that_was_damaged_by_an_editor_is_named(tmp_path, content):
    _, pairs, _ = copying_run(tmp_path)
    file = tmp_path / "bundle" / "bundle.json"
    file.parent.mkdir()
    file.write_text(content)
    (file.parent / "fp32").mkdir()
    (file.parent / "fp32" / "model.safetensors").touch()
    for command in (["evaluate", str(file.parent), str(pairs)], ["align", str(file.parent)]):
        refused = CliRunner().invoke(app, command)
        assert isinstance(refused.exception, InputError)
        assert str(refused.exception).startswith(f"{file} ")


@pytest.mark.parametrize("missing", ["typer", "torch", "onnx"])
def test_a_missing_extra_is_named_in_one_line(missing):
    code = f"""
import runpy, sys
sys.modules[{missing!r}] = None  # as if it were not installed
sys.argv = ["model", "--help"]
runpy.run_module("model", run_name="__main__")
"""
    done = run_python("-c", code)
    assert done.returncode == 2
    advice = "run pipx install --force '.[model]', or pip install 'heed-server[model]'"
    assert done.stderr == f"heed: {missing} is not installed: {advice}\n"


def test_int8_without_onnxruntime_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    run, _ = teacher_run(tmp_path / "a", seed=1)
    bundle = tmp_path / "bundle"
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "model.export.checks.compare", raising=False)
    command = ["export", str(run), str(bundle), "--precision", "int8"]
    refused = CliRunner().invoke(app, command)
    assert str(refused.exception) == (
        "--precision int8 measures its error with onnxruntime, which is not installed:"
        " run pip install heed-server"
    )
    assert not bundle.exists()


@pytest.mark.parametrize(
    ("examples", "said"),
    [
        (["red", ""], "an example has 0 characters: give --example 1 to 1000"),
        (["a" * 1001], "an example has 1001 characters"),
        (["red"] * 11, "11 examples are given and a bundle holds at most 10"),
    ],
)
def test_examples_that_the_service_would_refuse_are_not_written(tmp_path, examples, said):
    """tests/service/test_bundle.py has the same limits."""
    run, _ = teacher_run(tmp_path / "a", seed=1)
    bundle = tmp_path / "bundle"
    flags = [word for example in examples for word in ("--example", example)]
    refused = CliRunner().invoke(app, ["export", str(run), str(bundle), *flags])
    assert str(refused.exception).startswith(said)
    assert not bundle.exists()


def test_every_argument_and_option_is_explained():
    for command in get_command(app).commands.values():
        assert command.help, command.name
        for parameter in command.params:
            assert parameter.help, (command.name, parameter.name)


@pytest.mark.parametrize("flag", ["--notice", "--model-card"])
def test_a_text_of_a_bundle_that_is_not_utf_8_is_named(tmp_path, flag):
    run, _ = teacher_run(tmp_path / "a", seed=1)
    (tmp_path / "text").write_bytes(b"\xe9")
    command = ["export", str(run), str(tmp_path / "bundle"), flag, str(tmp_path / "text")]
    expected = f"{tmp_path / 'text'} is not UTF-8: convert it"
    assert str(CliRunner().invoke(app, command).exception) == expected


@pytest.mark.parametrize("place", ["missing/x", "pairs.tsv/x", "folder", "locked/x", "locked/old"])
def test_predictions_that_cannot_be_written_are_refused_before_the_model_is_loaded(
    tmp_path, monkeypatch, place
):
    run, pairs, _ = copying_run(tmp_path)  # a model that evaluate refuses
    for name in ("folder", "locked"):
        (tmp_path / name).mkdir()
    (tmp_path / "locked" / "old").touch()
    # as for a user other than root
    monkeypatch.setattr(os, "access", lambda path, _: "locked" not in str(path))
    flag = "--predictions", str(tmp_path / place)
    refused = CliRunner().invoke(app, ["evaluate", str(run), str(pairs), *flag])
    assert refused.exit_code == 2
    assert "Invalid value for '--predictions'" in refused.stderr
    assert str(tmp_path / place.partition("/")[0]) in refused.stderr.splitlines()[-1]


@pytest.mark.parametrize("place", ["new", "old"])
def test_predictions_are_written_to_a_new_file_or_an_old_one(tmp_path, place):
    run, pairs = teacher_run(tmp_path / "a", seed=1)
    (tmp_path / "old").write_text("old")
    path = tmp_path / place
    done = CliRunner().invoke(app, ["evaluate", str(run), str(pairs), "--predictions", str(path)])
    assert done.exit_code == 0, done.output
    sources = {line.partition("\t")[0] for line in pairs.read_text().splitlines()}
    assert {line.partition("\t")[0] for line in path.read_text().splitlines()} == sources


@pytest.mark.parametrize("place", ["pairs.tsv/new", "pairs.tsv/new/run", "x" * 300])
@pytest.mark.parametrize("command", ["train", "export-attend"])
def test_a_folder_that_cannot_be_made_is_named_in_one_line(tmp_path, monkeypatch, command, place):
    _, pairs, _ = copying_run(tmp_path)
    folder = str(tmp_path / place)
    flags = [str(pairs), "--dev", str(pairs), "--run"] if command == "train" else []
    monkeypatch.setattr(sys, "argv", ["heed", command, *flags, folder])
    with pytest.raises(SystemExit) as refused:
        main()
    said = str(refused.value.code)
    assert said.startswith(f"heed: {tmp_path / place.partition('/')[0]}")
    assert "name a path that can be read and written" in said
    assert "\n" not in said


@pytest.mark.parametrize("command", [None, *get_command(app).commands])
def test_every_command_takes_a_short_flag_for_help(command):
    before = [command] if command else []
    short, long = (CliRunner().invoke(app, [*before, flag]) for flag in ("-h", "--help"))
    assert (short.exit_code, short.stdout) == (0, long.stdout)
    assert "-h, --help" in short.stdout
