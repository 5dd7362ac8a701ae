import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, reject
from hypothesis import strategies as st

from model.checkpoint import (
    WEIGHTS,
    create_run,
    load_config,
    load_model,
    load_tokenizers,
    save_weights,
)
from model.data.pairs import Example, collate, encode_pairs, join_examples, read_pairs
from model.data.tokenizers import Unit, build_tokenizer
from model.network.config import InputError, TransformerConfig
from model.network.transformer import Transformer
from model.training.loop import LESSONS, loss_of, read_lessons, train
from model.training.teachers import answer, made_up_sources, teach
from tests.model.test_commands import small_command
from tests.model.training.test_loop import OPTIONS, stopped_after

CONFIG = TransformerConfig(
    source_vocab_size=9,
    target_vocab_size=11,
    d_model=16,
    d_ff=32,
    num_heads=2,
    d_qk=8,
    d_v=8,
    num_encoder_layers=1,
    num_decoder_layers=1,
    dropout=0.0,
    max_source_length=8,
    max_target_length=8,
)
EXAMPLES = [Example([3, 4, 5], [6, 7]), Example([8], [3, 3, 3]), Example([4, 4], [9])]


def untrained(seed, config=CONFIG):
    """A model that ends some of its answers."""
    torch.manual_seed(seed)
    model = Transformer(config).eval()
    model.generator.bias.data[config.eos_id] = 1.5
    return model


def models(count):
    return [untrained(seed) for seed in range(count)]


Sources = st.sets(st.lists(st.integers(3, 4), min_size=4, max_size=8).map(tuple), min_size=10)


@given(Sources, st.integers(4, 9), st.integers(0, 99))
def test_made_up_sources_are_new_and_every_four_ids_of_them_are_known(sources, longest, seed):
    def windows(source):
        return {(0, 0, 0, *source, 1)[i : i + 4] for i in range(len(source) + 1)}

    try:
        found = made_up_sources(sources, 2, longest, seed)
    except InputError:
        reject()
    assert len(set(found)) == 2
    assert not sources & set(found)
    assert max(map(len, found)) <= longest
    known = set().union(*map(windows, sources))
    assert all(windows(source) <= known for source in found)
    assert made_up_sources(sources, 2, longest, seed) == found


def test_sources_too_few_to_make_others_up_are_an_error():
    with pytest.raises(InputError, match="of 2 sources only 0 others were made up"):
        made_up_sources({(3, 4), (5,)}, 5, 8, seed=0)


def next_probs(teachers, example):
    """The teachers' mean, asked about one example alone."""
    batch = collate([example], CONFIG)
    inputs = batch.source_ids, batch.source_length, batch.target_ids, batch.target_length
    with torch.no_grad():
        return np.mean([teacher(*inputs)[0].exp().numpy() for teacher in teachers], axis=0)


def test_half_of_what_is_taught_of_a_pair_is_its_own_and_half_the_teachers_alone(monkeypatch):
    monkeypatch.setattr("model.training.teachers.BATCH_SIZE", 2)
    teachers = models(2)
    taught = {tuple(e.source_ids): e for e in teach(teachers, EXAMPLES, label_smoothing=0.1)}
    for example in EXAMPLES:
        found = taught.pop(tuple(example.source_ids))
        assert found.target_ids == example.target_ids
        own = np.full((len(example.target_ids) + 1, 11), 0.1 / 11)
        own[range(len(own)), [*example.target_ids, CONFIG.eos_id]] += 0.9
        expected = (own + next_probs(teachers, example)) / 2
        np.testing.assert_allclose(found.next_probs.numpy(), expected, atol=5e-3)
    assert not taught


def test_answers_are_what_the_teachers_together_find_likeliest_and_end(monkeypatch):
    monkeypatch.setattr("model.training.teachers.BATCH_SIZE", 10)
    teachers = models(2)
    sources = [(a, *[b] * (b - 3)) for a in range(3, 9) for b in range(3, 9)]
    found = {tuple(e.source_ids): e for e in answer(teachers, sources, 8)}
    for example in found.values():
        expected = next_probs(teachers, example)
        np.testing.assert_allclose(example.next_probs.numpy(), expected, atol=5e-3)
        chosen = expected[range(len(expected)), [*example.target_ids, CONFIG.eos_id]]
        np.testing.assert_allclose(chosen, expected.max(1), atol=5e-3)
        assert CONFIG.eos_id not in example.target_ids
    assert {len(source) for source in found} == {1, 2, 3, 4, 5, 6}
    assert len(found) < len(sources)


