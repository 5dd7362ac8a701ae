"""Ask a model, in this process or behind a URL, for the answers to many texts."""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import islice
from typing import Any, Protocol

from service.command.errors import (
    describe,
    error_of,
    first_bad,
    place_among,
    place_of,
    place_result,
    report,
)
from service.command.flags import ModelPlace
from service.errors import Fault, HeedError, StartupError
from service.formats.json import JSON, Document

FEWEST, MOST = 8, 256  # texts of a batch
BATCH_SECONDS = 1.0  # of work in a batch: who stops a command loses a few of them
TOO_MUCH = (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.GATEWAY_TIMEOUT)


class AnyModel(Protocol):
    """A model that answers requests of the service."""

    @property
    def name(self) -> str:
        """The name by which answers call it."""
        ...

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


def open_model(place: ModelPlace) -> AbstractAsyncContextManager[AnyModel]:
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
    model: AnyModel,
    texts: Iterable[str],
    options: dict[str, Any],
    *,
    before: int = 0,
    together: int = 1,
    fewest: int = FEWEST,
    most: int = MOST,
) -> AsyncGenerator[Decoded]:
    """Yield the texts in batches, in their order. The engine gets as many as `together`, so that it
    is never without work. A batch has as many texts as the model answered in BATCH_SECONDS so far,
    within these limits. Errors count texts from the first one, or `before` others. Those of texts,
    and of reading them, are raised after the texts before them."""
    unread = list[Exception]()
    left = readable(texts, unread)
    waiting = deque[asyncio.Task[tuple[Decoded, HeedError | None]]]()
    answered, began = 0, time.monotonic()

    def next_batch() -> list[str]:
        speed = answered / max(time.monotonic() - began, 1e-3)
        return [*islice(left, min(max(fewest, int(speed * BATCH_SECONDS)), most))]

    try:
        while (batch := next_batch()) or waiting:
            if batch:
                waiting.append(asyncio.create_task(decode_up_to(model, batch, options, before)))
                before += len(batch)
            if not batch or len(waiting) == together:
                done, failure = await waiting.popleft()
                answered += len(done.texts)
                yield done
                if failure:
                    raise failure
        if unread:
            raise unread[0]
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)  # before the model is closed


def readable(texts: Iterable[str], unread: list[Exception]) -> Iterator[str]:
    """Yield the texts before one that cannot be read, whose error is added to `unread`."""
    try:
        yield from texts
    except (StartupError, OSError) as error:
        unread.append(error)


async def decode_up_to(
    model: AnyModel, texts: list[str], options: dict[str, Any], before: int
) -> tuple[Decoded, HeedError | None]:
    """Return the answer for these texts. If one of them is refused, return the answer for those
    before it, and its error."""
    try:
        return await decode_batch(model, texts, options, before), None
    except HeedError as error:
        if not (good := first_bad(error) - before) > 0:
            raise
        return await decode_batch(model, texts[:good], options, before), error


async def decode_batch(
    model: AnyModel, texts: list[str], options: dict[str, Any], before: int = 0
) -> Decoded:
    """Return the answer for these texts. Errors count them from the first one, or `before`
    others."""
    plain = [*map(str, texts)]  # pydantic loses a JsonSource with half a surrogate pair
    try:
        document = await ask_in_parts(model, "/v1/decode", {"source": plain, **options})
    except HeedError as error:
        raise place_among(error, before) from None
    errors = {
        place: place_among(error_of(result["problem"]), before)
        for place, result in enumerate(document["results"])
        if "problem" in result
    }
    return Decoded(texts, document, errors)


def tell(decoded: Decoded) -> int:
    """Report the errors of texts, and return how many there are."""
    for error in decoded.errors.values():
        report(describe(error))
    return len(decoded.errors)


async def ask_in_parts(model: AnyModel, path: str, body: dict[str, Any]) -> Document:
    """Return the answer to a request with a list of sources. Ask for each half of them if they are
    too many for one request, or for its time. A source that is too much by itself is at fault. If
    the error names an option, that is at fault instead, unless the answer may be `partial`."""
    half = len(body["source"]) // 2
    try:
        return await model.ask_document(path, body)
    except HeedError as error:
        if error.status not in TOO_MUCH or first_bad(error) >= 0:
            raise
        if not half:
            if not body.get("partial"):
                raise blame_source(error) from None
            return write_refused(place_at_source(error), path, model.name)
    first = await ask_in_parts(model, path, part_of(body, slice(half)))
    try:
        second = await ask_in_parts(model, path, part_of(body, slice(half, None)))
    except HeedError as error:
        raise place_among(error, half) from None
    usage = {name: n + second["usage"][name] for name, n in first["usage"].items()}
    results = first["results"] + [place_result(each, half) for each in second["results"]]
    return {**second, **first, "results": results, "usage": usage}


def blame_source(error: HeedError) -> HeedError:
    """Return the error of a request with one source as that of the source, or as it is if it names
    an option."""
    names_option = any(fault.pointer != "/source" for fault in error.faults)
    return error if names_option else place_at_source(error)


def place_at_source(error: HeedError) -> HeedError:
    """Return the error of a request with one source as that of the source."""
    if all(fault.pointer == "/source" for fault in error.faults) and error.faults:
        faults = [replace(fault, pointer="/source/0") for fault in error.faults]
    else:
        named = error.change_faults(lambda fault: replace(fault, pointer=place_of(fault.pointer)))
        faults = [Fault("/source/0", f"is too much for one request: {named.detail}")]
    refused = type(error).of(faults)
    refused.status, refused.code = error.status, error.code
    return refused


def write_refused(error: HeedError, path: str, name: str) -> Document:
    """Return the answer to a `partial` request whose only source is refused."""
    from service.http.messages.problems import write_problem  # loads Starlette

    problem = json.loads(write_problem(error, path, request_id=""))
    usage = {"source_tokens": 0, "target_tokens": 0}
    return {"model": name, "results": [{"problem": problem}], "usage": usage}


def part_of(body: dict[str, Any], part: slice) -> dict[str, Any]:
    """Return a request for some of the sources, and their targets if it has any."""
    lists = {name: body[name][part] for name in ("source", "target") if name in body}
    return {**body, **lists}
