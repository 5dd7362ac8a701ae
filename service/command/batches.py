"""Decode batches of texts by the functions behind POST /v1/decode, and keep their order."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Any

from service.api.endpoints.decode import DecodeRequest, prepare
from service.api.reading.call import Service
from service.api.reading.json_route import validate
from service.command.errors import place_among
from service.command.local import make_call
from service.errors import HeedError
from service.formats.json import Document


@dataclass(frozen=True, slots=True)
class Decoded:
    """A batch with the service's answer, and the errors of texts that failed, by their places."""

    texts: list[str]
    document: Document
    errors: dict[int, HeedError]


async def decode_in_order(
    service: Service,
    batches: Iterable[list[str]],
    options: dict[str, Any],
    *,
    before: int = 0,
    together: int = 1,
) -> AsyncGenerator[Decoded]:
    """Yield the batches in their order. The engine gets as many as `together`, so that it is never
    without work. Errors count texts from the first of all batches, or `before` others."""
    waiting = deque[asyncio.Task[Decoded]]()
    try:
        for batch in batches:
            waiting.append(asyncio.create_task(decode_batch(service, batch, options, before)))
            before += len(batch)
            if len(waiting) == together:
                yield await waiting.popleft()
        while waiting:
            yield await waiting.popleft()
    finally:
        for task in waiting:
            task.cancel()


async def decode_batch(
    service: Service, texts: list[str], options: dict[str, Any], before: int
) -> Decoded:
    """Decode the longest texts first: those of about the same length run together."""
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]), reverse=True)
    places = [before + place for place in order]
    try:
        body = validate(DecodeRequest, {"source": [texts[place] for place in order], **options})
        call = make_call(service, "/v1/decode")
        model, entries, sources, write, faults = await prepare(body, call)
        answers = await call.submit_and_wait(model, entries, faults, sources.results)
    except HeedError as error:
        raise place_among(error, places) from None
    document, failed = write(answers), faults.failed
    results = dict(zip(order, document["results"], strict=True))
    return Decoded(
        texts,
        {**document, "results": [results[place] for place in range(len(texts))]},
        {order[place]: place_among(error, places) for place, error in failed.items()},
    )