def test_the_loss_is_the_cross_entropy_with_what_is_taught():
    [student, *teachers] = models(3)
    taught = answer(teachers, [(3, 4, 5), (8,), (4, 4)], 8) + teach(teachers, EXAMPLES, 0.1)
    batch = collate(taught, CONFIG)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = student(
            batch.source_ids, batch.source_length, batch.target_ids, batch.target_length
        )
        found = float(loss_of(student, batch, label_smoothing=0.1))
    losses = [
        -row[place] @ probs
        for row, example in zip(log_probs.float().numpy(), taught, strict=True)
        for place, probs in enumerate(example.next_probs.numpy())
    ]
    assert found == pytest.approx(np.mean(losses), rel=1e-4)


def test_joined_examples_keep_what_teachers_say_of_each_but_for_the_ends_between():
    examples = [
        Example([i], [i] * count, torch.tensor([[float(i)]] * count + [[10.0 + i]]))
        for i, count in enumerate((2, 1, 3))
    ]
    [joined] = join_examples(examples, 1.0, CONFIG, seed=0)
    last = joined.source_ids[-1]
    assert joined.next_probs.flatten().tolist() == [*joined.target_ids, 10 + last]
    [apart] = join_examples(examples[:1], 1.0, CONFIG, seed=0)
    assert apart is examples[0]


def teacher_run(folder, seed, alphabet="abc", **changes):
    """An untrained model of words that are spelt out."""
    letters = random.Random(0)
    words = ["".join(letters.choices(alphabet, k=4 + i % 3)) for i in range(60)]
    pairs = [(word, " ".join(word)) for word in words]
    folder.mkdir()
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    source = build_tokenizer((s for s, _ in pairs), Unit.characters)
    target = build_tokenizer((t for _, t in pairs), Unit.words)
    config = replace(
        CONFIG,
        source_vocab_size=source.get_vocab_size(),
        target_vocab_size=target.get_vocab_size(),
        **changes,
    )
    create_run(folder / "run", config, source, target)
    save_weights(folder / "run" / WEIGHTS, untrained(seed, config).state_dict())
    return folder / "run", path


def student_options(*teachers, **changes):
    return replace(OPTIONS, teachers=[str(path) for path in teachers], made_up=0.5, **changes)


def test_a_run_starts_with_the_weights_it_is_told(tmp_path):
    start, pairs = teacher_run(tmp_path / "a", seed=1)
    run, _ = teacher_run(tmp_path / "b", seed=2)
    train(run, pairs, pairs, replace(OPTIONS, start=str(start), learning_rate=0.0))
    expected = load_model(start).transformer.state_dict()
    found = load_model(run).transformer.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_student_comes_nearer_to_its_teachers_where_no_pair_tells_how(tmp_path):
    """Untrained teachers, of whose answers the pairs say nothing."""
    paths = [teacher_run(tmp_path / name, seed)[0] for name, seed in (("a", 1), ("b", 2))]
    teachers = [load_model(path).transformer for path in paths]
    answers = answer(teachers, [*product(range(4, 7), repeat=4)], 8)
    distances = []
    for name, options in (("alone", OPTIONS), ("taught", student_options(*paths))):
        run, pairs = teacher_run(tmp_path / name, seed=3)
        train(run, pairs, pairs, replace(options, epochs=10, learning_rate=1e-2))
        student = [load_model(run).transformer]
        differences = [next_probs(teachers, e) - next_probs(student, e) for e in answers]
        distances.append(np.abs(np.concatenate(differences)).mean())
    alone, taught = distances
    assert taught < alone / 2


def test_a_stopped_student_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch):
    """From what it was taught: its teacher may be another by then."""
    teacher, pairs = teacher_run(tmp_path / "a", seed=1)
    options = student_options(teacher, start=str(teacher))
    whole, _ = teacher_run(tmp_path / "whole", seed=3)
    train(whole, pairs, pairs, options)
    stopped, _ = teacher_run(tmp_path / "stopped", seed=3)
    with stopped_after(1, "model.training.loop.mean_loss", monkeypatch):
        train(stopped, pairs, pairs, options)
    save_weights(teacher / WEIGHTS, untrained(9, load_config(teacher)).state_dict())
    train(stopped, pairs, pairs, options)
    assert (whole / WEIGHTS).read_bytes() == (stopped / WEIGHTS).read_bytes()


