from typer.testing import CliRunner

from model.__main__ import app
from tests.model.training.test_loop import copying_run


def small_command(*arguments):
    shape = "--d-model 16 --d-ff 32 --num-heads 2 --num-encoder-layers 1 --num-decoder-layers 1"
    return CliRunner().invoke(app, [str(each) for each in ("train", *arguments, *shape.split())])


def test_a_refused_command_can_be_mended(tmp_path):
    _, pairs, _ = copying_run(tmp_path)
    start = pairs, "--dev", pairs, "--run", tmp_path / "new", "--epochs", "1"
    refused = small_command(*start, "--max-source-length", "2")
    assert str(refused.exception) == "source 'abc' exceeds the max_source_length of 2 tokens"
    done = small_command(*start, "--max-source-length", "3")
    assert done.exit_code == 0, done.output


def test_a_run_goes_on_with_the_pairs_and_options_that_it_was_started_with(tmp_path):
    _, pairs, _ = copying_run(tmp_path)
    run = tmp_path / "new"
    start = pairs, "--dev", pairs, "--run", run
    assert small_command(*start, "--epochs", "1").exit_code == 0
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert small_command(*start, "--epochs", "1").exit_code == 0
    refused = small_command(*start, "--epochs", "2")
    assert str(refused.exception) == f"{run} was started with epochs 1, not 2: name another run"
    pairs.write_text(pairs.read_text().replace("dab", "bda"))
    refused = small_command(*start, "--epochs", "1")
    assert f"{run} was started with pairs_sha256" in str(refused.exception)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_what_is_no_model_is_refused(tmp_path):
    run, pairs, _ = copying_run(tmp_path)  # no epoch is behind it
    start = pairs, "--dev", pairs, "--run", tmp_path / "new"
    for refused in (
        small_command(*start, "--start", run),
        small_command(*start, "--teacher", run),
        CliRunner().invoke(app, ["evaluate", str(run), str(pairs)]),
    ):
        expected = f"{run} is no bundle and no run with an epoch behind it"
        assert str(refused.exception) == expected
    assert not (tmp_path / "new").exists()
