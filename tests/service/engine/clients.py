"""Clients of an engine in a process of its own."""

from contextlib import asynccontextmanager

import numpy as np

from service.attention import NO_ATTENTION
from service.search.options import SearchOptions
from service.serving.client import EngineClient
from service.settings.settings import Provider, Settings
from service.wire.messages import Entry

SETTINGS = Settings(provider=Provider.cpu, max_rows=400, max_sources=100, threads=2)


@asynccontextmanager
async def running(bundle):
    client = EngineClient(bundle, SETTINGS)
    try:
        await client.start()
        yield client
    finally:
        await client.close()


def entries(count, max_new_tokens=9, selection=NO_ATTENTION):
    search = SearchOptions(max_new_tokens=max_new_tokens, beam_size=4, num_hypotheses=4)
    return [Entry(np.array([4, 5 + i % 4]), search, selection=selection) for i in range(count)]


def pid_of(served):
    return served._engine._process.pid
