"""The client of an engine answers like the engine, and tells it what its callers want."""

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from service.errors import Unavailable
from service.search.options import SearchOptions
from service.search.protocol import Hypothesis, TokenProgress
from service.serving.client import ANSWERS_PER_TURN
from service.wire import FRAME, FRAME_HEADER, Answer, Cancel, Entry, encode_replies
from tests.service.engine import engines
from tests.service.engine.clients import SETTINGS, entries, fake_engine, running

LARGE = Answer(memory=np.ones((FRAME, 1), np.float32))


def test_answers_are_those_of_an_engine_in_this_process(tiny_bundle, every_weight):
    """Including an answer of several frames, which is read in a thread."""
    everything = every_weight(tiny_bundle)
    beams = SearchOptions(max_new_tokens=40, beam_size=30, num_hypotheses=30)
    large = Entry(np.full(20, 4), beams, selection=everything)
    asked = [*entries(20, selection=everything), *entries(20), Entry(np.array([4])), large]

    async def run():
        async with running(tiny_bundle) as client:
            return await asyncio.gather(*client.submit(asked))

    there = asyncio.run(run())
    with engines.running(tiny_bundle, SETTINGS) as engine:
        engines.assert_same(there, engines.answers(engine, asked))
    weights = [each for kinds in there[-1].attention for each in kinds.values()]
    assert sum(each.nbytes for each in weights) > FRAME
    assert all(np.allclose(each.sum(-1), 1, atol=1e-5) for each in weights)


def test_an_order_tells_what_its_engine_needs(tiny_bundle):
    async def run():
        async with fake_engine(tiny_bundle) as (client, engine, _):
            client.submit(entries(2), seconds=2.5, request_id="mine")
            return engine.receive()[1]

    order = asyncio.run(run())
    assert [entry.source_ids.tolist() for _, entry in order.entries] == [[4, 5], [4, 6]]
    assert (order.seconds, order.request_id) == (2.5, "mine")


def test_many_answers_at_once_leave_turns_of_the_event_loop_to_others(tiny_bundle):
    async def run():
        async with fake_engine(tiny_bundle) as (client, engine, _):
            futures = client.submit(entries(64))
            for number, _ in engine.receive()[1].entries:
                engine.send(number, Answer())
            done = [0]
            while done[-1] < len(futures):
                await asyncio.sleep(0)
                done.append(sum(future.done() for future in futures))
            return [after - before for before, after in itertools.pairwise(done)]

    assert max(asyncio.run(run())) <= ANSWERS_PER_TURN


def test_replies_of_one_message_reach_their_entries_in_their_order(tiny_bundle):
    """Even those that come with a cancelled entry's; and all answers do not come in one turn."""
    heard = []

    async def run():
        async with fake_engine(tiny_bundle) as (client, engine, connection):
            asked = [entry._replace(streams=True) for entry in entries(64)]
            futures = client.submit(asked, lambda *progress: heard.append(progress))
            futures[7].cancel()
            numbers = [number for number, _ in engine.receive()[1].entries]
            progress = [(number, [TokenProgress(0, 5, -0.5, [])]) for number in numbers]
            answers = [(number, Answer(seconds={"queue": number})) for number in numbers]
            connection.sendall(encode_replies([*progress, *answers]))
            done = [1]
            while done[-1] < len(futures):
                await asyncio.sleep(0)
                done.append(sum(future.done() for future in futures))
            turns = [after - before for before, after in itertools.pairwise(done)]
            return numbers, await asyncio.gather(*futures, return_exceptions=True), turns

    numbers, outcomes, turns = asyncio.run(run())
    assert [place for place, _ in heard] == [i for i in range(64) if i != 7]
    assert isinstance(outcomes.pop(7), asyncio.CancelledError)
    assert [each.seconds["queue"] for each in outcomes] == [*numbers[:7], *numbers[8:]]
    assert max(turns) <= ANSWERS_PER_TURN


