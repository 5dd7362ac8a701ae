import json

import pytest

from model.checkpoint import load_tokenizers
from model.data.tokenizers import Unit
from model.training.run import OPTIONS, SOFT_LABELS
from tests.model.runs import copying_run, small_command, teacher_run

ADVICE = "give the same or name another run"


def command(run, pairs, dev, *options):
    lengths = "--max-source-length 8 --max-target-length 8 --no-rotary --no-norm-first --epochs 1"
    return small_command(pairs, "--dev", dev, "--run", run, *lengths.split(), *options)


@pytest.mark.parametrize("option", ["--start", "--teacher"])
def test_a_training_uses_the_tokenizers_of_the_model_it_starts_or_learns_from(tmp_path, option):
    other, pairs = teacher_run(tmp_path / "a", seed=1)
    run, few = tmp_path / "run", tmp_path / "few.tsv"
    known = "aabab\ta a b a b\nbabba\tb a b b a\n"
    for unknown, error in [("abd\ta b", "'abd' has 'd'"), ("ab\ta d", "'a d' has 'd'")]:
        few.write_text(known + unknown)
        done = command(run, few, pairs, option, other)
        assert (
            str(done.exception)
            == f"{few}:3: {error}, not in the vocabulary: remove or respell this text"
        )
    few.write_text(known)
    done = command(run, few, pairs, option, other)
    assert done.exit_code == 0, done.output
    assert load_tokenizers(run)[0].get_vocab_size() == 7  # c too
    assert (run / SOFT_LABELS).exists() == (option == "--teacher")


def test_a_run_is_created_in_an_empty_folder_but_not_in_one_with_other_files(tmp_path):
    other, pairs = teacher_run(tmp_path / "a", seed=1)
    run = tmp_path / "run"
    run.mkdir()
    config = run / "config.json"
    config.write_text("mine")
    done = command(run, pairs, pairs, "--start", other)
    assert str(done.exception) == f"{run} is neither empty nor a training run: name another folder"
    assert config.read_text() == "mine"
    config.unlink()
    done = command(run, pairs, pairs, "--start", other)
    assert done.exit_code == 0, done.output


def test_a_model_that_does_not_fit_is_refused_before_a_run_is_created(tmp_path):
    own, pairs = teacher_run(tmp_path / "own", seed=0)
    letters, _ = teacher_run(tmp_path / "letters", seed=0, alphabet="abcd")
    wide, _ = teacher_run(tmp_path / "wide", seed=0, d_ff=40)
    short, _ = teacher_run(tmp_path / "short", seed=0, max_target_length=7)
    for options, error in [
        (
            ("--start", own, "--teacher", letters),
            f"{letters} and {own} have different tokenizers: give models that share one",
        ),
        (
            ("--start", wide),
            f"--start {wide} has d_ff 40, not 32: give the same values as that model",
        ),
        (
            ("--teacher", short),
            f"--teacher {short} takes at most 8 source and 7 target tokens:"
            " lower --max-source-length or --max-target-length",
        ),
        (
            ("--synthetic-sources", "1"),
            "--synthetic-sources needs a --teacher to label the synthetic sources",
        ),
    ]:
        done = command(tmp_path / "run", pairs, pairs, *options)
        assert str(done.exception) == error
    assert not (tmp_path / "run").exists()
    done = command(tmp_path / "run", pairs, pairs, "--start", own, "--dropout", "0.5")
    assert done.exit_code == 0, done.output


def test_a_run_with_soft_labels_keeps_the_options_they_were_made_with(tmp_path, monkeypatch):
    teacher, pairs = teacher_run(tmp_path / "a", seed=1)
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("model.training.loop.train_epoch", lambda *_: 1 / 0)
        stopped = command(run, pairs, pairs, "--teacher", teacher)
    assert isinstance(stopped.exception, ZeroDivisionError)
    refused = command(run, pairs, pairs, "--teacher", teacher, "--seed", "1")
    assert str(refused.exception) == f"{run} was started with seed 0, not 1: {ADVICE}"
    done = command(run, pairs, pairs, "--teacher", teacher)
    assert done.exit_code == 0, done.output


