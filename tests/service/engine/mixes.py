"""Random requests, decoded together and alone."""

import math

import numpy as np

from service.engine.engine import Engine
from service.search.options import SearchOptions
from service.settings.settings import Precision, Provider, Settings
from service.wire import Entry
from tests.service.engine.engines import answers, put

TOLERANCES = {Precision.fp32: (1e-4, 1e-5), Precision.int8: (0.0, 2e-2)}  # relative, absolute
LETTERS = range(4, 31)


def engine_of(bundle, precision):
    options = {"precision": precision, "provider": Provider.cpu, "self_check": False}
    return Engine(bundle, Settings(threads=2, **options))


def draw(random_):
    """Draw an entry: a source and the options of its search."""
    source = np.array(random_.choices(LETTERS, k=random_.randint(1, 16)))
    beam_size = random_.choice([1, 1, 1, 2, 4])
    search = SearchOptions(
        max_new_tokens=random_.randint(1, 24),
        beam_size=beam_size,
        num_hypotheses=random_.randint(1, beam_size),
        length_penalty=random_.choice([1.0, 0.6]),
        early_stopping=random_.random() < 0.7,
    )
    return Entry(source, search)


def assert_as_alone(bundle, precision, entries, random_):
    """Compare answers to entries that come at random moments with those to each alone. At most two
    may differ, if their two best are closer than the tolerance."""
    engine = engine_of(bundle, precision)
    engine.start()
    together = decode_together(engine, entries, random_)
    alone = decode_alone(engine, entries)
    engine.close()
    ties = [compare(*each, precision) for each in zip(together, alone, strict=True)]
    assert sum(ties) <= 2


def decode_together(engine, entries, random_):
    """Submit groups of random size, each when some entry of the one before has ended."""
    jobs = []
    while len(jobs) < len(entries):
        new = put(engine, entries[len(jobs) : len(jobs) + random_.randint(1, 12)])
        random_.choice(new).result.result(60)
        jobs += new
    return [job.result.result(60) for job in jobs]


def decode_alone(engine, entries):
    return [answers(engine, [entry])[0] for entry in entries]


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