def test_no_memory_for_replies_fails_those_that_wait_for_them(tiny_bundle, monkeypatch):
    def no_memory(_):
        raise MemoryError

    async def run():
        async with fake_engine(tiny_bundle) as (client, engine, connection):
            futures = client.submit(entries(2))
            numbers = [number for number, _ in engine.receive()[1].entries]
            monkeypatch.setattr("service.wire.Message.load", no_memory)
            connection.sendall(encode_replies([(number, Answer()) for number in numbers]))
            return await asyncio.gather(*futures, return_exceptions=True)

    assert {*map(type, asyncio.run(run()))} == {Unavailable}


def test_a_message_that_cannot_be_read_keeps_no_other_waiting(tiny_bundle):
    """The connection is closed then: whoever has no answer hears of it."""

    async def run():
        async with fake_engine(tiny_bundle) as (client, engine, connection):
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            futures = client.submit(entries(4))
            (first, _), *others, _ = engine.receive()[1].entries
            connection.sendall(FRAME_HEADER.pack(5, False, first) + b"wrong")
            for number, _ in others:
                engine.send(number, Answer())
            return await asyncio.gather(*futures, return_exceptions=True)

    outcomes = asyncio.run(run())
    assert [*map(type, outcomes)] == [Unavailable, Answer, Answer, Unavailable]


def test_only_entries_without_an_answer_are_cancelled(tiny_bundle):
    async def run():
        async with fake_engine(tiny_bundle) as (client, engine, _):
            futures = client.submit(entries(3))
            numbers = [number for number, _ in engine.receive()[1].entries]
            engine.send(numbers[0], Answer())
            await futures[0]
            for future in futures:
                future.cancel()
            await asyncio.sleep(0)
            engine.send(numbers[1], Answer())  # it was on its way
            (later,) = client.submit(entries(1))
            orders = [engine.receive()[1] for _ in range(3)]
            engine.send(orders[-1].entries[0][0], Answer())
            await later
            return numbers, orders

    numbers, orders = asyncio.run(run())
    assert orders[:2] == [Cancel(number) for number in numbers[1:]]


def test_only_entries_that_stream_have_their_progress_reported(tiny_bundle):
    heard = []

    async def run():
        async with fake_engine(tiny_bundle) as (client, engine, _):
            asked = [entry._replace(streams=i > 0) for i, entry in enumerate(entries(2))]
            futures = client.submit(asked, lambda *progress: heard.append(progress))
            for number, _ in engine.receive()[1].entries:
                engine.send(number, [])
                engine.send(number, Answer(hypotheses=[Hypothesis([2], [0.0], "eos")]))
            await asyncio.gather(*futures)

    asyncio.run(run())
    assert heard == [(1, [])]


@pytest.mark.parametrize("threads", [True, False])
def test_a_long_answer_is_read_even_if_no_thread_can_be_started(tiny_bundle, threads):
    class NoThreads(ThreadPoolExecutor):
        def submit(self, *_):
            raise RuntimeError("can't start new thread")

    async def run():
        if not threads:
            asyncio.get_running_loop().set_default_executor(NoThreads())
        async with fake_engine(tiny_bundle) as (client, engine, _):
            futures = client.submit(entries(2))
            (long, _), (short, _) = engine.receive()[1].entries
            threading.Thread(target=engine.send, args=(long, LARGE)).start()
            answer = await futures[0]
            engine.send(short, Answer())
            await futures[1]
            return answer

    assert asyncio.run(run()).memory.shape == (FRAME, 1)


def test_everything_pending_fails_when_the_engine_is_gone(tiny_bundle):
    async def run():
        async with fake_engine(tiny_bundle) as (client, _, connection):
            futures = client.submit(entries(80, max_new_tokens=40))
            asking = asyncio.ensure_future(client.status())
            await asyncio.sleep(0)
            connection.close()
            outcomes = await asyncio.gather(*futures, asking, return_exceptions=True)
            for ask in (lambda: client.submit(entries(1)), client.status):
                with pytest.raises(Unavailable, match="another one is being started"):
                    await ask()
            return outcomes

    assert {type(outcome) for outcome in asyncio.run(run())} == {Unavailable}
