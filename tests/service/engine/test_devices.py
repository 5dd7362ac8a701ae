"""A worker whose KV caches are on a device answers as one whose caches are arrays.

The device is the CPU, under ONNX Runtime's name for it: the graphs, the bindings by address and the
moves are those of a GPU.
"""

import random

import pytest

from service.search.options import SearchOptions
from service.settings.settings import Precision
from tests.service.engine.mixes import (
    compare,
    decode_alone,
    decode_together,
    draw,
    engine_of,
)
from tests.service.runtime.conftest import CPU


@pytest.fixture(scope="module", params=[Precision.fp32, Precision.int8])
def engines(request, g2p_bundle):
    """The precision, an engine with caches on a device, and one with arrays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.runtime.session.cache_device", lambda _: CPU)
        device = engine_of(g2p_bundle, request.param)
    host = engine_of(g2p_bundle, request.param)
    for engine in (device, host):
        engine.start()
    yield request.param, device, host
    for engine in (device, host):
        engine.close()


@pytest.mark.parametrize("seed", range(3))
def test_greedy_and_beam_searches_that_join_and_leave(engines, seed):
    precision, device, host = engines
    random_ = random.Random(seed)
    wanted = [draw(random_) for _ in range(30)]
    together = decode_together(device, wanted, random_)
    alone = decode_alone(host, wanted)
    ties = [compare(*each, precision) for each in zip(together, alone, strict=True)]
    assert sum(ties) <= 2


def test_samples_of_a_seed(engines):
    precision, device, host = engines
    random_ = random.Random(0)
    wanted = [
        draw(random_)._replace(
            search=SearchOptions(
                max_new_tokens=16, num_hypotheses=3, temperature=1.3, top_k=top_k, seed=seed
            )
        )
        for seed, top_k in enumerate([0, 0, 5, 5, 1])
    ]
    together = decode_together(device, wanted, random_)
    for ours, theirs in zip(together, decode_alone(host, wanted), strict=True):
        assert [each.token_ids for each in ours.hypotheses] == [
            each.token_ids for each in theirs.hypotheses
        ]
        compare(ours, theirs, precision)
