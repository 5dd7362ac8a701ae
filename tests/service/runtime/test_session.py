"""Batches, caches and threads of a session answer as each source does alone, step by step."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.checkpoint import load_model
from service.bundle.manifest import load_bundle
from service.errors import PassFailed, StartupError
from service.runtime.providers import installed_provider, open_graph
from service.runtime.self_check import check_parity
from service.runtime.session import Session
from service.settings.settings import Precision, Provider
from tests.service.runtime.conftest import bytes_of
from tests.service.runtime.sessions import FP32, assert_close, sources


def test_graphs_that_do_not_decode_are_opened_on_first_use(bundle, monkeypatch):
    opened = opening(monkeypatch)
    session = Session(bundle, FP32)
    check_parity(session, bundle)
    assert sorted(opened) == [("encoder", 1), ("step", 1)]
    assert session.supports("attention")
    ids = sources(bundle, [5])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(session.encoder_attention, [ids] * 8))
    for each in found:
        assert_close(each[0].weights, found[0][0].weights)
    assert sorted(opened) == [("encoder", 1), ("encoder_attention", 1), ("step", 1)]


def opening(monkeypatch):
    """Return a list to which each graph that a session opens is added, with its threads."""
    opened = []

    def noted(path, provider, threads, **more):
        opened.append((path.stem, threads))
        return open_graph(path, provider, threads, **more)

    monkeypatch.setattr("service.runtime.session.open_graph", noted)
    return opened


@pytest.mark.parametrize("lengths", [[5, 1, 9], [2, 2]])
def test_a_batch_is_encoded_and_attended_like_each_source_alone(session, bundle, lengths):
    batch = sources(bundle, lengths)
    targets = [np.array([1, *[5] * n]) for n in lengths[::-1]]
    memory, _ = session.encode(batch)
    together = session.attention(targets, crosses(session, batch))
    encoders = session.encoder_attention(batch)
    for i, source in enumerate(batch):
        (alone,), cross_alone = session.encode([source])
        assert_close(memory[i], alone)
        (encoder,) = session.encoder_attention([source])
        assert_close(encoders[i].weights, encoder.weights)
        (attended,) = session.attention([targets[i]], [cross_alone])
        for kind in ("decoder", "cross"):
            assert_close(together[i][kind].weights, attended[kind].weights)


def test_attention_rows_sum_to_one_and_the_decoder_sees_no_later_token(session, bundle):
    batch = sources(bundle, [3, 8])
    targets = [np.array([1, 5, 6, 4]), np.array([1, 4])]
    for attended in session.attention(targets, crosses(session, batch)):
        for kind in ("decoder", "cross"):
            np.testing.assert_allclose(attended[kind].weights.sum(-1), 1, atol=1e-5)
        assert (np.triu(attended["decoder"].weights, 1) == 0).all()
    for encoder in session.encoder_attention(batch):
        np.testing.assert_allclose(encoder.weights.sum(-1), 1, atol=1e-5)


def crosses(session, batch):
    cross = session.encode(batch)[1]
    return [cross.pick([i]) for i in range(len(batch))]


def log_probs_alone(session, source, tokens, size):
    """Step by step in a cache of one row -> (len(tokens), V)."""
    cache = session.new_cache(rows_per_source=1)
    cache.insert(session.encode([source])[1])
    return np.array([by_id(session.step(cache, np.array([t]), size))[0] for t in tokens])


def by_id(candidates):
    unsorted = np.empty_like(candidates.log_probs)
    np.put_along_axis(unsorted, candidates.ids, candidates.log_probs, -1)
    return unsorted


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_rows_that_come_and_go_answer_as_if_they_were_alone(session, bundle, data):
    """Insert, compact in any order and step at random, over the growth of rows and positions."""
    cache = session.new_cache(rows_per_source=1)
    size = bundle.manifest.config.target_vocab_size
    live, read, random = [], [], np.random.default_rng(data.draw(st.integers(0, 999)))
    for _ in range(data.draw(st.integers(3, 24))):
        action = data.draw(st.sampled_from(["insert", "step", "step", "step", "compact"]))
        if action == "insert":
            new = sources(
                bundle, random.integers(1, 12, random.integers(1, 4)), random.integers(99)
            )
            cache.insert(session.encode(new)[1])
            live, read = [*live, *new], [*read, *([] for _ in new)]
        elif live and action == "compact":
            keep = random.permutation(len(live))[: random.integers(0, len(live) + 1)]
            cache.compact(keep)
            live, read = [live[i] for i in keep], [read[i] for i in keep]
        elif live and max(map(len, read)) < 39:
            tokens = random.integers(4, size, len(live))
            found = by_id(session.step(cache, tokens, size))
            read = [[*row, token] for row, token in zip(read, tokens, strict=True)]
            i = random.integers(len(live))
            expected = log_probs_alone(session, live[i], read[i], size)[-1]
            assert_close(found[i], expected)


def test_rows_of_one_source_follow_their_parents(session, bundle):
    """Three rows a source: after reorder each row has the past of the row it continues."""
    batch = sources(bundle, [4, 7])
    cache, size = session.new_cache(rows_per_source=3), bundle.manifest.config.target_vocab_size
    cache.insert(session.encode(batch)[1])
    first, second, third = [4, 5, 6, 7, 8, 9], [9, 8, 7, 6, 5, 4], [5] * 6
    parents = [2, 2, 0, 3, 5, 3]
    session.step(cache, np.array(first), 1)
    session.step(cache, np.array(second), 1)
    cache.reorder(np.array(parents))
    found = by_id(session.step(cache, np.array(third), size))
    for row, parent in enumerate(parents):
        past = [first[parent], second[parent], third[row]]
        expected = log_probs_alone(session, batch[row // 3], past, size)[-1]
        assert_close(found[row], expected)


def test_memory_is_given_back_when_long_sources_and_many_rows_have_left(
    session, bundle, monkeypatch
):
    monkeypatch.setattr("service.runtime.cache.KEPT_BYTES", 0)
    cache = session.new_cache(rows_per_source=1)
    lengths = [bundle.manifest.limits.max_source_length, *[2] * 99]
    cache.insert(session.encode(sources(bundle, lengths))[1])
    cache.grow(40)
    busy = bytes_of(cache)
    cache.compact(np.array([1, 2]))
    assert bytes_of(cache) < busy / 10


def test_a_first_batch_gets_the_rows_it_needs_and_newcomers_at_most_twice_as_many(session, bundle):
    (_, one), (_, eight) = (session.encode(sources(bundle, [8] * count)) for count in (1, 8))
    needed = 3 * sum(array.nbytes for array in eight.keys_values)  # 8 + 16 positions
    cache = session.new_cache(rows_per_source=1)
    cache.insert(eight)
    cache.grow(16)
    assert bytes_of(cache) == needed
    cache = session.new_cache(rows_per_source=1)
    for count in range(1, 9):
        cache.insert(one)
        cache.grow(16)
        assert needed * count <= 8 * bytes_of(cache) <= 2 * needed * count


def test_a_step_copies_no_cache(bundle):
    """What copies it takes at least as much memory again, as the same graph does when not bound."""
    command = [sys.executable, "-m", "tests.measure_copies", str(bundle.root)]
    measured = subprocess.run(command, check=True, capture_output=True, text=True)
    size, bound, unbound = json.loads(measured.stdout)
    assert bound < size / 4
    assert unbound > size / 2
    caches = 2 * bundle.manifest.config.num_decoder_layers
    warnings = measured.stderr.count("in-place optimization not activated")
    assert warnings in (0, caches)  # of the step that is not bound, where it is TensorScatter's


def test_a_provider_that_is_not_here_is_refused_by_name():
    with pytest.raises(
        StartupError, match=r"provider tensorrt is not installed; choose one of: auto, .*cpu"
    ):
        installed_provider(Provider.tensorrt)


def test_a_missing_precision_is_named(bundle):
    with pytest.raises(StartupError, match="no graphs of precision int4"):
        Session(bundle, FP32.model_copy(update={"precision": "int4"}))


def test_a_graph_that_contradicts_the_configuration_is_refused(bundle):
    config = bundle.manifest.config
    other = config.model_copy(update={"num_decoder_layers": config.num_decoder_layers + 1})
    altered = bundle.manifest.model_copy(update={"config": other})
    with pytest.raises(StartupError, match=r"graph's inputs .* are not what the configuration"):
        Session(replace(bundle, manifest=altered), FP32)


def test_step_weights_are_what_a_step_multiplies_with(g2p):
    decoder = load_model(g2p).transformer.decoder
    sizes = [
        linear.weight.numel()
        for name, linear in decoder.named_modules()
        if isinstance(linear, torch.nn.Linear)
        and not name.endswith(("cross_attention.key", "cross_attention.value"))
    ]
    config = load_bundle(g2p).manifest.config
    generator = config.d_model * config.target_vocab_size
    assert config.step_weights == sum(sizes) + generator


def test_a_small_model_has_a_worker_a_core_and_a_large_one_is_shared(tiny, monkeypatch):
    def workers(**given):
        return Session(load_bundle(tiny), FP32.model_copy(update={"threads": 3, **given})).workers

    assert (workers(), workers(workers=2)) == (3, 2)
    monkeypatch.setattr("service.runtime.providers.CACHED", 0)
    assert (workers(), workers(workers=2), workers(threads=2)) == (1, 2, 2)
    monkeypatch.setattr("service.runtime.providers.TWICE", 0)
    assert (workers(), workers(workers=2), workers(threads=2)) == (1, 2, 1)


@pytest.mark.parametrize("precision", [Precision.fp32, Precision.int8])
def test_a_worker_that_is_alone_uses_all_cores_and_gets_the_same_numbers(
    g2p, monkeypatch, precision
):
    opened = opening(monkeypatch)
    monkeypatch.setattr("service.runtime.providers.CACHED", 0)
    bundle = load_bundle(g2p)
    given = {"precision": precision, "threads": 3, "workers": 3}
    session = Session(bundle, FP32.model_copy(update=given))
    assert sorted(opened) == [("encoder", 3), ("step", 1), ("step", 3)]
    size = bundle.manifest.config.target_vocab_size
    cache, runs = session.new_cache(rows_per_source=2), []
    cache.insert(session.encode(sources(bundle, [*range(1, 21)]))[1])
    for alone in (True, False, True):
        cache.position[:] = 0
        cache.bindings.clear()
        found = [session.step(cache, np.full(40, t), 2, logits=True, alone=alone) for t in (4, 9)]
        runs.append(found[-1].logits[:, :size].tobytes())
        assert {graph is session.open("step") for graph, *_ in cache.bindings} == {alone}
    assert len({*runs}) == 1
    one, alike = session.new_cache(rows_per_source=1), []
    one.insert(session.encode(sources(bundle, [7]))[1])
    for alone in (True, False):
        one.bindings.clear()
        alike.append(session.draft_step(one, np.full((1, 2), 5), 2, alone=alone).ids.tobytes())
        assert {graph is session.open("step") for graph, *_ in one.bindings} == {alone}
    assert alike[0] == alike[1]
    assert "draft_step" not in dict(opened)  # `step` reads several tokens of one row
    read = np.full((40, 2), 5)
    drafted = [session.draft_step(cache, read, 2, alone=alone) for alone in (True, False)]
    assert drafted[0].ids.tobytes() == drafted[1].ids.tobytes()
    assert sorted(opened)[:2] == [("draft_step", 1), ("draft_step", 3)]


def test_what_a_check_refuses_computes_beside_no_other_worker_either(g2p, monkeypatch):
    monkeypatch.setattr("service.runtime.providers.CACHED", 0)
    session = Session(load_bundle(g2p), FP32.model_copy(update={"threads": 2}))
    session.check_on_opening("draft_step", lambda: "it is wrong")
    cache = session.new_cache(rows_per_source=1)
    cache.insert(session.encode(sources(load_bundle(g2p), [3, 4]))[1])
    for alone in (True, False):
        with pytest.raises(PassFailed, match="it is wrong"):
            session.draft_step(cache, np.full((2, 2), 5), 1, alone=alone)


def test_several_threads_compute_what_one_does(bundle, session):
    shared = Session(bundle, FP32.model_copy(update={"threads": 2, "workers": 1}))
    batch = sources(bundle, [5, 1, 9])
    for one, other in zip(session.encode(batch)[0], shared.encode(batch)[0], strict=True):
        assert_close(one, other)
    tops, size = [], bundle.manifest.config.target_vocab_size
    for each in (session, shared):
        cache = each.new_cache(rows_per_source=1)
        cache.insert(session.encode(batch)[1])
        tops.append(by_id(each.step(cache, np.full(3, 4), size)))
    assert_close(*tops)


def test_int8_weights_of_a_step_are_those_of_the_pass_over_all(g2p):
    """The last row of a pass that ends at that step, compared with the row of the whole target."""
    bundle = load_bundle(g2p)
    session = Session(bundle, FP32.model_copy(update={"precision": Precision.int8}))
    random = np.random.default_rng(0)
    targets = [random.integers(4, bundle.manifest.config.target_vocab_size, 9) for _ in range(3)]
    memory = crosses(session, sources(bundle, [3, 12, 7]))
    whole = session.attention(targets, memory)
    for n in range(1, 10):
        begun = session.attention([target[:n] for target in targets], memory)
        for one, other in zip(whole, begun, strict=True):
            row = one["decoder"].weights[:, :, n - 1, :n], one["cross"].weights[:, :, n - 1]
            last = other["decoder"].weights[:, :, -1], other["cross"].weights[:, :, -1]
            for ours, theirs in zip(row, last, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-3)
