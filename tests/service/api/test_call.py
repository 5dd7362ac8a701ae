"""Waiting for work outside the event loop."""

import asyncio
import gc
import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from service.api.reading.call import (
    ENTRIES_AT_ONCE,
    LARGE,
    LITTLE,
    MOST_WAITING,
    SMALL,
    Call,
    one_of_each_class,
)
from service.api.reading.faults import Faults
from service.errors import Overloaded, PassFailed, Unavailable
from service.http.limits import Record, Terms
from service.settings.settings import Settings
from service.wire import Answer, Entry

SIZES = (LARGE, LARGE, LARGE + 1)


def new_call():
    """Return a call whose client stays."""
    service = SimpleNamespace(settings=Settings(), classes=one_of_each_class(), ending=False)
    state = {"record": Record(), "request_id": "mine", "terms": Terms()}
    app = SimpleNamespace(state=SimpleNamespace(service=service))
    return Call({"type": "http", "app": app, "state": state}, asyncio.Event().wait)


def test_only_large_work_leaves_the_thread_of_the_event_loop():
    async def run():
        call = new_call()
        return [await call.compute(threading.get_ident, size) for size in (LITTLE, LITTLE + 1)]

    little, much = asyncio.run(run())
    assert little == threading.get_ident() != much


@pytest.mark.parametrize("reads", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("size", [LITTLE + 1, SMALL, SMALL + 1, LARGE, LARGE + 1])
def test_reading_and_writing_are_done_one_at_a_time_of_each_class(size, reads):
    """Too much may wait to be read, but never to be written: that is computed already."""
    inside = most = 0
    all_came = threading.Event()

    def work():
        nonlocal inside, most
        assert all_came.wait(60)
        inside += 1
        most = max(most, inside)
        time.sleep(0.005)
        inside -= 1
        return threading.get_ident()

    async def run():
        call = new_call()
        works: list[asyncio.Future[int]] = []
        for place in range(MOST_WAITING + 4):
            is_read = place % 2 < 2 * reads
            compute_work = call.compute_reading if is_read else call.compute
            works.append(asyncio.ensure_future(compute_work(work, size)))
            await asyncio.sleep(0)  # it begins to wait before the next one comes
            await asyncio.sleep(0)
        all_came.set()
        return await asyncio.gather(*works, return_exceptions=True)

    outcomes = asyncio.run(run())
    assert threading.get_ident() not in outcomes
    assert most == 1
    refused = [each for each in outcomes if isinstance(each, Overloaded)]
    assert bool(refused) is (size > LARGE and reads > 0)


def test_a_small_text_does_not_wait_for_large_ones():
    begun, end = threading.Event(), threading.Event()

    def large():
        begun.set()
        assert end.wait(60)
        return "large"

    async def run():
        call = new_call()
        reads = [asyncio.ensure_future(call.compute_reading(large, size)) for size in SIZES]
        assert await asyncio.to_thread(begun.wait, 60)
        small = await call.compute_reading(lambda: "small", SMALL)
        end.set()
        return [small, *await asyncio.gather(*reads)]

    assert asyncio.run(run()) == ["small", "large", "large", "large"]


def test_what_is_not_read_when_the_service_ends_is_refused():
    """It would be dropped without an answer, since a long queue takes more than what is left."""

    async def run():
        call, begun, free = new_call(), threading.Event(), threading.Event()

        def hold():
            begun.set()
            return free.wait(60)

        first = asyncio.ensure_future(call.compute_reading(hold, LARGE))
        others = [asyncio.ensure_future(call.compute_reading(hold, size)) for size in SIZES[:2]]
        await asyncio.to_thread(begun.wait, 60)
        call.service.ending = True
        free.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    first, *others = asyncio.run(run())
    assert first is True
    assert [type(each) for each in others] == [Unavailable] * 2


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("refused", [False, True])
def test_a_failure_cancels_all_entries_of_a_request_that_is_sent_in_parts(partial, refused):
    """Whether an entry fails or a later part is refused: else the engine would go on."""
    sent: list[asyncio.Future[None]] = []

    def submit(entries, *_):
        if refused and sent:
            raise Overloaded("the engine has enough")
        futures = [asyncio.get_running_loop().create_future() for _ in entries]
        if refused:
            asyncio.get_running_loop().call_soon(futures[5].set_result, Answer())
        elif not sent:
            asyncio.get_running_loop().call_soon(futures[5].set_exception, failure)
        sent.extend(futures)
        return futures

    async def run():
        with pytest.raises((Overloaded, Unavailable)):
            await send_in_parts(submit, partial)
        return sum(not future.cancelled() for future in sent)

    failure = Unavailable("the engine has ended")
    assert asyncio.run(run()) == 1


@pytest.mark.parametrize("partial", [False, True])
def test_the_second_part_waits_until_the_first_is_accepted(partial):
    """Many large requests that are refused at once would keep words from the engine."""
    parts: list[int] = []

    def submit(entries, *_):
        parts.append(len(entries))
        futures = [asyncio.get_running_loop().create_future() for _ in entries]
        for future in futures:
            asyncio.get_running_loop().call_later(0.01, future.set_exception, refusal)
        return futures

    refusal = Overloaded("the engine has enough")
    with pytest.raises(Overloaded):
        asyncio.run(send_in_parts(submit, partial))
    assert parts == [ENTRIES_AT_ONCE]


async def send_in_parts(submit, partial):
    model = SimpleNamespace(engine=SimpleNamespace(submit=submit))
    entries = [Entry(np.array([5]))] * (2 * ENTRIES_AT_ONCE + 2)
    return await new_call().submit_in_parts(model, entries, Faults(partial), range(len(entries)))


def test_a_reported_error_does_not_keep_its_request():
    """Its frames hold the work that failed, which holds the error."""

    async def wait_for_a_failure():
        call = new_call()
        work = asyncio.get_running_loop().create_future()
        work.set_exception(PassFailed("the model failed"))
        record = call.record
        try:
            await call.wait_for(work)
        except PassFailed as error:
            record.error = error
        record.forget_error()
        return weakref.ref(work), weakref.ref(call)

    gc.disable()
    try:
        kept = asyncio.run(wait_for_a_failure())
        assert [each() for each in kept] == [None, None]
    finally:
        gc.enable()
