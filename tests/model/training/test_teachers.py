from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, reject
from hypothesis import strategies as st

from model.checkpoint import WEIGHTS, load_config, load_model, load_tokenizers, save_weights
from model.data.pairs import Example, collate, encode_pairs, read_pair_file
from model.network.config import InputError
from model.training.loop import batch_loss, train
from model.training.run import load_soft_labels
from model.training.teachers import add_soft_labels, label_sources, synthetic_sources
from tests.model.runs import OPTIONS, TEACHER, stopped_after, teacher_run, untrained

CONFIG = replace(TEACHER, target_vocab_size=11)
EXAMPLES = [Example([3, 4, 5], [6, 7]), Example([8], [3, 3, 3]), Example([4, 4], [9])]


def models(count):
    return [untrained(seed, CONFIG) for seed in range(count)]


Sources = st.sets(st.lists(st.integers(3, 4), min_size=4, max_size=8).map(tuple), min_size=10)


@given(Sources, st.integers(4, 9), st.integers(0, 99))
def test_synthetic_sources_are_new_and_made_of_known_windows_of_four_ids(sources, longest, seed):
    def windows(source):
        return {(0, 0, 0, *source, 1)[i : i + 4] for i in range(len(source) + 1)}

    try:
        found = synthetic_sources(sources, 2, longest, seed)
    except InputError:
        reject()
    assert len(set(found)) == 2
    assert not sources & set(found)
    assert max(map(len, found)) <= longest
    known = set().union(*map(windows, sources))
    assert all(windows(source) <= known for source in found)
    assert synthetic_sources(sources, 2, longest, seed) == found


def test_too_few_sources_for_synthetic_ones_are_an_error():
    with pytest.raises(
        InputError, match="only 0 of 5 synthetic sources could be sampled from 2 sources"
    ):
        synthetic_sources({(3, 4), (5,)}, 5, 8, seed=0)


def next_probs(teachers, example):
    """The mean of the teachers for one example, run alone."""
    batch = collate([example], CONFIG)
    inputs = batch.source_ids, batch.source_length, batch.target_ids, batch.target_length
    with torch.no_grad():
        return np.mean([teacher(*inputs)[0].exp().numpy() for teacher in teachers], axis=0)


def test_soft_labels_are_half_the_smoothed_target_and_half_the_mean_of_the_teachers(monkeypatch):
    monkeypatch.setattr("model.training.teachers.LABELLING_BATCH_SIZE", 2)
    teachers = models(2)
    labelled = {
        tuple(e.source_ids): e for e in add_soft_labels(teachers, EXAMPLES, label_smoothing=0.1)
    }
    for example in EXAMPLES:
        found = labelled.pop(tuple(example.source_ids))
        assert found.target_ids == example.target_ids
        own = np.full((len(example.target_ids) + 1, 11), 0.1 / 11)
        own[range(len(own)), [*example.target_ids, CONFIG.eos_id]] += 0.9
        expected = (own + next_probs(teachers, example)) / 2
        np.testing.assert_allclose(found.soft_labels.numpy(), expected, atol=5e-3)
    assert not labelled


def test_synthetic_sources_get_the_likeliest_tokens_of_the_ensemble_up_to_eos(monkeypatch):
    monkeypatch.setattr("model.training.teachers.LABELLING_BATCH_SIZE", 10)
    teachers = models(2)
    sources = [(a, *[b] * (b - 3)) for a in range(3, 9) for b in range(3, 9)]
    found = {tuple(e.source_ids): e for e in label_sources(teachers, sources, 8)}
    for example in found.values():
        expected = next_probs(teachers, example)
        np.testing.assert_allclose(example.soft_labels.numpy(), expected, atol=5e-3)
        chosen = expected[range(len(expected)), [*example.target_ids, CONFIG.eos_id]]
        np.testing.assert_allclose(chosen, expected.max(1), atol=5e-3)
        assert CONFIG.eos_id not in example.target_ids
    assert {len(source) for source in found} == {1, 2, 3, 4, 5, 6}
    assert len(found) < len(sources)


def test_the_loss_is_the_cross_entropy_with_the_soft_labels():
    [student, *teachers] = models(3)
    taught = label_sources(teachers, [(3, 4, 5), (8,), (4, 4)], 8) + add_soft_labels(
        teachers, EXAMPLES, 0.1
    )
    batch = collate(taught, CONFIG)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = student(
            batch.source_ids, batch.source_length, batch.target_ids, batch.target_length
        )
        found = float(batch_loss(student, batch, label_smoothing=0.1))
    losses = [
        -row[place] @ probs
        for row, example in zip(log_probs.float().numpy(), taught, strict=True)
        for place, probs in enumerate(example.soft_labels.numpy())
    ]
    assert found == pytest.approx(np.mean(losses), rel=1e-4)


def student_options(*teachers, **changes):
    return replace(
        OPTIONS, teachers=[str(path) for path in teachers], synthetic_sources=0.5, **changes
    )


def test_a_run_starts_with_the_weights_of_the_model_it_names(tmp_path):
    start, pairs = teacher_run(tmp_path / "a", seed=1)
    run, _ = teacher_run(tmp_path / "b", seed=2)
    train(run, pairs, pairs, replace(OPTIONS, start=str(start), learning_rate=0.0))
    expected = load_model(start).transformer.state_dict()
    found = load_model(run).transformer.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_student_comes_nearer_to_its_teachers_on_sources_outside_the_pairs(tmp_path):
    """The teachers are untrained, so the pairs alone say nothing about their outputs."""
    paths = [teacher_run(tmp_path / name, seed)[0] for name, seed in (("a", 1), ("b", 2))]
    teachers = [load_model(path).transformer for path in paths]
    answers = label_sources(teachers, [*product(range(4, 7), repeat=4)], 8)
    distances = []
    for name, options in (("alone", OPTIONS), ("taught", student_options(*paths))):
        run, pairs = teacher_run(tmp_path / name, seed=3)
        train(run, pairs, pairs, replace(options, epochs=10, learning_rate=1e-2))
        student = [load_model(run).transformer]
        differences = [next_probs(teachers, e) - next_probs(student, e) for e in answers]
        distances.append(np.abs(np.concatenate(differences)).mean())
    alone, taught = distances
    assert taught < alone / 2


def test_a_resumed_student_equals_one_without_interruption(tmp_path, monkeypatch):
    """It resumes from the stored soft labels, even if its teacher has changed."""
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


def test_soft_labels_cover_every_pair_and_the_synthetic_sources(tmp_path):
    teacher, pairs = teacher_run(tmp_path / "a", seed=1)
    run, _ = teacher_run(tmp_path / "b", seed=2)
    train(run, pairs, pairs, student_options(teacher))
    labelled = load_soft_labels(run, [], load_config(run), OPTIONS)
    known = sorted(tuple(e.source_ids) for e in pairs_of(run, pairs))
    assert sorted(tuple(e.source_ids) for e in labelled[: len(known)]) == known
    synthetic = {tuple(e.source_ids) for e in labelled[len(known) :]}
    assert synthetic
    assert not synthetic & set(known)
    assert all(len(e.soft_labels) == len(e.target_ids) + 1 for e in labelled)


def pairs_of(run, path):
    return encode_pairs(read_pair_file(path), *load_tokenizers(run), load_config(run))
