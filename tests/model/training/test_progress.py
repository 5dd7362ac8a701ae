"""What a training says: at once what it read, and how far it is, with and without a terminal."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from model.__main__ import app
from model.checkpoint import NUM_EXAMPLES, examples_of, save_examples
from model.training.progress import with_lines
from tests.model.runs import copying_run
from tests.service.processes import run_python

REPOSITORY = Path(__file__).parent.parent.parent.parent
SHAPE = "--d-model 16 --d-ff 32 --num-heads 2 --num-encoder-layers 1 --num-decoder-layers 1"


def train_arguments(folder, epochs, *more):
    _, pairs, _ = copying_run(folder)
    files = [pairs, "--dev", pairs, "--run", folder / "new"]
    flags = ["--epochs", epochs, "--batch-size", 4, *SHAPE.split(), *more]
    return ["train", *map(str, [*files, *flags])]


FIRST = (
    "reading {pairs} and {pairs}",
    "14 pairs in {pairs}, 14 in {pairs}",
    "vocabulary: 5 characters of sources, 5 words of targets",
    "epoch 1 of 100000",
)


def test_a_pipe_gets_the_first_lines_while_the_training_goes_on(tmp_path):
    """Each when it is true, not when a buffer is full."""
    command = [sys.executable, "-m", "model", *train_arguments(tmp_path, 100_000)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as training:
        try:
            lines = [line.rstrip("\n") for line in itertools.islice(training.stdout, len(FIRST))]
            assert training.poll() is None
        finally:
            training.kill()
    assert lines == [line.format(pairs=tmp_path / "pairs.tsv") for line in FIRST]


@pytest.mark.parametrize("terminal", [False, True])
def test_epochs_are_named_when_they_begin_and_end(tmp_path, monkeypatch, terminal):
    """Lines without a terminal have no codes that only a terminal understands."""
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    done = CliRunner().invoke(app, train_arguments(tmp_path, 2))
    assert done.exit_code == 0, done.output
    assert ("\x1b" in done.output) == terminal
    places = [
        done.output.index(said)
        for said in ("epoch 1 of 2", "epoch 1: train loss", "epoch 2 of 2", "epoch 2: train loss")
    ]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--source-unit", "words"], "14 words of sources, 5 words of targets"),
        (["--target-unit", "characters"], "5 characters of sources, 6 characters of targets"),
        (["--source-unit", "pieces"], "pieces of sources, 5 words of targets"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_the_vocabulary_is_said_in_its_units(tmp_path, more, said):
    done = CliRunner().invoke(app, train_arguments(tmp_path, 1, *more))
    assert re.search(f"^vocabulary: .*{said}$", done.output, re.MULTILINE), done.output


def test_a_resumed_training_says_where_it_goes_on(tmp_path, monkeypatch):
    arguments = train_arguments(tmp_path, 3)
    with monkeypatch.context() as patch:
        saved = []

        def stop_at_second(*_):
            saved.append(1)
            if len(saved) == 2:
                raise KeyboardInterrupt
            return 1.0

        patch.setattr("model.training.loop.mean_loss", stop_at_second)
        CliRunner().invoke(app, arguments)
    done = CliRunner().invoke(app, arguments)
    assert "resuming after epoch 1 of 3\nepoch 2 of 3\n" in done.output
    again = CliRunner().invoke(app, arguments)
    assert "epoch" not in again.output


def test_a_long_epoch_says_how_far_it_is(capsys):
    losses = list(with_lines(iter([3.0, 2.0, 1.5]), "epoch 1 of 9", 5, 2, seconds=0))
    assert losses == [3.0, 2.0, 1.5]
    assert capsys.readouterr().out.splitlines() == [
        "epoch 1 of 9",
        "epoch 1 of 9: 2 of 5 pairs, loss 3.00",
        "epoch 1 of 9: 4 of 5 pairs, loss 2.00",
        "epoch 1 of 9: 5 of 5 pairs, loss 1.50",
    ]


@pytest.mark.parametrize(("own", "read"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_that_wait_sleep_before_torch_reads_how(own, read):
    """OpenMP reads the variable when torch is imported, so that it must be set by then."""
    code = """
import os, runpy, sys
class Watch:
    def find_spec(self, name, *_):
        if name == "torch":
            sys.exit(os.environ.get("OMP_WAIT_POLICY"))
sys.meta_path.insert(0, Watch())
sys.argv = ["model", "--help"]
runpy.run_module("model", run_name="__main__")
"""
    variables = {name: text for name, text in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if own:
        variables["OMP_WAIT_POLICY"] = own
    assert run_python("-c", code, env=variables).stderr.strip() == read


def cpu_seconds(arguments, **variables):
    """The CPU time of a training that has no core of its own."""
    before = os.times()
    done = run_python("-m", "model", *arguments, env=os.environ | variables, timeout=None)
    after = os.times()
    assert done.returncode == 0, done.stderr
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


@pytest.mark.long
def test_a_busy_machine_costs_a_training_no_more_cpu_than_one_thread(tmp_path):
    """Threads that spin would burn what they wait for: they took several times as much."""
    spin = [sys.executable, "-c", "while True: pass"]
    cores = len(os.sched_getaffinity(0))
    busy = [subprocess.Popen(spin) for _ in range(2 * cores)]
    try:
        one = cpu_seconds(train_arguments(tmp_path / "one", 20), OMP_NUM_THREADS="1")
        all_cores = cpu_seconds(train_arguments(tmp_path / "all", 20), OMP_NUM_THREADS=str(cores))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert all_cores < 2.5 * one


@pytest.mark.parametrize("count", [1, 2, 3, 4, 100])
def test_a_run_keeps_training_sources_as_examples(tmp_path, count):
    sources = [f"source {i}" for i in range(count)]
    save_examples(tmp_path, [*sources, *sources])  # some have several targets
    kept = examples_of(tmp_path)
    assert len(kept) == len(set(kept)) == min(count, NUM_EXAMPLES)
    assert set(kept) <= set(sources)
    assert kept == sorted(kept, key=sources.index)


def test_examples_are_short_and_keep_their_letters(tmp_path):
    save_examples(tmp_path, ["a" * 5000, "日本 é"])
    assert examples_of(tmp_path) == ["日本 é"]
    save_examples(tmp_path, ["a" * 5000])
    assert examples_of(tmp_path) == []


def test_a_run_without_examples_has_none(tmp_path):
    assert examples_of(tmp_path) == []


@pytest.mark.long
@pytest.mark.parametrize("given", [[], ["abc"]], ids=["none", "own"])
def test_a_bundle_has_training_sources_as_examples_unless_others_are_given(tmp_path, given):
    assert CliRunner().invoke(app, train_arguments(tmp_path, 1)).exit_code == 0
    flags = [word for text in given for word in ("--example", text)]
    bundle = tmp_path / "bundle"
    done = CliRunner().invoke(app, ["export", str(tmp_path / "new"), str(bundle), *flags])
    assert done.exit_code == 0, done.output
    examples = [
        each["source"] for each in json.loads((bundle / "bundle.json").read_text())["examples"]
    ]
    lines = (tmp_path / "pairs.tsv").read_text().splitlines()
    assert set(examples) <= {line.split("\t")[0] for line in lines}
    assert examples == (given or examples_of(tmp_path / "new"))
    assert examples
