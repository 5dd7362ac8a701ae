"""Batches of a command's texts: their sizes, and what comes before a bad text."""

import asyncio

import pytest

from service.command.asking import BATCH_SECONDS, decode_in_order
from service.errors import Fault, Invalid, StartupError


class Paced:
    """A model that answers so many texts a second, by a clock of its own, and refuses some."""

    name = version = ""

    def __init__(self, speed, bad=()):
        self.speed, self.bad, self.now, self.asked = speed, bad, 0.0, []

    async def ask_document(self, path, body):
        texts = body["source"]
        faults = [
            Fault(f"/source/{i}", "is bad") for i, text in enumerate(texts) if text in self.bad
        ]
        if faults:
            raise Invalid.of(faults)
        self.asked.append(len(texts))
        self.now += len(texts) / self.speed
        return {"results": [{"hypotheses": [{"text": text}]} for text in texts]}


def decode(model, texts, **limits):
    """Return the texts that were answered before the end or the first error, and the error."""
    answered = []

    async def run():
        async for each in decode_in_order(model, texts, {}, **limits):
            answered.extend(each.texts)

    try:
        asyncio.run(run())
    except (Invalid, StartupError) as error:
        return answered, error
    return answered, None


@pytest.mark.parametrize(
    ("speed", "least", "most"), [(0.5, 8, 8), (20, 19, 20), (100, 99, 100), (5000, 256, 256)]
)
def test_a_batch_takes_about_a_second(monkeypatch, speed, least, most):
    model, texts = Paced(speed), [f"text {i}" for i in range(2000)]
    monkeypatch.setattr("service.command.asking.time.monotonic", lambda: model.now)
    assert BATCH_SECONDS == 1
    assert decode(model, texts) == (texts, None)
    first, *sizes, last = model.asked
    assert first == 8
    assert sizes
    assert all(least <= size <= most for size in sizes)
    assert 0 < last <= most


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("bad", [0, 1, 7, 8, 40])
def test_texts_before_a_bad_one_are_answered(bad, together):
    texts = [f"text {i}" for i in range(60)]
    answered, error = decode(Paced(20, {texts[bad], texts[bad + 2]}), texts, together=together)
    assert answered == texts[:bad]
    assert error.faults[0].pointer == f"/source/{bad}"


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 8, 40])
def test_texts_before_one_that_cannot_be_read_are_answered(count, together):
    texts, error = [f"text {i}" for i in range(count)], StartupError("is not JSON")

    def read():
        yield from texts
        raise error

    assert decode(Paced(20), read(), together=together) == (texts, error)


def test_an_error_of_the_whole_request_is_raised():
    class Refusing(Paced):
        async def ask_document(self, path, body):
            raise Invalid.of([Fault("/beam_size", "is bad")])

    answered, error = decode(Refusing(1), ["a", "b"])
    assert (answered, error.faults) == ([], (Fault("/beam_size", "is bad"),))
