"""The steps that endpoints share: find the model, submit and wait, respond."""

import asyncio
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar

import orjson
from fastapi import Request, Response

from service.api.reading.faults import Faults
from service.errors import HeedError, Invalid, NotFound, PassFailed, TooLarge, Unavailable, shorten
from service.formats.json import JSON, Document, Pieces
from service.formats.writers import SINGLE_SOURCE, WRITERS
from service.http.limits.record import record_of
from service.http.limits.waiting import (
    compute,
    compute_limited,
    deadline_of,
    settings_of,
    wait_for,
)
from service.http.messages.content import send
from service.http.messages.problems import write_problem
from service.search.protocol import Progress
from service.serving.model import Model
from service.serving.registry import Failure
from service.wire.messages import Answer, Entry

# Numbers in an answer. Several answers of this size, written at once, would keep the interpreter's
# lock from the event loop.
LARGE_ANSWER = 1 << 20

FINISH_REASON = "X-Finish-Reason"

Asked = TypeVar("Asked")
Found = TypeVar("Found")


class Computed(NamedTuple):
    """What is computed for a request: `write` makes the document of its endpoint.

    `size` counts the document's numbers and texts that are not in `answers`.
    """

    write: Callable[[], Document]
    answers: Sequence[Answer] = ()
    size: int = 0


def models_of(request: Request) -> dict[str, Model]:
    return request.app.state.models


def failed_of(request: Request) -> dict[str, Failure]:
    return request.app.state.registry.failed


def use_model(request: Request, name: str | None) -> Model:
    """Return the model of this name, or the only one; it is not closed before the request ends.
    Raise the errors of `find_model`."""
    model = find_model(models_of(request), name, failed_of(request))
    record_of(request).model = model.name
    model.use()
    request.scope["state"].setdefault("at_end", []).append(model.release)
    return model


def find_model(models: Mapping[str, Found], name: str | None, failed: Container[str] = ()) -> Found:
    """Return the model of this name, or the only one. Raise Invalid or NotFound naming them all,
    Unavailable if there is none. Those of the names `failed` could not be opened at the start."""
    if not models:
        raise Unavailable("no model is served now: try again when one is loaded")
    if name is None and len(models) == 1:
        (name,) = models
    if name is None:
        detail = f"is required, because several models are served: give one of {', '.join(models)}"
        raise Invalid.at("/model", detail)
    if name not in models:
        why = f"no model {shorten(name)!r} is served: "
        if name in failed:
            why = f"model {name} could not be opened, which its operator must mend: "
        elif near := get_close_matches(shorten(name), models, 1):
            why += f"did you mean {near[0]}? "
        raise NotFound("unknown_model", f"{why}give one of {', '.join(models)}")
    return models[name]


def submit(
    request: Request,
    model: Model,
    entries: Sequence[Entry],
    on_progress: Callable[[int, Progress], None] | None = None,
) -> "list[asyncio.Future[Answer]]":
    """Hand the entries to the engine, if there are any. Raise TooLarge for more rows than
    max_rows."""
    if not entries:
        return []
    limit = settings_of(request).max_rows
    rows = sum(entry.search.rows if entry.search else 1 for entry in entries)
    if rows > limit:
        raise TooLarge(
            f"this request takes {rows} rows (sources, or their sentences, times beams or samples)"
            f" and the limit is {limit}: send less, or lower beam_size or num_hypotheses"
        )
    record = record_of(request)
    record.sources += len(entries)
    record.source_tokens += sum(len(entry.source_ids) for entry in entries)
    record.submitted = time.monotonic()
    left, request_id = deadline_of(request).left, request.state.request_id
    return model.engine.submit(entries, on_progress, left, request_id)


async def submit_and_wait(
    request: Request,
    model: Model,
    entries: Sequence[Entry],
    faults: Faults | None = None,
    results: Sequence[int] = (),
) -> list[Answer]:
    """Return the answers to all entries, as `gather_answers` does. On a failure, and when the
    client leaves or the time is up, cancel the others."""
    futures = submit(request, model, entries)
    try:
        answers = await wait_for(request, gather_answers(futures, faults, results))
    finally:
        cancel_all(futures)
    note_answers(request, answers)
    return answers


