"""What every endpoint does: find the model, read the texts, wait for the engine, send a form."""

import asyncio
import time
from collections.abc import Callable, Sequence

from fastapi import Request, Response

from service.api import requests
from service.api.validation import search_options
from service.engine.messages import Answer, Entry
from service.engine.model import Model
from service.errors import (
    Invalid,
    NotFound,
    TooLarge,
    shorten,
)
from service.formats.json import JSON, Document, Pieces
from service.formats.writers import FORMS, OF_ONE
from service.http.content import send
from service.http.waiting import compute, compute_limited, settings_of, wait_for
from service.search.options import SearchOptions
from service.search.protocol import Progress
from service.tokenizer import Tokenizer, Tokens

MANY = 1 << 20  # numbers to write: many at once would keep the event loop from the lock


def models_of(request: Request) -> dict[str, Model]:
    return request.app.state.models


def model_of(request: Request, name: str | None) -> Model:
    models = models_of(request)
    if name is None and len(models) == 1:
        return next(iter(models.values()))
    if name is None:
        raise Invalid.at("/model", f"must name one of the models here: {', '.join(models)}")
    if name not in models:
        detail = f"no model {shorten(name)!r} is served here; there is {', '.join(models)}"
        raise NotFound("unknown_model", detail)
    return models[name]


async def read(
    request: Request, tokenizer: Tokenizer, value: str | Sequence[str | list[int]], pointer: str
) -> tuple[dict[str, float], list[Tokens]]:
    """The first fault refuses the whole request."""
    limit = settings_of(request).max_sources
    if not isinstance(value, str) and len(value) > limit:
        raise TooLarge.at(pointer, f"holds {len(value)} sequences; the limit is {limit}")

    def read_all() -> list[Tokens]:
        if isinstance(value, str):
            return [tokenizer.encode(value, pointer)]
        return [
            tokenizer.encode(item, f"{pointer}/{i}")
            if isinstance(item, str)
            else tokenizer.read_ids(item, f"{pointer}/{i}")
            for i, item in enumerate(value)
        ]

    started = time.monotonic()
    size = len(value) if isinstance(value, str) else sum(map(len, value))
    sequences = await compute(read_all, size)
    return {"tokenize": time.monotonic() - started}, sequences


async def read_targets(
    request: Request,
    model: Model,
    value: str | Sequence[str | list[int]],
    count: int,
    seconds: dict[str, float],
) -> list[Tokens]:
    """One for each source. Raises Invalid if there are more or fewer."""
    more, targets = await read(request, model.target, value, "/target")
    seconds["tokenize"] += more["tokenize"]
    if len(targets) != count:
        detail = f"holds {len(targets)} for {count} sources; give one for each"
        raise Invalid.at("/target", detail)
    return targets


async def answers_to(request: Request, model: Model, entries: Sequence[Entry]) -> list[Answer]:
    """Waits for all. On the first failure, and on what `wait_for` raises, drops the rest."""
    each = submit(request, model, entries)
    try:
        return await wait_for(request, gathered(each))
    finally:
        drop(each)


def submit(
    request: Request,
    model: Model,
    entries: Sequence[Entry],
    tell: Callable[[int, Progress], None] | None = None,
) -> "list[asyncio.Future[Answer]]":
    """Raises TooLarge if the queue could never take them."""
    rows, limit = sum(entry.rows for entry in entries), settings_of(request).max_queue
    if rows > limit:
        raise TooLarge(
            f"this takes {rows} rows (sources, times their beams or samples); the limit is {limit}"
        )
    return model.engine.submit(entries, tell)


def gathered(each: "Sequence[asyncio.Future[Answer]]") -> "asyncio.Future[list[Answer]]":
    """Ends with the first failure, which need not be looked at."""
    answers = asyncio.gather(*each)
    answers.add_done_callback(lambda done: done.cancelled() or done.exception())  # or it is logged
    return answers


def drop(each: "Sequence[asyncio.Future[Answer]]") -> None:
    for answer in each:
        answer.cancel()


async def search_of(model: Model, body: requests.Searching, **more: int) -> SearchOptions:
    """Raises Invalid for options that contradict each other or the model."""
    size = len(body.suppress_tokens) + sum(map(len, body.allowed_targets or []))
    manifest = model.engine.bundle.manifest
    return await compute(lambda: search_options(body, manifest, model.target, **more), size)


async def respond(
    request: Request,
    write: Callable[[], Document],
    seconds: dict[str, float],
    answers: Sequence[Answer] = (),
    form: str = JSON,
    size: int = 0,
) -> Response:
    """`size`: what is to be written besides the answers. A stage lasted as long as it did for the
    slowest source."""
    started = time.monotonic()

    def work() -> Pieces:
        return FORMS[form](write())

    size += sum(answer.size for answer in answers)
    slow = form in OF_ONE or size > MANY
    pieces = await (compute_limited(request, work) if slow else compute(work, size))
    for answer in answers:
        for stage, duration in answer.seconds.items():
            seconds[stage] = max(duration, seconds.get(stage, 0.0))
    seconds["serialize"] = time.monotonic() - started
    return send(request, pieces, seconds, form)
