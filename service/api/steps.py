"""What every endpoint does: find the model, read the texts, wait for the engine, send a form."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from anyio import CapacityLimiter
from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from service.api import requests
from service.api.validation import search_options
from service.engine.messages import Answer, Entry
from service.engine.model import Model
from service.errors import (
    Abandoned,
    DeadlineExceeded,
    Invalid,
    NotAcceptable,
    NotFound,
    Overloaded,
    TooLarge,
)
from service.formats.json import FILES, FORMS, JSON, OF_ONE, PIECE, Document, Pieces
from service.search.protocol import Progress
from service.search.rules import SearchOptions
from service.settings import Settings
from service.tokenizer import Tokenizer, Tokens

LITTLE = 64  # characters to read, or tokens to write: done about as soon as a thread is woken
MANY = 1 << 20  # numbers to write: many at once would keep the event loop from the lock
MOST_WAITING = 32  # requests that hold their bodies while they wait for a core
Result = TypeVar("Result")


def models_of(request: Request) -> dict[str, Model]:
    return request.app.state.models


def model_of(request: Request, name: str | None) -> Model:
    models = models_of(request)
    if name is None and len(models) == 1:
        return next(iter(models.values()))
    if name is None:
        raise Invalid.at("/model", f"must name one of the models here: {', '.join(models)}")
    if name not in models:
        detail = f"no model {name!r} is served here; there is {', '.join(models)}"
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


async def compute(work: Callable[[], Result], size: int) -> Result:
    """Off the event loop, unless it is done about as soon as handed over."""
    return work() if size <= LITTLE else await run_in_threadpool(work)


def settings_of(request: Request) -> Settings:
    return request.app.state.settings


async def answers_to(request: Request, model: Model, entries: Sequence[Entry]) -> list[Answer]:
    """Waits for all. On the first failure, and on what `finish` raises, drops the rest."""
    each = submit(request, model, entries)
    try:
        return await finish(request, gathered(each))
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


async def finish(request: Request, work: "asyncio.Future[Result]") -> Result:
    """Raises Abandoned when the client leaves, DeadlineExceeded when time is up; the work is then
    cancelled."""
    limit = settings_of(request).timeout
    gone = asyncio.ensure_future(request.receive())  # the body is read: what comes is the end
    try:
        await asyncio.wait({work, gone}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        if gone.done():
            raise Abandoned("the client closed the connection")
        raise DeadlineExceeded(f"not done within {limit:g} seconds; send less or try again later")
    finally:
        gone.cancel()
        work.cancel()


def form_of(request: Request, forms: Sequence[str], what: str = "this") -> str:
    """The form that the Accept headers like best, the first of those they like alike.

    Of the ranges that match a form the most specific counts. Raises NotAcceptable naming the forms
    (RFC 9110, section 12.5.1).
    """
    qualities: dict[str, float] = {}
    for part in ",".join(request.headers.getlist("accept")).lower().split(","):
        media_range, _, parameters = part.partition(";")
        found = re.search(r"\bq=(\d?\.?\d*)\s*(?:;|$)", parameters)
        if media_range.strip():
            quality_given = float(found[1]) if found and re.search(r"\d", found[1]) else 1.0
            qualities[media_range.strip()] = quality_given
    qualities = qualities or {"*/*": 1.0}

    def quality(form: str) -> float:
        ranges = (form, f"{form.partition('/')[0]}/*", "*/*")
        return next((qualities[each] for each in ranges if each in qualities), 0.0)

    best = max(forms, key=quality)
    if not quality(best):
        raise NotAcceptable(f"{what} comes as {', '.join(forms)}")
    return best


async def in_turn(request: Request, work: Callable[[], Result]) -> Result:
    """Computes on a thread, as many at once as there are cores for it. What has begun is finished:
    its size is bounded.

    Raises Overloaded if too many wait for a turn, and what `finish` raises while it waits.
    """
    limiter: CapacityLimiter = request.app.state.limiter
    if limiter.statistics().tasks_waiting >= MOST_WAITING:
        raise Overloaded(f"{MOST_WAITING} requests wait already, which is the limit")
    turn = object()
    await finish(request, asyncio.ensure_future(limiter.acquire_on_behalf_of(turn)))
    try:
        return await run_in_threadpool(work)
    finally:
        limiter.release_on_behalf_of(turn)


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
    pieces = await (in_turn(request, work) if slow else compute(work, size))
    for answer in answers:
        for stage, duration in answer.seconds.items():
            seconds[stage] = max(duration, seconds.get(stage, 0.0))
    seconds["serialize"] = time.monotonic() - started
    return send(request, pieces, seconds, form)


def send(request: Request, pieces: Pieces, seconds: dict[str, float], form: str) -> Response:
    """A large answer piece by piece, as the client takes them."""
    stages = (f"{stage};dur={1000 * value:.3f}" for stage, value in seconds.items())
    headers = {"Server-Timing": ", ".join(stages), "Vary": "Accept"}
    if form in FILES:
        headers["Content-Disposition"] = f'attachment; filename="{FILES[form]}"'
    total = sum(map(len, pieces))
    if total <= PIECE:
        return Response(b"".join(pieces), media_type=form, headers=headers)
    headers["Content-Length"] = str(total)
    response = Patient(one_by_one(pieces), media_type=form, headers=headers)
    response.patience = settings_of(request).timeout
    return response


class Patient(StreamingResponse):
    """Given up when the client takes nothing for `patience` seconds."""

    patience: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self.patience):
                await send(message)

        with suppress(TimeoutError):
            await super().__call__(scope, receive, send_in_time)


async def one_by_one(pieces: Pieces) -> AsyncGenerator[bytes | memoryview]:
    for piece in pieces:
        yield piece