def gather_answers(
    futures: "Sequence[asyncio.Future[Answer]]",
    faults: Faults | None = None,
    results: Sequence[int] = (),
) -> "asyncio.Future[list[Answer]]":
    """Return a future of all answers, which ends with the first failure.

    If `faults` are those of a partial request, an entry whose pass fails has an empty answer
    instead, and a fault of the result to which it belongs by `results`.
    """
    if faults and faults.partial:
        pairs = zip(futures, results, strict=True)
        answers = asyncio.gather(*(answer_or_note(*pair, faults) for pair in pairs))
    else:
        answers = asyncio.gather(*futures)
    # asyncio logs a failure that nobody looks at, such as one after the client has left.
    answers.add_done_callback(lambda done: done.cancelled() or done.exception())
    return answers


async def answer_or_note(future: "asyncio.Future[Answer]", result: int, faults: Faults) -> Answer:
    """Return the answer to an entry; if its pass has failed, an empty one and a fault."""
    try:
        return await future
    except PassFailed as error:
        faults.add(error, result)
        return Answer()


def note_answers(request: Request, answers: Sequence[Answer]) -> None:
    """Record what was computed for a request, and the slowest source of each stage."""
    record = record_of(request)
    for answer in answers:
        record.generated_tokens += sum(len(each.token_ids) for each in answer.hypotheses)
        weights = (array for kinds in answer.attention for array in kinds.values())
        record.attention_bytes += sum(array.nbytes for array in weights)
        started = record.submitted
        for stage, seconds in answer.seconds.items():
            record.add_stage(stage, started, seconds)
            started += seconds


def cancel_all(futures: "Sequence[asyncio.Future[Answer]]") -> None:
    """Cancel the entries that have not ended, which frees their rows in the engine."""
    for future in futures:
        future.cancel()


def write_partial(
    request: Request,
    faults: Faults,
    results: Sequence[int],
    asked: Iterable[Asked],
    write: Callable[[Sequence[Asked]], Document],
) -> Document:
    """Return the document that `write` makes of those of `asked` that have not failed, with the
    problems of the others as their results.

    `results` are the indices in the answer to which each of `asked` belongs.
    """
    failed = faults.failed
    pairs = zip(results, asked, strict=True)
    document = write([each for result, each in pairs if result not in failed])
    if not failed:
        return document
    record_of(request).problems = len(failed)
    written = iter(document["results"])
    merged: list[Any] = [
        write_failure(request, failed[result]) if result in failed else next(written)
        for result in range(len(document["results"]) + len(failed))
    ]
    return {**document, "results": merged}


def write_failure(request: Request, error: HeedError) -> orjson.Fragment:
    """Return a FailedResult of service.api.answering.responses."""
    problem = write_problem(error, request.url.path, request.state.request_id)
    return orjson.Fragment(b'{"problem":' + problem + b"}")


async def respond(request: Request, computed: Computed, media_type: str = JSON) -> Response:
    """Send what is computed, in this media type."""
    slow = media_type in SINGLE_SOURCE
    pieces = await write_pieces(request, computed, WRITERS[media_type], slow)
    response = send(request, pieces, media_type)
    response.headers.update(cut_headers(computed.answers))
    return response


def cut_headers(answers: Sequence[Answer]) -> dict[str, str]:
    """Return the header that tells a cut target, for answers whose form has no place for it."""
    return {FINISH_REASON: "length"} if any(map(is_cut, answers)) else {}


def is_cut(answer: Answer) -> bool:
    """Return whether max_new_tokens has ended a target."""
    return any(each.finish_reason == "length" for each in answer.hypotheses)


async def write_pieces(
    request: Request,
    computed: Computed,
    to_pieces: Callable[[Document], Pieces],
    slow: bool = False,
) -> Pieces:
    """Return the bytes that `to_pieces` makes of what is computed: in a thread if that is large, or
    if `to_pieces` is `slow`."""
    started = time.monotonic()

    def work() -> Pieces:
        return to_pieces(computed.write())

    size = computed.size + sum(answer.size for answer in computed.answers)
    slow = slow or size > LARGE_ANSWER
    pieces = await (compute_limited(request, work) if slow else compute(work, size))
    record_of(request).end_stage("serialize", started)
    return pieces
