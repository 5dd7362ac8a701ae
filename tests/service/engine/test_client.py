"""An engine in its own process answers like one in this process."""

import asyncio
import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from service.engine.engine import Engine
from service.errors import DeadlineExceeded
from service.search.options import SearchOptions
from service.serving.client import AT_ONCE, EngineClient
from service.wire.frames import FRAME, encode_message
from service.wire.messages import Cancel, Entry, Status
from tests.service.engine.clients import SETTINGS, entries, running


async def none_left(client):
    """Wait until the cancelled rows have left, which they do at the next step."""
    for _ in range(1000):
        if not (await client.status()).rows:
            return True
        await asyncio.sleep(0.01)
    return False


def test_answers_are_those_of_an_engine_in_this_process(tiny_bundle, every_weight):
    """Including an answer of megabytes, which is read in a thread."""
    everything = every_weight(tiny_bundle)
    large = Entry(np.full(20, 4), None, [5] * 39, everything)
    asked = [*entries(20, selection=everything), *entries(20), Entry(np.array([4])), large]

    async def run():
        async with running(tiny_bundle) as client:
            return await asyncio.gather(*client.submit(asked))

    there = asyncio.run(run())
    engine = Engine(tiny_bundle, SETTINGS)
    engine.start()
    engine.queue.put(asked)
    engine.close()
    for one, other in zip(there, [entry.result.result(0) for entry in asked], strict=True):
        assert [h.token_ids for h in one.hypotheses] == [h.token_ids for h in other.hypotheses]
        assert len(one.attention) == len(other.attention)
        for weights, others in zip(one.attention, other.attention, strict=True):
            assert weights.keys() == others.keys()
            for kind in weights:
                np.testing.assert_allclose(weights[kind], others[kind], rtol=1e-4, atol=1e-5)
        if other.memory is not None:
            np.testing.assert_allclose(one.memory, other.memory, rtol=1e-4, atol=1e-5)


def test_an_answer_of_megabytes_arrives_whole(tiny_bundle, every_weight):
    everything = every_weight(tiny_bundle)

    async def run():
        async with running(tiny_bundle) as client:
            (answer,) = client.submit([Entry(np.full(20, 4), beams(30), [], everything)])
            return await answer

    answer = asyncio.run(run())
    sizes = [weights.nbytes for kinds in answer.attention for weights in kinds.values()]
    assert sum(sizes) > FRAME
    rows = [w.sum(-1) for kinds in answer.attention for w in kinds.values()]
    assert all(np.allclose(row, 1, atol=1e-5) for row in rows)


def beams(count):
    return SearchOptions(max_new_tokens=40, beam_size=count, num_hypotheses=count)


def test_many_answers_at_once_leave_turns_of_the_event_loop_to_others(tiny_bundle):
    async def run():
        async with running(tiny_bundle) as client:
            futures = client.submit(entries(64))
            time.sleep(1)  # noqa: ASYNC251 (all answers arrive before the loop looks again)
            done = [0]
            while done[-1] < len(futures):
                await asyncio.sleep(0)
                done.append(sum(future.done() for future in futures))
            return [after - before for before, after in itertools.pairwise(done)]

    assert max(asyncio.run(run())) <= AT_ONCE


def test_a_message_that_cannot_be_read_keeps_no_other_waiting(tiny_bundle, monkeypatch):
    async def run():
        client = EngineClient(tiny_bundle, SETTINGS)
        asked = [client._expect() for _ in range(3)]
        data = b"".join(part for number, _ in asked for part in encode_message(number, number))
        with pytest.raises(ZeroDivisionError):
            client.data_received(data)
        async with asyncio.timeout(10):
            return await asyncio.gather(*(future for _, future in asked[1:]))

    first = iter([lambda: 1 / 0])
    monkeypatch.setattr("service.serving.client.load", lambda message: next(first, message.load)())
    assert asyncio.run(run()) == [2, 3]


def test_a_request_that_would_wait_too_long_is_refused_whole(tiny_bundle):
    async def run():
        async with running(tiny_bundle) as client:
            accepted = client.submit(entries(20_000, max_new_tokens=40))
            outcomes = [None]
            while DeadlineExceeded not in map(type, outcomes) and not accepted[-1].done():
                asked = client.submit(entries(9), seconds=1e-6)
                outcomes = await asyncio.gather(*asked, return_exceptions=True)
            for future in accepted:
                future.cancel()
            (answer,) = await asyncio.gather(*client.submit(entries(1)))
            return outcomes, answer

    outcomes, answer = asyncio.run(run())
    assert {type(outcome) for outcome in outcomes} == {DeadlineExceeded}
    assert "36 rows (sources, times their beams or samples) take about" in outcomes[0].detail
    assert len(answer.hypotheses) == 4


def test_cancelled_entries_free_their_rows(tiny_bundle):
    async def run():
        async with running(tiny_bundle) as client:
            futures = client.submit(entries(60, max_new_tokens=40))
            for future in futures[::2]:
                future.cancel()
            kept = await asyncio.gather(*futures[1::2])
            return kept, await none_left(client)

    kept, freed = asyncio.run(run())
    assert all(len(answer.hypotheses) == 4 for answer in kept)
    assert freed


def test_no_thread_to_read_a_long_answer_is_no_reason_to_lose_the_engine(tiny_bundle, every_weight):
    class NoThreads(ThreadPoolExecutor):
        def submit(self, *_):
            raise RuntimeError("can't start new thread")

    async def run():
        asyncio.get_running_loop().set_default_executor(NoThreads())
        async with running(tiny_bundle) as client:
            large = Entry(np.full(20, 4), beams(30), [], every_weight(tiny_bundle))
            async with asyncio.timeout(30):
                (answer,) = await asyncio.gather(*client.submit([large]))
            return answer, (await client.status()).ready

    answer, ready = asyncio.run(run())
    assert len(answer.hypotheses) == 30
    assert ready


def test_orders_about_entries_that_are_gone_or_never_were_change_nothing(tiny_bundle):
    async def run():
        async with running(tiny_bundle) as client:
            (first,) = client.submit(entries(1))
            await first
            for number in (1, 2, 2, 999):
                client._order(Cancel(number))
            (second,) = client.submit(entries(1))
            second.cancel()
            client._order(Cancel(3))
            (third,) = client.submit(entries(1))
            return await third, await client.status()

    answer, status = asyncio.run(run())
    assert len(answer.hypotheses) == 4
    assert status == Status(ready=True, rows=0)
