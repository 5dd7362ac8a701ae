"""The steps that endpoints share: find the model, read the texts, submit and wait, respond."""

import asyncio
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from fastapi import Request, Response

from service.engine.messages import Answer, Entry
from service.engine.model import Model
from service.errors import (
    MOST_FAULTS,
    HeedError,
    Invalid,
    NotFound,
    TooLarge,
    Unavailable,
    shorten,
)
from service.formats.json import JSON, Document, Pieces
from service.formats.writers import SINGLE_SOURCE, WRITERS
from service.http.content import send
from service.http.record import record_of
from service.http.waiting import (
    compute,
    compute_limited,
    compute_reading,
    deadline_of,
    settings_of,
    wait_for,
)
from service.search.protocol import Progress
from service.tokenizer import Tokenizer, Tokens

# Numbers in an answer. Several answers of this size, written at once, would keep the interpreter's
# lock from the event loop.
LARGE_ANSWER = 1 << 20

TextsOrIds = str | Sequence[str | list[int]]


def models_of(request: Request) -> dict[str, Model]:
    return request.app.state.models


def use_model(request: Request, name: str | None) -> Model:
    """Return the model of this name, or the only one; it is not closed before the request ends.
    Raise the errors of `find_model`."""
    model = find_model(models_of(request), name)
    record_of(request).model = model.name
    model.use()
    request.scope["state"].setdefault("at_end", []).append(model.release)
    return model


def find_model(models: dict[str, Model], name: str | None) -> Model:
    """Return the model of this name, or the only one. Raise Invalid or NotFound naming them all,
    Unavailable if there is none."""
    if not models:
        raise Unavailable("no model is served now: try again when one is loaded")
    if name is None and len(models) == 1:
        (name,) = models
    if name is None:
        detail = f"is required, because several models are served: give one of {', '.join(models)}"
        raise Invalid.at("/model", detail)
    if name not in models:
        near = get_close_matches(shorten(name), models, 1)
        advice = f"did you mean {near[0]}? " if near else ""
        detail = f"no model {shorten(name)!r} is served: {advice}give one of {', '.join(models)}"
        raise NotFound("unknown_model", detail)
    return models[name]


class TextField(NamedTuple):
    """A field of the body that holds texts or lists of ids, and the tokenizer that reads it.

    `remedy` is what helps against a text that is too long, beside shortening it.
    """

    pointer: str
    value: TextsOrIds
    tokenizer: Tokenizer
    remedy: str = ""


async def read_texts(request: Request, field: TextField) -> list[Tokens]:
    """Return the tokens of each text. Raise the errors of `read_fields`."""
    (sequences,) = await read_fields(request, [field])
    return sequences


async def read_pairs(
    request: Request, source: TextField, target: TextField
) -> tuple[list[Tokens], list[Tokens]]:
    """Return the tokens of sources and of as many targets. Raise Invalid for more or fewer of
    them, and the errors of `read_fields`."""
    sources, targets = count_texts(source.value), count_texts(target.value)
    if sources != targets:
        counts = f"{how_many(targets, 'target')} for {how_many(sources, 'source')}"
        detail = f"holds {counts}: give one for each source"
        raise Invalid.at(target.pointer, detail)
    read_sources, read_targets = await read_fields(request, [source, target])
    return read_sources, read_targets


def count_texts(value: TextsOrIds) -> int:
    return 1 if isinstance(value, str) else len(value)


def how_many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


async def read_fields(request: Request, fields: Sequence[TextField]) -> list[list[Tokens]]:
    """Return the tokens of each text or list of ids in each field, and record how long this took.

    One refusal names up to MOST_FAULTS faults in all fields together. It is TooLarge if every
    fault is one of size, else Invalid: a client that only shortens its texts would fail again.
    """
    limit = settings_of(request).max_sources
    for field in fields:
        if (count := count_texts(field.value)) > limit:
            detail = f"holds {count} sequences and the limit is {limit}: send several requests"
            raise TooLarge.at(field.pointer, detail)
    started = time.monotonic()
    size = sum(
        len(field.value) if isinstance(field.value, str) else sum(map(len, field.value))
        for field in fields
    )
    sequences = await compute_reading(request, lambda: tokenize_fields(fields), size)
    record_of(request).end_stage("tokenize", started)
    return sequences


def tokenize_fields(fields: Sequence[TextField]) -> list[list[Tokens]]:
    errors: list[HeedError] = []
    sequences = [tokenize_field(field, errors) for field in fields]
    raise_errors(errors)
    return sequences


