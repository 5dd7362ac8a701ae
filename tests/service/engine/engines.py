"""Engines in this process, and entries for them."""

from contextlib import contextmanager

import numpy as np

from service.engine.engine import Engine
from service.search.options import SearchOptions
from service.settings.settings import Provider, Settings
from service.wire.messages import Entry

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


def answers(engine, entries):
    engine.queue.put(entries)
    return [entry.result.result(60) for entry in entries]
