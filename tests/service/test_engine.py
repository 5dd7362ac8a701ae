import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.attention import select
from service.bundle import load_bundle
from service.engine import Engine, Entry
from service.errors import Overloaded, PassFailed, Unavailable
from service.settings import Provider, Settings

SETTINGS = Settings(provider=Provider.cpu, max_queue=50)


@asynccontextmanager
async def running(bundle, settings=SETTINGS):
    engine = Engine(bundle, settings)
    engine.start()
    try:
        yield engine
    finally:
        await asyncio.to_thread(engine.close)


@pytest.fixture(scope="module")
def tiny_bundle(tiny):
    return load_bundle(tiny)


def everything(bundle):
    return select(["encoder", "decoder", "cross"], "all", "all", bundle.manifest.config)


def entry(source, **wanted):
    return Entry(source_ids=np.array(source), **wanted)


async def answers(engine, entries):
    engine.submit(entries)
    return await asyncio.gather(*(entry.result for entry in entries))


Sources = st.lists(st.integers(4, 9), min_size=1, max_size=12)
Wanted = st.tuples(Sources, st.integers(0, 12), st.booleans())


@settings(max_examples=20, deadline=None)
@given(wanted=st.lists(Wanted, min_size=1, max_size=12), budget=st.sampled_from([1, 60, 4096]))
def test_every_answer_is_what_it_would_be_alone(tiny_bundle, wanted, budget):
    """Whatever its neighbours, their order and the budgets that split them into batches."""
    limits = {"max_batch_tokens": budget, "max_pass_tokens": budget}
    changed = SETTINGS.model_copy(update=limits)

    def make(source, limit, attends):
        selection = everything(tiny_bundle) if attends and limit else None
        return entry(source, max_new_tokens=limit, selection=selection)

    async def run():
        async with running(tiny_bundle, changed) as engine:
            together = await answers(engine, [make(*one) for one in wanted])
            alone = [(await answers(engine, [make(*one)]))[0] for one in wanted]
        return together, alone

    for batched, single in zip(*asyncio.run(run()), strict=True):
        if single.hypothesis is None:
            np.testing.assert_allclose(batched.memory, single.memory, rtol=1e-4, atol=1e-5)
            continue
        assert batched.hypothesis.token_ids == single.hypothesis.token_ids
        np.testing.assert_allclose(
            batched.hypothesis.log_probs, single.hypothesis.log_probs, rtol=1e-4, atol=1e-5
        )
        assert batched.attention.keys() == single.attention.keys()
        for kind, weights in batched.attention.items():
            np.testing.assert_allclose(weights, single.attention[kind], rtol=1e-4, atol=1e-5)


def test_attention_has_a_row_for_every_token_and_starts_with_the_forced_ids(tiny_bundle):
    """With two start ids the first row is the step that read the second."""
    started = tiny_bundle.manifest.model_copy(update={"decoder_start_ids": [1, 5]})
    bundle = type(tiny_bundle)(tiny_bundle.root, started)

    async def run():
        async with running(bundle) as engine:
            one = entry([4, 5, 6], max_new_tokens=7, selection=everything(bundle))
            (decoded,) = await answers(engine, [one])
            ids = decoded.hypothesis.token_ids
            given = entry([4, 5, 6], target_ids=ids, selection=everything(bundle))
            (forced,) = await answers(engine, [given])
        return decoded, forced

    decoded, forced = asyncio.run(run())
    count = len(decoded.hypothesis.token_ids)
    assert decoded.attention["cross"].shape == (2, 3, count, 3)
    assert decoded.attention["decoder"].shape == (2, 3, count, count + 1)
    assert (decoded.attention["decoder"][:, :, 0, 1] > 0).all()
    for kind, weights in decoded.attention.items():
        np.testing.assert_allclose(weights, forced.attention[kind], rtol=1e-5, atol=1e-6)


def test_a_failed_pass_fails_its_entries_and_no_others(tiny_bundle):
    async def run():
        async with running(tiny_bundle) as engine:
            step = engine.session.step

            def fail(*_):
                raise RuntimeError("out of memory")

            engine.session.step = fail
            with pytest.raises(PassFailed, match="RuntimeError"):
                await answers(engine, [entry([4, 5], max_new_tokens=3) for _ in range(3)])
            (encoded,) = await answers(engine, [entry([4, 5])])
            engine.session.step = step
            (decoded,) = await answers(engine, [entry([4, 5], max_new_tokens=3)])
            assert encoded.memory.shape == (2, 24)
            assert len(decoded.hypothesis.token_ids) == 3
            assert engine.ready

    asyncio.run(run())


def test_a_full_queue_refuses_and_keeps_what_it_has(tiny_bundle):
    async def run():
        async with running(tiny_bundle) as engine:
            entries = [entry([4], max_new_tokens=5) for _ in range(SETTINGS.max_queue)]
            too_many = [entry([4]) for _ in range(SETTINGS.max_queue + 1)]
            engine.submit(entries)
            with pytest.raises(Overloaded):
                engine.submit(too_many)
            await asyncio.gather(*(one.result for one in entries))
            assert not any(one.result.done() for one in too_many)

    asyncio.run(run())


def test_cancelled_rows_are_freed_and_the_others_are_answered(tiny_bundle):
    async def run():
        async with running(tiny_bundle) as engine:
            entries = [entry([4 + i % 6], max_new_tokens=39) for i in range(40)]
            engine.submit(entries)
            await asyncio.sleep(0.002)
            for one in entries[::2]:
                one.result.cancel()
            kept = await asyncio.gather(*(one.result for one in entries[1::2]))
            (last,) = await answers(engine, [entry([4], max_new_tokens=1)])
            assert all(answer.hypothesis for answer in kept)
            assert last.hypothesis
            assert engine._live == []
            assert engine._cache.sources == 0

    asyncio.run(run())


def test_a_closed_engine_has_answered_all_and_takes_no_more(tiny_bundle):
    async def run():
        async with running(tiny_bundle) as engine:
            entries = [entry([4, 5], max_new_tokens=20) for _ in range(20)]
            engine.submit(entries)
        assert all([(await one.result).hypothesis for one in entries])
        assert not engine.ready
        with pytest.raises(Unavailable):
            engine.submit([entry([4])])

    asyncio.run(run())
