"""Random requests, decoded together and alone."""

import math
import time

import numpy as np

from service.attention import NO_ATTENTION
from service.engine.engine import Engine
from service.search.options import SearchOptions
from service.settings.settings import Precision, Provider, Settings
from service.wire.messages import Entry

TOLERANCES = {Precision.fp32: (1e-4, 1e-5), Precision.int8: (0.0, 2e-2)}  # relative, absolute
LETTERS = range(4, 31)


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