def test_a_run_resumes_only_with_the_pairs_and_options_it_was_started_with(tmp_path):
    _, pairs, _ = copying_run(tmp_path)
    run = tmp_path / "new"
    start = pairs, "--dev", pairs, "--run", run
    assert small_command(*start, "--epochs", "1").exit_code == 0
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert small_command(*start, "--epochs", "1").exit_code == 0
    refused = small_command(*start, "--epochs", "2")
    assert str(refused.exception) == f"{run} was started with epochs 1, not 2: {ADVICE}"
    pairs.write_text(pairs.read_text().replace("dab", "bda"))
    refused = small_command(*start, "--epochs", "1")
    expected = f"{run} was started with other pairs (another SHA-256): {ADVICE}"
    assert str(refused.exception) == expected
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_a_run_that_lacks_an_option_is_not_resumed(tmp_path):
    _, pairs, _ = copying_run(tmp_path)
    run = tmp_path / "new"
    start = pairs, "--dev", pairs, "--run", run, "--epochs", "1"
    assert small_command(*start).exit_code == 0
    options = json.loads((run / OPTIONS).read_text())
    del options["warmup"]
    (run / OPTIONS).write_text(json.dumps(options))
    refused = small_command(*start)
    assert str(refused.exception) == f"{run} was started with warmup None, not 0.05: {ADVICE}"


@pytest.mark.parametrize(
    ("side", "unit", "other"),
    [
        ("source", Unit.characters, Unit.words),
        ("source", Unit.characters, Unit.pieces),
        ("target", Unit.words, Unit.characters),
    ],
)
def test_a_run_names_the_unit_it_was_started_with(tmp_path, side, unit, other):
    _, pairs, _ = copying_run(tmp_path)
    run = tmp_path / "new"
    start = pairs, "--dev", pairs, "--run", run, "--epochs", "1"
    assert small_command(*start).exit_code == 0
    refused = small_command(*start, f"--{side}-unit", other)
    assert str(refused.exception) == f"{run} was started with --{side}-unit {unit}: {ADVICE}"


def test_a_run_of_pieces_is_resumed_with_the_same_vocabulary_size_only(tmp_path):
    _, pairs, _ = copying_run(tmp_path)
    units = "--source-unit", "pieces", "--target-unit", "pieces", "--epochs", "1"
    start = pairs, "--dev", pairs, "--run", tmp_path / "new", *units
    assert small_command(*start).exit_code == 0
    assert small_command(*start).exit_code == 0
    refused = small_command(*start, "--vocabulary-size", "8")
    assert "was started with source_vocab_size" in str(refused.exception)


def test_a_training_says_which_texts_it_puts_in_lower_case(tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("paris\ta\n\nOslo\tB\nRÓma\tA\n")
    start = pairs, "--dev", pairs, "--run", tmp_path / "run", "--epochs", "1"
    done = small_command(*start)
    assert done.exit_code == 0, done.output
    assert done.output.count("note:") == 1  # targets are words, which keep their case
    assert (
        "note: sources are normalized and put in lower case, which changes 2 of 3;"
        f" at {pairs}:3, 'Oslo' becomes 'oslo'; --case keep keeps capitals\n"
    ) in done.output
    resumed = small_command(*start, "--case", "keep")
    error = f"{tmp_path / 'run'} was started with --case lower: {ADVICE}"
    assert str(resumed.exception) == error
    kept = small_command(*start[:-3], tmp_path / "kept", "--epochs", "1", "--case", "keep")
    assert "note:" not in kept.output
    assert load_tokenizers(tmp_path / "kept")[0].encode("Oslo").tokens == [*"Oslo"]


def test_dev_pairs_with_unknown_symbols_are_counted_in_a_note(tmp_path):
    _, pairs, _ = copying_run(tmp_path)
    dev = tmp_path / "dev.tsv"
    dev.write_text("ab\ta b\n\nxab\ta b y\n")
    done = small_command(pairs, "--dev", dev, "--run", tmp_path / "new", "--epochs", "1")
    assert done.exit_code == 0, done.output
    first = f"{dev}:3: 'xab' has 'x', not in the vocabulary"
    assert "note: 2 dev texts have symbols without a token" in done.output
    assert f"the first is {first}\n" in done.output
    known = small_command(pairs, "--dev", pairs, "--run", tmp_path / "newer", "--epochs", "1")
    assert "note:" not in known.output