def test_a_student_keeps_to_the_options_that_its_lessons_were_asked_with(tmp_path, monkeypatch):
    teacher, pairs = teacher_run(tmp_path / "a", seed=1)
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("model.training.loop.train_epoch", lambda *_: 1 / 0)
        stopped = command(run, pairs, pairs, "--teacher", teacher)
    assert isinstance(stopped.exception, ZeroDivisionError)
    refused = command(run, pairs, pairs, "--teacher", teacher, "--seed", "1")
    assert str(refused.exception) == f"{run} was started with seed 0, not 1: name another run"
    done = command(run, pairs, pairs, "--teacher", teacher)
    assert done.exit_code == 0, done.output


def test_lessons_are_of_every_pair_and_of_made_up_sources(tmp_path):
    teacher, pairs = teacher_run(tmp_path / "a", seed=1)
    run, _ = teacher_run(tmp_path / "b", seed=2)
    train(run, pairs, pairs, student_options(teacher))
    lessons = read_lessons(run / LESSONS)
    known = sorted(tuple(e.source_ids) for e in pairs_of(run, pairs))
    assert sorted(tuple(e.source_ids) for e in lessons[: len(known)]) == known
    made_up = {tuple(e.source_ids) for e in lessons[len(known) :]}
    assert made_up
    assert not made_up & set(known)
    assert all(len(e.next_probs) == len(e.target_ids) + 1 for e in lessons)


def pairs_of(run, path):
    return encode_pairs(read_pairs(path), *load_tokenizers(run), load_config(run))


def command(run, pairs, dev, *options):
    lengths = "--max-source-length 8 --max-target-length 8 --no-rotary --no-norm-first --epochs 1"
    return small_command(pairs, "--dev", dev, "--run", run, *lengths.split(), *options)


@pytest.mark.parametrize("option", ["--start", "--teacher"])
def test_the_command_takes_the_tokens_of_the_model_it_names(tmp_path, option):
    other, pairs = teacher_run(tmp_path / "a", seed=1)
    run, few = tmp_path / "run", tmp_path / "few.tsv"
    known = "aabab\ta a b a b\nbabba\tb a b b a\n"
    for unknown, error in [("abd\ta b", "'abd' has 'd'"), ("ab\ta d", "'a d' has 'd'")]:
        few.write_text(known + unknown)
        done = command(run, few, pairs, option, other)
        assert str(done.exception) == f"{error}, not in the vocabulary"
    few.write_text(known)
    done = command(run, few, pairs, option, other)
    assert done.exit_code == 0, done.output
    assert load_tokenizers(run)[0].get_vocab_size() == 7  # c too
    assert (run / LESSONS).exists() == (option == "--teacher")


def test_a_run_may_live_in_an_empty_folder_and_writes_over_no_other(tmp_path):
    other, pairs = teacher_run(tmp_path / "a", seed=1)
    run = tmp_path / "run"
    run.mkdir()
    config = run / "config.json"
    config.write_text("mine")
    done = command(run, pairs, pairs, "--start", other)
    assert str(done.exception) == f"{run} is not empty and no run: name another folder"
    assert config.read_text() == "mine"
    config.unlink()
    done = command(run, pairs, pairs, "--start", other)
    assert done.exit_code == 0, done.output


def test_what_cannot_be_started_or_learned_from_is_refused_before_a_run_is_there(tmp_path):
    own, pairs = teacher_run(tmp_path / "own", seed=0)
    letters, _ = teacher_run(tmp_path / "letters", seed=0, alphabet="abcd")
    wide, _ = teacher_run(tmp_path / "wide", seed=0, d_ff=40)
    short, _ = teacher_run(tmp_path / "short", seed=0, max_target_length=7)
    for options, error in [
        (("--start", own, "--teacher", letters), f"{letters} has other tokens than {own}"),
        (("--start", wide), f"--start {wide} has d_ff 40, not 32"),
        (("--teacher", short), f"--teacher {short} takes at most 8 source and 7 target tokens"),
        (("--made-up", "1"), "--made-up needs a --teacher to answer"),
    ]:
        done = command(tmp_path / "run", pairs, pairs, *options)
        assert str(done.exception) == error
    assert not (tmp_path / "run").exists()
    done = command(tmp_path / "run", pairs, pairs, "--start", own, "--dropout", "0.5")
    assert done.exit_code == 0, done.output
