"""The engine in the process of a command: one outcome for all entries of a request."""

import asyncio
from contextlib import nullcontext

import numpy as np
import pytest

from service.api.reading.faults import Faults
from service.command.local import LocalModel, local_call, local_service
from service.errors import PassFailed
from service.search.options import SearchOptions
from service.settings.settings import Settings
from service.wire import Answer, Entry

UNKNOWN_ID = 10**6  # no model has so many tokens: the encoder fails


def entries(*bad):
    """Eight entries; the encoder fails on some."""
    search = SearchOptions(max_new_tokens=9)
    return [Entry(np.array([UNKNOWN_ID if i in bad else 4, 5]), search) for i in range(8)]


def ask(bundle, asked, faults=None, results=()):
    """Return the answers of an engine, and how often it woke the event loop."""

    async def run():
        async with local_service(Settings(bundles=[bundle])) as service:
            (model,) = service.registry.served.values()
            loop = asyncio.get_running_loop()
            wake, woken = loop.call_soon_threadsafe, []
            loop.call_soon_threadsafe = lambda *given, **others: (
                woken.append(given),
                wake(*given, **others),
            )[1]
            with local_call(service, "/v1/decode") as call:
                answers = await call.submit_and_wait(model, asked, faults, results)
            return answers, len(woken)

    return asyncio.run(run())


def test_the_event_loop_is_woken_once_for_all_entries(tiny):
    answers, woken = ask(tiny, entries())
    assert len(answers) == 8
    assert len({tuple(each.hypotheses[0].token_ids) for each in answers}) == 1
    assert woken == 1


def test_no_entries_have_no_answers(tiny):
    assert ask(tiny, []) == ([], 0)


def test_the_first_failure_is_raised_and_the_others_are_cancelled(tiny):
    with pytest.raises(PassFailed):
        ask(tiny, entries(3))


def test_a_partial_request_notes_failures_at_their_places(tiny):
    faults = Faults(partial=True)
    answers, _ = ask(tiny, entries(3, 5), faults, range(10, 18))
    assert faults.failed.keys() == {13, 15}
    assert [each == Answer() for each in answers] == [i in (3, 5) for i in range(8)]
    assert isinstance(faults.failed[13], PassFailed)


@pytest.mark.parametrize("ask", [LocalModel.ask, LocalModel.ask_document])
@pytest.mark.parametrize("failure", [None, PassFailed("the pass failed")])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/decode", {"source": ["heed"] * 40}),
        ("/v1/attention", {"source": "incomprehensibility", "max_new_tokens": 60}),
    ],
)
def test_a_request_gives_back_what_it_held(monkeypatch, ask, path, body, failure):
    """Else a long file would be refused: its answers together are more than the budget."""
    held = []

    async def run():
        async with local_service(Settings()) as service:
            (model,) = service.registry.served.values()
            engine = model.engine
            compute = engine.run

            async def watched(entries, *, partial):
                held.append(service.answers.held)
                if failure:
                    raise failure
                return await compute(entries, partial=partial)

            monkeypatch.setattr(engine, "run", watched)
            asked = ask(LocalModel(service), path, body)
            with pytest.raises(PassFailed) if failure else nullcontext():
                await asked
            return service.answers.held

    assert asyncio.run(run()) == 0
    assert held[0] > 0
