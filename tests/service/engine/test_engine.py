"""An entry is answered as it would be alone, whichever entries share its batch."""

import gc
import threading
import weakref
from concurrent.futures import wait
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.attention import NO_ATTENTION, Head
from service.engine.scheduler import PASS, Job, by_length
from service.errors import DeadlineExceeded, Overloaded, Unavailable
from tests.service.engine.engines import (
    ONE_WORKER,
    SETTINGS,
    answers,
    assert_same,
    entry,
    put,
    running,
)

Sources = st.lists(st.integers(4, 9), min_size=1, max_size=12)
OFF = [(), (), (Head("cross", 0, 1),), (Head("encoder", 1, 0), Head("decoder", 1, 2))]
Wanted = st.tuples(
    Sources,
    st.integers(0, 12),
    st.sampled_from(["", "", "weight", "norm"]),
    st.sampled_from([1, 1, 2, 4]),
    st.sampled_from(OFF),
)


@settings(max_examples=20, deadline=None)
@given(wanted=st.lists(Wanted, min_size=1, max_size=12), budget=st.sampled_from([1, 60, 4096]))
def test_every_answer_is_what_it_would_be_alone(tiny_bundle, every_weight, wanted, budget):
    """Neighbours, their order, the heads that they switch off and the budgets that split them into
    batches change nothing."""
    limits = {"max_batch_tokens": budget, "max_pass_tokens": budget}
    changed = SETTINGS.model_copy(update=limits)

    def make(source, limit, measure, beam_size, ablated):
        selection = NO_ATTENTION
        if measure and limit:
            selection = every_weight(tiny_bundle)._replace(measure=measure)
        return entry(source, limit, beam_size, selection=selection, ablated=ablated)

    with running(tiny_bundle, changed) as engine:
        together = answers(engine, [make(*one) for one in wanted])
        alone = [answers(engine, [make(*one)])[0] for one in wanted]
    assert_same(together, alone)


@pytest.mark.parametrize(
    ("pooling", "combine"),
    [
        ("mean", lambda vectors: vectors.mean(0)),
        ("max", lambda vectors: vectors.max(0)),
        ("first", lambda vectors: vectors[0]),
        ("last", lambda vectors: vectors[-1]),
    ],
)
def test_a_source_that_is_pooled_has_one_vector(tiny_bundle, pooling, combine):
    """Those of all its tokens stay in the engine; padding does not count."""
    sources = [[4, 5, 6, 7, 8, 9, 4], [5], [9, 8, 7]]
    with running(tiny_bundle) as engine:
        whole = answers(engine, [entry(each) for each in sources])
        pooled = answers(engine, [entry(each, pooling=pooling) for each in sources])
    for source, each, one in zip(sources, whole, pooled, strict=True):
        assert len(each.memory) == len(source)
        np.testing.assert_allclose(one.memory, combine(each.memory), rtol=1e-5, atol=1e-6)


def test_attention_has_a_row_for_every_token_after_the_start_ids(tiny_bundle, every_weight):
    """With two start ids, the first row is the step that read the second one."""
    started = tiny_bundle.manifest.model_copy(update={"decoder_start": [1, 5]})
    bundle = replace(tiny_bundle, manifest=started)

    with running(bundle) as engine:
        one = entry([4, 5, 6], max_new_tokens=7, selection=every_weight(bundle))
        (decoded,) = answers(engine, [one])
        ids = decoded.hypotheses[0].token_ids
        given = entry([4, 5, 6], target_ids=ids, selection=every_weight(bundle))
        (given_target,) = answers(engine, [given])
    count = len(decoded.hypotheses[0].token_ids)
    (attention,) = decoded.attention
    assert attention["cross"].shape == (2, 5, count, 3)
    assert attention["decoder"].shape == (2, 5, count, count + 1)
    assert (attention["decoder"][:, :, 0, 1] > 0).all()
    for kind, weights in attention.items():
        np.testing.assert_allclose(weights, given_target.attention[0][kind], rtol=1e-5, atol=1e-6)


