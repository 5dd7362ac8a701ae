"""Requests of all kinds that join and leave at random moments, compared with each alone."""

import random
import time

import pytest

from service.attention import NO_ATTENTION
from service.settings.settings import Precision
from tests.service.engine.mixes import (
    compare,
    decode_alone,
    decode_together,
    draw,
    engine_of,
    entry,
)


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
