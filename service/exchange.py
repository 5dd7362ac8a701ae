"""What every endpoint does: find the model, read the texts, wait for the engine, write JSON."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from typing import Any

import orjson
from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from service.entry import Answer, Entry
from service.errors import Abandoned, DeadlineExceeded, Invalid, NotAcceptable, NotFound, TooLarge
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


def check_size(request: Request, needed: int) -> None:
    """Raises TooLarge if the arrays of an answer, as float32, could exceed the limit."""
    limit = settings_of(request).max_answer_bytes
    if needed > limit:
        raise TooLarge(
            f"the answer could take {needed} bytes and the limit is {limit}: send fewer or shorter"
            " sequences, lower max_new_tokens, select fewer layers, heads or kinds, or pool"
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
        raise DeadlineExceeded(f"not done within {limit:g} seconds; send less or try again later")
    finally:
        gone.cancel()
        answers.cancel()
        for entry in entries:
            entry.result.cancel()


def form_of(request: Request, forms: Sequence[str]) -> str:
    """The form that the Accept header likes best, the first where it has no preference.

    Raises NotAcceptable naming the forms (RFC 9110, section 12.5.1).
    """
    best, best_quality = "", 0.0
    for part in request.headers.get("accept", "*/*").split(","):
        media_range, _, parameters = part.strip().partition(";")
        found = re.search(r"\bq=([01](?:\.\d{0,3})?)\s*(?:;|$)", parameters)
        quality = float(found[1]) if found else 1.0
        form = next((form for form in forms if fnmatch(form, media_range.strip())), None)
        if form and quality > best_quality:
            best, best_quality = form, quality
    if not best:
        raise NotAcceptable(f"this comes as {', '.join(forms)}")
    return best


async def respond(
    write: Callable[[], dict[str, Any]], seconds: dict[str, float], answers: Sequence[Answer] = ()
) -> Response:
    """Writes off the event loop. A stage lasted as long as it did for the slowest source."""
    started = time.monotonic()
    content = await run_in_threadpool(
        lambda: orjson.dumps(write(), option=orjson.OPT_SERIALIZE_NUMPY)
    )
    for answer in answers:
        for stage, duration in answer.seconds.items():
            seconds[stage] = max(duration, seconds.get(stage, 0.0))
    seconds["serialize"] = time.monotonic() - started
    timing = ", ".join(f"{stage};dur={1000 * value:.3f}" for stage, value in seconds.items())
    return Response(content, media_type="application/json", headers={"Server-Timing": timing})