def test_targets_of_several_languages_share_a_batch(tiny_bundle, every_weight):
    """Their start ids differ in number too, and every answer is what it would be alone."""
    started = tiny_bundle.manifest.model_copy(update={"decoder_start": [2, "target_language"]})
    bundle = replace(tiny_bundle, manifest=started)

    def make():
        languages = [(5,), (6, 7), (8,), (6, 7), (4, 5, 6)]
        shown = every_weight(bundle)
        return [
            *(
                entry([4, 5, 6], 9, beam_size=beams, language=each, selection=shown)
                for each in languages
                for beams in (1, 1, 3)
            ),
            *(
                entry([4, 5], target_ids=[9, 8, 2], scores=True, language=each)
                for each in languages
            ),
            *(
                entry([4, 5], target_ids=[9, 8], selection=shown, language=each)
                for each in languages
            ),
        ]

    with running(bundle, ONE_WORKER) as engine:
        together = answers(engine, make())
        alone = [answers(engine, [one])[0] for one in make()]
    assert_same(together, alone)
    decoded = [tuple(answer.hypotheses[0].log_probs) for answer in alone[:15:3]]
    assert len(set(decoded)) == 4  # one for each language


def test_caches_for_a_number_of_rows_that_nobody_uses_are_freed(tiny_bundle):
    with running(tiny_bundle, ONE_WORKER) as engine:
        caches, new_cache = [], engine.session.new_cache

        def remembered(*key):
            cache = new_cache(*key)
            caches.append(weakref.ref(cache))
            return cache

        engine.session.new_cache = remembered
        for beam_size in (1, 2, 3, 4, 5):
            answers(engine, [entry([4, 5], 3, beam_size)])
        answers(engine, [entry([4, 5], 3)])
        gc.collect()
        assert [cache().rows_per_source for cache in caches if cache()] == [1]
    assert len(caches) == 5


def test_a_queue_that_refuses_keeps_what_it_has(tiny_bundle):
    with running(tiny_bundle) as engine:
        accepted, refused = [], False
        while not refused and len(accepted) < 100_000:
            new = [Job(entry([4], max_new_tokens=5)) for _ in range(200)]
            try:
                engine.queue.put(new, seconds=0.001)
            except (Overloaded, DeadlineExceeded):
                refused = True
            else:
                accepted += new
        assert refused
        assert not wait([one.result for one in accepted], 60).not_done
    assert not any(one.abandoned for one in new)


def test_cancelled_rows_leave_at_the_next_step(tiny_bundle):
    rows, cancel, cancelled = [], threading.Event(), threading.Event()

    with running(tiny_bundle, ONE_WORKER) as engine:
        step = engine.session.step

        def watched(cache, tokens, *wanted, **more):
            rows.append(len(tokens))
            if len(rows) == 3:
                cancel.set()
                assert cancelled.wait(60)
            return step(cache, tokens, *wanted, **more)

        engine.session.step = watched
        jobs = put(engine, [entry([4, 9], max_new_tokens=20) for _ in range(40)])
        assert cancel.wait(60)
        for one in jobs[::2]:
            one.result.cancel()
        cancelled.set()
        kept = [one.result.result(60) for one in jobs[1::2]]
    assert len(kept) == 20
    assert len(rows) == len(kept[0].hypotheses[0].token_ids) > 4
    assert rows[:3] == [40, 40, 40]
    assert set(rows[3:]) == {20}


def test_a_closed_engine_has_answered_all_and_takes_no_more(tiny_bundle):
    with running(tiny_bundle) as engine:
        jobs = put(engine, [entry([4, 5], max_new_tokens=20) for _ in range(20)])
    assert all(one.result.result(0).hypotheses for one in jobs)
    assert not engine.status.ready
    with pytest.raises(Unavailable):
        put(engine, [entry([4])])


def test_teacher_forcing_passes_are_short_while_rows_wait(tiny_bundle, every_weight, monkeypatch):
    settings = ONE_WORKER.model_copy(update={"max_pass_tokens": 400})
    wanted = every_weight(tiny_bundle)
    with running(tiny_bundle, settings) as engine:
        passes = []  # (rows that wait, targets in the pass)
        engine.session.open("attention")  # its check is a pass, too
        attend = engine.session.attention

        def recorded(inputs, *others):
            passes.append((engine.status.rows, len(inputs)))
            return attend(inputs, *others)

        monkeypatch.setattr(engine.session, "attention", recorded)
        for decoded in (3, 0):
            given = [entry([5] * 10, target_ids=[5] * 10, selection=wanted) for _ in range(20)]
            answers(engine, [*given, *(entry([4] * 10, 39) for _ in range(decoded))])
    waited = [count for rows, count in passes if rows]
    assert waited
    assert max(waited) <= 400 // 2 // 20
    assert max(count for rows, count in passes if not rows) == 20


