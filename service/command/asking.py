"""Ask a model, in this process or behind a URL, for the answers to many texts."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from service.command.errors import error_of, names_texts, place_among
from service.command.flags import Place
from service.errors import HeedError
from service.formats.json import JSON, Document

TOO_MUCH = (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.GATEWAY_TIMEOUT)


class Model(Protocol):
    """A model that answers requests of the service."""

    @property
    def version(self) -> str:
        """A mark of the model, and of its precision."""
        ...

    async def ask(self, path: str, body: Mapping[str, Any], accept: str = JSON) -> bytes:
        """Return the service's answer. Raise HeedError and StartupError."""
        ...

    async def ask_document(self, path: str, body: Mapping[str, Any]) -> Document:
        """Return the service's answer as a document, whose numbers may be NumPy's. Raise HeedError
        and StartupError."""
        ...


def open_model(place: Place) -> AbstractAsyncContextManager[Model]:
    """Open the model at this place. Raise as a service that starts, or that is asked."""
    if place.url:
        from service.command.remote import open_remote

        return open_remote(place.url, place.model)
    from service.command.local import open_local  # loads ONNX Runtime

    return open_local(place.bundle)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A batch with the service's answer, and the errors of texts that failed, by their places."""

    texts: list[str]
    document: Document
    errors: dict[int, HeedError]


async def decode_in_order(
    model: Model,
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
            waiting.append(asyncio.create_task(decode_batch(model, batch, options, before)))
            before += len(batch)
            if len(waiting) == together:
                yield await waiting.popleft()
        while waiting:
            yield await waiting.popleft()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)  # before the model is closed


async def decode_batch(
    model: Model, texts: list[str], options: dict[str, Any], before: int
) -> Decoded:
    try:
        document = await ask_in_parts(model, "/v1/decode", {"source": texts, **options})
    except HeedError as error:
        raise place_among(error, before) from None
    errors = {
        place: place_among(error_of(result["problem"]), before)
        for place, result in enumerate(document["results"])
        if "problem" in result
    }
    return Decoded(texts, document, errors)


async def ask_in_parts(model: Model, path: str, body: dict[str, Any]) -> Document:
    """Return the answer to a request with a list of sources. Ask for each half of them if they are
    too many for one request, or for its time."""
    try:
        return await model.ask_document(path, body)
    except HeedError as error:
        count = len(body["source"])
        if count == 1 or error.status not in TOO_MUCH or names_texts(error):
            raise
    half = count // 2
    first = await ask_in_parts(model, path, part_of(body, slice(half)))
    try:
        second = await ask_in_parts(model, path, part_of(body, slice(half, None)))
    except HeedError as error:
        raise place_among(error, half) from None
    usage = {name: n + second["usage"][name] for name, n in first["usage"].items()}
    return {**first, "results": first["results"] + second["results"], "usage": usage}


def part_of(body: dict[str, Any], part: slice) -> dict[str, Any]:
    """Return a request for some of the sources, and their targets if it has any."""
    lists = {name: body[name][part] for name in ("source", "target") if name in body}
    return {**body, **lists}
