"""Requests of all kinds that join and leave at random moments, compared with each alone."""

import math
import random
import time

import numpy as np
import pytest

from service.attention import NO_ATTENTION
from service.bundle import load_bundle
from service.engine.engine import Engine
from service.engine.messages import Entry
from service.search.options import SearchOptions
from service.settings import Precision, Provider, Settings

TOLERANCES = {Precision.fp32: (1e-4, 1e-5), Precision.int8: (0.0, 2e-2)}  # relative, absolute
LETTERS = range(4, 31)


@pytest.fixture(scope="module")
def g2p_bundle(g2p):
    return load_bundle(g2p)


def engine_of(bundle, precision):
    options = {"precision": precision, "provider": Provider.cpu, "self_check": False}
    return Engine(bundle, Settings(threads=2, **options))


def draw(random_):
    """Draw a source and the options of its search."""
    source = random_.choices(LETTERS, k=random_.randint(1, 16))
    beam_size = random_.choice([1, 1, 1, 2, 4])
    return source, SearchOptions(
        max_new_tokens=random_.randint(1, 24),
        beam_size=beam_size,
        num_hypotheses=random_.randint(1, beam_size),
        length_penalty=random_.choice([1.0, 0.6]),
        early_stopping=random_.random() < 0.7,
    )


def entry(source, search, selection=NO_ATTENTION):
    return Entry(source_ids=np.array(source), search=search, selection=selection)


def decode_together(engine, wanted, random_):
    """Submit groups of random size at random moments."""
    entries = []
    while len(entries) < len(wanted):
        group = wanted[len(entries) : len(entries) + random_.randint(1, 12)]
        entries += (new := [entry(*one) for one in group])
        engine.queue.put(new)
        time.sleep(random_.random() * 0.02)
    return [one.result.result(60) for one in entries]


def decode_alone(engine, wanted):
    answers = []
    for one in wanted:
        engine.queue.put([alone := entry(*one)])
        answers.append(alone.result.result(60))
    return answers


def compare(mixed, single, precision):
    """Return how many texts differ, which they may where scores are closer than the tolerance."""
    relative, absolute = TOLERANCES[precision]
    ties = 0
    for one, other in zip(mixed.hypotheses, single.hypotheses, strict=True):
        close = math.isclose(one.score, other.score, rel_tol=relative, abs_tol=absolute)
        assert close, (one, other)
        if one.token_ids == other.token_ids:
            np.testing.assert_allclose(one.log_probs, other.log_probs, relative, absolute)
        else:
            ties += 1
    if mixed.attention and not ties:
        for one, other in zip(mixed.attention, single.attention, strict=True):
            for kind, weights in one.items():
                np.testing.assert_allclose(weights, other[kind], rtol=0, atol=5e-3)
    return ties


@pytest.mark.parametrize("precision", [Precision.fp32, Precision.int8])
def test_answers_are_those_of_each_request_alone(g2p_bundle, precision):
    """2,000 requests; a text may differ only where the two best are closer than the tolerance."""
    random_ = random.Random(1)
    wanted = [draw(random_) for _ in range(2000)]

    engine = engine_of(g2p_bundle, precision)
    engine.start()
    together = decode_together(engine, wanted, random_)
    alone = decode_alone(engine, wanted)
    engine.close()
    ties = [compare(*each, precision) for each in zip(together, alone, strict=True)]
    assert sum(ties) <= 2


def test_a_tenth_that_is_cancelled_leaves_nothing_behind_and_changes_nothing(
    g2p_bundle, every_weight
):
    """1,000 requests, some with attention; 100 are cancelled at random moments."""
    random_ = random.Random(0)
    attends = every_weight(g2p_bundle, ["cross", "decoder"])
    different = [draw(random_) for _ in range(50)]
    chosen = [random_.randrange(50) for _ in range(1000)]

    engine = engine_of(g2p_bundle, Precision.int8)
    engine.start()
    alone = decode_alone(engine, [(*one, attends) for one in different])
    entries = []
    for i in chosen:
        selection = attends if random_.random() < 0.2 else NO_ATTENTION
        entries.append(entry(*different[i], selection))
        engine.queue.put(entries[-1:])
        time.sleep(random_.random() * 0.002)
        if random_.random() < 0.1:
            random_.choice(entries[-20:]).result.cancel()
    answered = [
        (one.result.result(60), alone[i])
        for i, one in zip(chosen, entries, strict=True)
        if not one.result.cancelled()
    ]
    for _ in range(1000):  # those cancelled last leave at the next step
        time.sleep(0.01 if engine.status.rows else 0)
    assert engine.status.rows == 0
    assert engine.status.ready
    engine.close()
    assert 880 <= len(answered) < 1000
    assert sum(compare(*each, Precision.int8) for each in answered) <= 2
    assert sum(bool(outcome.attention) for outcome, _ in answered) > 100