def raise_errors(errors: Sequence[HeedError]) -> None:
    """Raise one refusal for all errors, if there are any."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        faults = [fault for error in errors for fault in error.faults]
        kind = TooLarge if all(isinstance(error, TooLarge) for error in errors) else Invalid
        raise kind.of(faults)


def tokenize_field(field: TextField, errors: list[HeedError]) -> list[Tokens]:
    """Return the tokens of the valid texts, and append the errors of the others to `errors`.

    Stop when these have MOST_FAULTS faults: a refusal names no more.
    """
    pointer, value, tokenizer, remedy = field
    if isinstance(value, str):
        items: list[tuple[str, str | list[int]]] = [(pointer, value)]
    else:
        items = [(f"{pointer}/{i}", item) for i, item in enumerate(value)]
    sequences: list[Tokens] = []
    for place, item in items:
        if sum(len(error.faults) for error in errors) >= MOST_FAULTS:
            break
        try:
            if isinstance(item, str):
                sequences.append(tokenizer.encode(item, place))
            else:
                sequences.append(tokenizer.read_ids(item, place))
        except TooLarge as error:
            advice = remedy if isinstance(item, str) else ""
            errors.append(TooLarge.at(place, error.faults[0].detail + advice))
        except Invalid as error:
            errors.append(error)
    return sequences


def submit(
    request: Request,
    model: Model,
    entries: Sequence[Entry],
    on_progress: Callable[[int, Progress], None] | None = None,
) -> "list[asyncio.Future[Answer]]":
    """Hand the entries to the engine. Raise TooLarge for more rows than max_rows."""
    rows, limit = sum(entry.rows for entry in entries), settings_of(request).max_rows
    if rows > limit:
        raise TooLarge(
            f"this request takes {rows} rows (sources, or their sentences, times beams or samples)"
            f" and the limit is {limit}: send less, or lower beam_size or num_hypotheses"
        )
    record = record_of(request)
    record.sources = len(entries)
    record.source_tokens = sum(len(entry.source_ids) for entry in entries)
    for entry in entries:
        entry.request_id = request.state.request_id
    return model.engine.submit(entries, on_progress, deadline_of(request).left)


async def submit_and_wait(request: Request, model: Model, entries: Sequence[Entry]) -> list[Answer]:
    """Return the answers to all entries. On the first failure, and when the client leaves or the
    time is up, cancel the others."""
    futures = submit(request, model, entries)
    try:
        answers = await wait_for(request, gather_answers(futures))
    finally:
        cancel_all(futures)
    note_answers(request, entries, answers)
    return answers


def gather_answers(futures: "Sequence[asyncio.Future[Answer]]") -> "asyncio.Future[list[Answer]]":
    """Return a future of all answers, which ends with the first failure."""
    answers = asyncio.gather(*futures)
    # asyncio logs a failure that nobody looks at, such as one after the client has left.
    answers.add_done_callback(lambda done: done.cancelled() or done.exception())
    return answers


def note_answers(request: Request, entries: Sequence[Entry], answers: Sequence[Answer]) -> None:
    """Record what was computed for a request, and the slowest source of each stage."""
    record = record_of(request)
    for entry, answer in zip(entries, answers, strict=True):
        record.generated_tokens += sum(len(each.token_ids) for each in answer.hypotheses)
        weights = (array for kinds in answer.attention for array in kinds.values())
        record.attention_bytes += sum(array.nbytes for array in weights)
        started = entry.arrived
        for stage, seconds in answer.seconds.items():
            record.add_stage(stage, started, seconds)
            started += seconds


def cancel_all(futures: "Sequence[asyncio.Future[Answer]]") -> None:
    """Cancel the entries that have not ended, which frees their rows in the engine."""
    for future in futures:
        future.cancel()


async def respond(
    request: Request,
    write: Callable[[], Document],
    answers: Sequence[Answer] = (),
    media_type: str = JSON,
    size: int = 0,
) -> Response:
    """Send the document that `write` makes, in this media type.

    `size` counts the document's numbers and texts that are not in `answers`. Large documents are
    written in a thread.
    """
    started = time.monotonic()

    def work() -> Pieces:
        return WRITERS[media_type](write())

    size += sum(answer.size for answer in answers)
    slow = media_type in SINGLE_SOURCE or size > LARGE_ANSWER
    pieces = await (compute_limited(request, work) if slow else compute(work, size))
    record_of(request).end_stage("serialize", started)
    return send(request, pieces, media_type)