@pytest.mark.parametrize("length", [5, 20])
def test_few_sources_are_encoded_while_rows_wait(tiny_bundle, monkeypatch, length):
    """Even one source of 20 positions exceeds half of the limit."""
    settings = ONE_WORKER.model_copy(update={"max_pass_tokens": 30})
    with running(tiny_bundle, settings) as engine:
        passes = []  # (rows that wait, sources in the pass)
        encode = engine.session.encode

        def recorded(sources, *gates):
            passes.append((engine.status.rows, len(sources)))
            return encode(sources, *gates)

        monkeypatch.setattr(engine.session, "encode", recorded)
        answers(engine, [entry([4] * length, 39) for _ in range(12)])
    assert max(count for rows, count in passes if not rows) == 30 // length
    assert max(count for rows, count in passes if rows) == max(1, 15 // length)


def test_a_step_uses_the_cores_of_workers_that_have_nothing(tiny_bundle):
    with running(tiny_bundle) as engine:  # two workers
        step, seen, together = engine.session.step, [], threading.Barrier(2)

        def watched(*given, **more):
            seen.append(more["alone"])
            return step(*given, **more)

        def met(*given, **more):
            together.wait(60)  # so that both have rows at the second step
            return watched(*given, **more)

        engine.session.step = watched
        answers(engine, [entry([4, 9], max_new_tokens=9)])
        assert {*seen} == {True}
        seen.clear()
        engine.session.step = met
        jobs = put(engine, [entry([4, 9], max_new_tokens=2) for _ in range(40)])
        for job in jobs:
            job.result.result(60)
    assert seen[2:] == [False, False]


@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=40))
def test_passes_of_similar_lengths_cost_less_than_one_of_all(lengths):
    jobs = [Job(entry([4] * length)) for length in lengths]
    passes = [*by_length(jobs)]
    assert sorted(map(id, jobs)) == sorted(id(job) for each in passes for job in each)
    padded = sum(len(each) * max(job.size.source for job in each) for each in passes)
    assert padded + PASS * (len(passes) - 1) <= len(lengths) * max(lengths)
    if max(lengths) - min(lengths) > PASS:
        assert len(passes) > 1  # one of them would get more padding than a pass takes


def test_a_full_worker_encodes_several_sources_at_once_but_a_new_word_immediately(
    tiny_bundle, monkeypatch
):
    """Targets end at different steps. Without this, most passes would encode one source."""
    settings = ONE_WORKER.model_copy(update={"max_batch_tokens": 1024})
    with running(tiny_bundle, settings) as engine:
        sources = [entry([4 + i % 5, 5], 3 + i * 7 % 31) for i in range(200)]
        expected = answers(engine, sources[:40])
        words, passes = [], []  # sources of a pass, of which some may be words
        encode, step = engine.session.encode, engine.session.step

        def recorded(sources, *gates):
            passes.append([*map(len, sources)])
            return encode(sources, *gates)

        def put_a_word(*given, **more):
            if len(passes) > len(words) < 3:
                passes.append([])
                words.extend(put(engine, [entry([6], 2)]))
            return step(*given, **more)

        monkeypatch.setattr(engine.session, "encode", recorded)
        monkeypatch.setattr(engine.session, "step", put_a_word)
        found = answers(engine, sources)
        assert all(word.result.result(60) for word in words)
    assert_same(found[:40], expected)
    arrived = [i for i, each in enumerate(passes) if not each]
    assert len(arrived) == 3
    assert all(1 in passes[i + 1] for i in arrived)
    counts = [len(each) for each in passes if each and 1 not in each]
    assert sum(counts) / len(counts) > 4  # as they end, 2.2


def test_a_word_does_not_wait_for_the_teacher_forcing_of_others(g2p_bundle, every_weight):
    selection = every_weight(g2p_bundle, ["cross"])
    ended = []
    word = Job(entry([5] * 4, 2))
    word.result.add_done_callback(lambda _: ended.append(word))
    jobs = [Job(entry([5] * 60, 9, selection=selection)) for _ in range(48)]
    with running(g2p_bundle, ONE_WORKER) as engine:
        jobs[0].result.add_done_callback(lambda _: engine.queue.put([word]))
        for job in jobs:
            job.result.add_done_callback(lambda _: ended.append(None))
        engine.queue.put(jobs)
        for job in jobs:
            job.result.result(60)
        word.result.result(60)
    assert ended.index(word) < 40
