"""Write what was computed as the response of an endpoint."""

import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import orjson
from anyio import CapacityLimiter, to_thread
from starlette.responses import Response, StreamingResponse

from service.api.reading.answer_size import held_nbytes
from service.api.reading.call import Call
from service.api.reading.faults import Faults
from service.errors import HeedError
from service.formats.html import export_policy
from service.formats.json import JSON, LEAST_PIECE, Document, Piece, Pieces, numbers_in_arrays
from service.formats.writers import FILE_NAMES, SINGLE_SOURCE, WRITERS
from service.http.messages.problems import write_problem
from service.http.messages.security import CSP
from service.http.middleware.answers import negotiate
from service.wire import Answer

# Numbers in an answer. Several answers of this size, written at once, would keep the interpreter's
# lock from the event loop, and their JSON takes three times the memory of the numbers.
LARGE_ANSWER = 1 << 20
BYTES_AT_ONCE = 1 << 16  # bytes of an answer that need not wait for its client to read
FINISH_REASON = "X-Finish-Reason"

Asked = TypeVar("Asked")


class Later(NamedTuple):
    """A large answer, whose pieces are made one after the other as its client reads, and the bytes
    that it takes until then."""

    pieces: Generator[Piece]
    nbytes: int


Written = list[Piece] | Later


class Computed(NamedTuple):
    """The results of a request: `write` makes the document of its endpoint.

    `size` counts the document's numbers and texts that are not in `answers`.
    """

    write: Callable[[], Document]
    answers: Sequence[Answer] = ()
    size: int = 0


def write_partial(
    call: Call,
    faults: Faults,
    results: Sequence[int],
    asked: Iterable[Asked],
    write: Callable[[Sequence[Asked]], Document],
) -> Document:
    """Return the document that `write` makes of the items of `asked` that have not failed. Each
    other item has a problem as its result.

    `results` has the index in the answer of each item.
    """
    failed = faults.failed
    pairs = zip(results, asked, strict=True)
    document = write([each for result, each in pairs if result not in failed])
    if not failed:
        return document
    call.record.problems = len(failed)
    written = iter(document["results"])
    merged: list[Any] = [
        write_failure(call, failed[result]) if result in failed else next(written)
        for result in range(len(document["results"]) + len(failed))
    ]
    return {**document, "results": merged}


def write_failure(call: Call, error: HeedError) -> orjson.Fragment:
    """Return a FailedResult of service.api.answering.responses."""
    problem = write_problem(error, call.url.path, call.request_id)
    return orjson.Fragment(b'{"problem":' + problem + b"}")


async def respond(
    call: Call,
    computed: Computed,
    media_type: str = JSON,
    to_pieces: Callable[[Document], Pieces] | None = None,
) -> Response:
    """Send what is computed, in this media type; `to_pieces` writes the form of a protocol."""
    slow = media_type in SINGLE_SOURCE
    written = await write_pieces(call, computed, to_pieces or WRITERS[media_type], slow)
    response = send(call, written, media_type)
    if any(map(is_cut, computed.answers)):  # some forms of answers have no field for it
        response.headers[FINISH_REASON] = "length"
    return response


def is_cut(answer: Answer) -> bool:
    """Return whether max_new_tokens has ended a target."""
    return any(each.finish_reason == "length" for each in answer.hypotheses)


def negotiate_format(
    call: Call, sources: int, partial: bool, formats: Iterable[str] = WRITERS
) -> str:
    """Return the media type of the answer. Only JSON can hold problems, and pictures one source."""
    if partial:
        return negotiate(call, [JSON], "with partial the answer is")
    single = sources == 1
    offered = [each for each in formats if single or each not in SINGLE_SOURCE]
    what = "the answer is" if single else "answers for several sources are"
    return negotiate(call, offered, what)


async def write_pieces(
    call: Call, computed: Computed, to_pieces: Callable[[Document], Pieces], slow: bool
) -> Written:
    """Return the bytes that `to_pieces` makes of what is computed: in a thread if that is large, or
    if `to_pieces` is `slow`.

    If a large answer comes from a generator, it is made later, unless its client speaks HTTP/1.0,
    which needs to know the length.
    """
    started = time.monotonic()
    size = computed.size + sum(answer.size for answer in computed.answers)
    large = size > LARGE_ANSWER

    def work() -> Written:
        document = computed.write()
        pieces = to_pieces(document)
        if isinstance(pieces, Generator) and large and call.scope["http_version"] != "1.0":
            arrays = 4 * numbers_in_arrays(document)  # float32
            others = max(0, size - arrays // 4)
            return Later(pieces, held_nbytes(4 * others) + arrays + 2 * LEAST_PIECE)
        return [*pieces]

    written = await (call.compute_limited(work) if slow or large else call.compute(work, size))
    call.end_stage("serialize", started)
    return written


def send(call: Call, written: Written, media_type: str) -> Response:
    """Return the response of what is written: at once if small, else as fast as the client reads.

    The Server-Timing header reports the time that each stage took. An answer that is made later has
    no Content-Length.
    """
    seconds = call.record.seconds
    stages = (f"{stage};dur={1000 * value:.3f}" for stage, value in seconds.items())
    headers = {"Server-Timing": ", ".join(stages), "Vary": "Accept"}
    if media_type in FILE_NAMES:
        headers["Content-Disposition"] = f'attachment; filename="{FILE_NAMES[media_type]}"'
    if media_type == "text/html":
        headers[CSP] = f"{export_policy()}; frame-ancestors 'none'"
    if isinstance(written, Later):
        call.correct(written.nbytes)
        # Else a cancelled task would keep it for a while
        call.at_end(partial(close, written.pieces))
        pieces = make_each(written.pieces, call.service.cores)
        return StreamingResponse(pieces, media_type=media_type, headers=headers)
    total = sum(map(len, written))
    call.correct(total)
    if total <= BYTES_AT_ONCE:
        return Response(b"".join(written), media_type=media_type, headers=headers)
    headers["Content-Length"] = str(total)
    return StreamingResponse(yield_each(written), media_type=media_type, headers=headers)


async def make_each(pieces: Generator[Piece], limiter: CapacityLimiter) -> AsyncGenerator[Piece]:
    """Yield the pieces. Each is made in a thread, when the client has read those before."""
    while (piece := await to_thread.run_sync(next, pieces, None, limiter=limiter)) is not None:
        yield piece


def close(pieces: Generator[Piece]) -> None:
    """Close a generator, unless a thread makes its next piece: where a server that closes has
    cancelled the request, the thread still runs, and holds the generator until it ends."""
    with suppress(ValueError):
        pieces.close()


async def yield_each(pieces: Iterable[Piece]) -> AsyncGenerator[Piece]:
    """Yield the pieces on the event loop: Starlette would read a plain iterator in a thread."""
    for piece in pieces:
        yield piece
