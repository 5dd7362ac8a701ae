"""Drafts change how a target is found, and never the target."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.attention import NO_ATTENTION
from service.bundle.manifest import Manifest
from service.engine.scheduler import Job
from service.search.options import ABSENT
from tests.service.engine.engines import (
    ONE_WORKER,
    SETTINGS,
    answers,
    assert_same,
    entry,
    running,
)

EOS = 2
OPTIONS = [
    {},
    {},
    {"suppress_tokens": (4, 6)},
    {"no_repeat_ngram_size": 2},
    {"repetition_penalty": 1.5, "suppress_sequences": ((5, 7), (8, 4, 4))},
    {"min_new_tokens": 6, "renormalize": True, "suppress_tokens": (5,)},
    {"top_log_probs": 3, "entropies": True},
    {"stop_ids": frozenset({7})},
    {"target_prefix": (6, 4, 9)},
    {"allowed_targets": ((4, 5, EOS), (4, 6, 7, EOS), (8, EOS))},
]
Sources = st.lists(st.integers(4, 9), min_size=1, max_size=12)
Drafts = st.lists(st.integers(ABSENT, 11), max_size=40)


def drafted(one, draft, **options):
    """The entry with a draft, and other options of its search."""
    return one._replace(search=one.search._replace(draft=(*draft, EOS), **options))


def plain(one):
    return one._replace(search=one.search._replace(draft=()))


def targets(found):
    return [answer.hypotheses[0].token_ids for answer in found]


Wanted = st.tuples(
    Sources, st.integers(1, 36), st.none() | Drafts, st.sampled_from(OPTIONS), st.booleans()
)


def with_ends(bundle, others):
    """The bundle with ids that end a target besides eos."""
    manifest = bundle.manifest.model_dump() | {"other_eos_ids": others}
    return replace(bundle, manifest=Manifest.model_validate(manifest))


@pytest.mark.parametrize("other_ends", [[], [9]], ids=["one eos", "two"])
@settings(max_examples=25)
@given(wanted=st.lists(Wanted, min_size=1, max_size=10), other=st.data())
def test_any_draft_gives_the_targets_of_greedy_search(
    tiny_bundle, every_weight, other_ends, wanted, other
):
    """Of rows that join and leave, some with a draft of their own, some with their own target as a
    draft, and some with none; log-probs, alternatives and attention are the same, too."""
    entries = []
    for source, limit, draft, options, attends in wanted:
        room = min(limit, 36 - len(options.get("target_prefix", ())))
        selection = every_weight(tiny_bundle) if attends else NO_ATTENTION
        one = entry(source, room, selection=selection)
        one = one._replace(search=one.search._replace(**options))
        entries.append(one if draft is None else drafted(one, draft))
    with running(with_ends(tiny_bundle, other_ends), SETTINGS) as engine:
        expected = answers(engine, [*map(plain, entries)])
        own = [
            drafted(each, [*each.search.target_prefix, *target])
            for each, target in zip(entries, targets(expected), strict=True)
        ]
        chosen = [other.draw(st.sampled_from(pair)) for pair in zip(entries, own, strict=True)]
        found = answers(engine, chosen)
    assert_same(found, expected)
    for ours, theirs in zip(found, expected, strict=True):
        one, two = ours.hypotheses[0], theirs.hypotheses[0]
        assert one.finish_reason == two.finish_reason
        assert 0 <= one.accepted <= min(one.drafted, len(one.token_ids))
        np.testing.assert_allclose(one.entropies, two.entropies, rtol=1e-4, atol=1e-5)
        tops = [each.top_log_probs for each in (one, two)]
        ids = [None if top is None else top["id"].tolist() for top in tops]
        assert ids[0] == ids[1]


def test_a_right_draft_takes_a_few_passes(tiny_bundle):
    with running(tiny_bundle, ONE_WORKER) as engine:
        (expected,) = answers(engine, [entry([4, 5, 6, 7], 36)])
        target = expected.hypotheses[0].token_ids
        before = sum(engine.status.steps.rows.counts)
        (found,) = answers(engine, [drafted(entry([4, 5, 6, 7], 36), target)])
        passes = sum(engine.status.steps.rows.counts) - before
    assert len(target) == 36
    assert passes <= 4
    (one,) = found.hypotheses
    assert one.token_ids == target
    assert one.accepted == one.drafted == 36 - passes


@pytest.mark.parametrize("rows", [1, 8, 40])
def test_rows_with_and_without_drafts_are_decoded_apart(tiny_bundle, rows):
    """40 rows are so many that each reads one token at a time."""
    sources = [[4 + i % 6, 5, 6] for i in range(rows)]
    with running(tiny_bundle, ONE_WORKER) as engine:
        expected = answers(engine, [entry(each, 20) for each in sources])
        both = [drafted(entry(each, 20), [5, 6, 7] * 9) for each in sources]
        both += [drafted(entry(s, 20), t) for s, t in zip(sources, targets(expected), strict=True)]
        found = answers(engine, [*both[:rows], *map(plain, both[rows:])])
        own = answers(engine, both[rows:])
    assert_same(found, [*expected, *expected])
    assert_same(own, expected)
    assert (sum(each.hypotheses[0].accepted for each in own) > rows) == (rows < 40)


def test_progress_is_that_of_greedy_search(tiny_bundle):
    with running(tiny_bundle, ONE_WORKER) as engine:
        (expected,) = answers(engine, [entry([4, 5, 6, 7], 20)])
        target = expected.hypotheses[0].token_ids
        received = []
        job = Job(
            drafted(entry([4, 5, 6, 7], 20, streams=True), target), on_progress=received.append
        )
        engine.queue.put([job])
        job.result.result(60)
    events = [event for progress in received for event in progress]
    assert [event.token_id for event in events] == target
    assert len(received) < 5


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_default_model_pronounces_as_without_drafts(g2p_bundle, precision):
    chance = random.Random(2)
    sources = [chance.choices(range(4, 31), k=chance.randint(3, 14)) for _ in range(60)]
    settings_ = ONE_WORKER.model_copy(update={"precision": precision, "self_check": False})
    with running(g2p_bundle, settings_) as engine:
        if not engine.session.supports("draft_step"):
            pytest.skip("the default model has no graph for drafts")
        expected = answers(engine, [entry(each, 24) for each in sources])
        wrong = [
            [chance.choice([token] * 4 + [5]) for token in target] for target in targets(expected)
        ]
        asked = [drafted(entry(s, 24), d) for s, d in zip(sources, wrong, strict=True)]
        found = answers(engine, asked)
    assert targets(found) == targets(expected)
    assert sum(each.hypotheses[0].accepted for each in found) > 60
