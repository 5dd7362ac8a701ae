"""What every endpoint does: find the model, read the texts, wait for the engine, write JSON."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.to_thread
import orjson
from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from service.entry import Answer, Entry
from service.errors import (
    Abandoned,
    DeadlineExceeded,
    Invalid,
    NotAcceptable,
    NotFound,
    Overloaded,
    TooLarge,
)
from service.served import Model
from service.settings import Settings
from service.tokenizer import Tokenizer, Tokens


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
    """Tokenizes off the event loop. The first fault refuses the whole request."""
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
    sequences = await run_in_threadpool(read_all)
    return {"tokenize": time.monotonic() - started}, sequences


def check_size(request: Request, needed: int, advice: str) -> None:
    """Raises TooLarge if the arrays of an answer, as float32, could exceed the limit. `advice` is
    what else the client can do about it."""
    limit = settings_of(request).max_answer_bytes
    if needed > limit:
        raise TooLarge(
            f"the answer could take {needed} bytes and the limit is {limit}: send fewer or shorter"
            f" sequences{advice}"
        )


def settings_of(request: Request) -> Settings:
    return request.app.state.settings


async def answers_to(request: Request, model: Model, entries: Sequence[Entry]) -> list[Answer]:
    """Waits for all. On the first failure, when the client leaves or when time is up, drops the
    rest and raises."""
    limit = settings_of(request).timeout
    model.engine.submit(entries)
    answers = asyncio.gather(*(entry.result for entry in entries))
    answers.add_done_callback(lambda done: done.cancelled() or done.exception())  # or it is logged
    gone = asyncio.ensure_future(request.receive())  # the body is read: what comes is the end
    try:
        await asyncio.wait({answers, gone}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if answers.done():
            return answers.result()
        if gone.done():
            raise Abandoned("the client closed the connection")
        raise late(limit)
    finally:
        gone.cancel()
        answers.cancel()
        for entry in entries:
            entry.result.cancel()


def form_of(request: Request, forms: Sequence[str]) -> str:
    """The form that the Accept headers like best, the first of those they like alike.

    Of the ranges that match a form the most specific counts. Raises NotAcceptable naming the forms
    (RFC 9110, section 12.5.1).
    """
    accepted = ",".join(request.headers.getlist("accept")).lower() or "*/*"
    qualities: dict[str, float] = {}
    for part in accepted.split(","):
        media_range, _, parameters = part.partition(";")
        found = re.search(r"\bq=([01](?:\.\d{0,3})?)\s*(?:;|$)", parameters)
        qualities[media_range.strip()] = float(found[1]) if found else 1.0

    def quality(form: str) -> float:
        ranges = (form, f"{form.partition('/')[0]}/*", "*/*")
        return next((qualities[each] for each in ranges if each in qualities), 0.0)

    best = max(forms, key=quality)
    if not quality(best):
        raise NotAcceptable(f"this comes as {', '.join(forms)}")
    return best


async def in_turn(request: Request, work: Callable[[], Response]) -> Response:
    """Computes on a thread, as many at once as there are cores for it.

    Raises Overloaded if too many wait for that, DeadlineExceeded if none is free in time.
    """
    settings, limiter = settings_of(request), request.app.state.limiter
    if (waiting := limiter.statistics().tasks_waiting) >= settings.max_queue:
        raise Overloaded(f"{waiting} requests wait already; the limit is {settings.max_queue}")
    try:
        with anyio.fail_after(settings.timeout):
            return await anyio.to_thread.run_sync(work, limiter=limiter)
    except TimeoutError as error:
        raise late(settings.timeout) from error


def late(limit: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"not done within {limit:g} seconds; send less or try again later")


async def respond(
    write: Callable[[], dict[str, Any]], seconds: dict[str, float], answers: Sequence[Answer] = ()
) -> Response:
    """Writes off the event loop. A stage lasted as long as it did for the slowest source."""
    started = time.monotonic()
    content = await run_in_threadpool(lambda: to_json(write()))
    for answer in answers:
        for stage, duration in answer.seconds.items():
            seconds[stage] = max(duration, seconds.get(stage, 0.0))
    seconds["serialize"] = time.monotonic() - started
    return Response(content, media_type="application/json", headers=timing(seconds))


def to_json(content: dict[str, Any]) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def timing(seconds: dict[str, float]) -> dict[str, str]:
    stages = (f"{stage};dur={1000 * value:.3f}" for stage, value in seconds.items())
    return {"Server-Timing": ", ".join(stages)}
