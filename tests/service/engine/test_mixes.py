"""Requests of all kinds that join and leave at random moments, compared with each alone."""

import random
from concurrent.futures import CancelledError
from contextlib import suppress

import pytest

from service.engine.scheduler import Job
from service.settings.settings import Precision
from tests.service.engine.mixes import (
    assert_as_alone,
    compare,
    decode_alone,
    draw,
    engine_of,
)


@pytest.mark.parametrize("precision", [Precision.fp32, Precision.int8])
@pytest.mark.parametrize("count", [500, pytest.param(2000, marks=pytest.mark.long)])
def test_answers_are_those_of_each_request_alone(g2p_bundle, precision, count):
    """A text may differ only where the two best are closer than the tolerance."""
    random_ = random.Random(1)
    assert_as_alone(g2p_bundle, precision, [draw(random_) for _ in range(count)], random_)


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
    attending = [one._replace(selection=attends) for one in different]
    alone = decode_alone(engine, attending)
    jobs = []
    for i in chosen:
        for job in jobs[-30:-29]:  # about 30 are in progress
            with suppress(CancelledError):
                job.result.result(60)
        jobs.append(Job((attending if random_.random() < 0.2 else different)[i]))
        engine.queue.put(jobs[-1:])
        if random_.random() < 0.1:
            random_.choice(jobs[-20:]).result.cancel()
    answered = [
        (one.result.result(60), alone[i])
        for i, one in zip(chosen, jobs, strict=True)
        if not one.result.cancelled()
    ]
    assert engine.status.ready
    engine.close()
    assert engine.status.rows == 0
    assert 880 <= len(answered) < 1000
    assert sum(compare(*each, Precision.int8) for each in answered) <= 2
    assert sum(bool(outcome.attention) for outcome, _ in answered) > 100
