"""Engines in this process, entries for them, and a comparison of answers."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from service.bundle.alignment import AlignedHeads
from service.engine.engine import Engine
from service.engine.scheduler import Job
from service.search.options import SearchOptions
from service.settings.settings import Provider, Settings
from service.wire import Entry
from tests.conftest import ALIGNMENT

SETTINGS = Settings(provider=Provider.cpu, max_rows=50, max_sources=50, threads=2)
ONE_WORKER = SETTINGS.model_copy(update={"threads": 1})


@contextmanager
def running(bundle, settings=SETTINGS):
    engine = Engine(bundle, settings)
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


def entry(source, max_new_tokens=0, beam_size=1, **wanted):
    options = SearchOptions(
        max_new_tokens=max_new_tokens, beam_size=beam_size, num_hypotheses=beam_size
    )
    search = options if max_new_tokens else None
    return Entry(source_ids=np.array(source), search=search, **wanted)


def with_alignment(bundle, **changes):
    """The bundle with an alignment by some of its heads."""
    alignment = AlignedHeads.model_validate({**ALIGNMENT, **changes})
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"alignment": alignment}))


def put(engine, entries):
    """Let an engine compute entries, and return their jobs."""
    engine.queue.put(jobs := [*map(Job, entries)])
    return jobs


def answers(engine, entries):
    return [job.result.result(60) for job in put(engine, entries)]


def assert_same(answers, others):
    """Assert that the answers have the same tokens, and the same numbers but for rounding."""
    for one, other in zip(answers, others, strict=True):
        for ours, theirs in zip(one.hypotheses, other.hypotheses, strict=True):
            assert ours.token_ids == theirs.token_ids
            assert_close(ours.log_probs, theirs.log_probs)
        for weights, expected in zip(one.attention, other.attention, strict=True):
            assert weights.keys() == expected.keys()
            for kind in weights:
                assert_close(weights[kind], expected[kind])
        for name in ("memory", "log_probs"):
            found, expected = getattr(one, name), getattr(other, name)
            assert (found is None) == (expected is None)
            if expected is not None:
                assert_close(found, expected)


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
