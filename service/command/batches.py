"""Decode batches of texts by the functions behind POST /v1/decode, and keep their order."""

import asyncio
import gzip
import sys
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

from service.api.endpoints.decode import DecodeRequest, prepare
from service.api.reading.call import Service
from service.api.reading.json_route import validate
from service.command.errors import place_among, report
from service.command.local import make_call
from service.errors import HeedError, StartupError
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
        dict(sorted((order[place], place_among(each, places)) for place, each in failed.items())),
    )


UTF8 = ("utf-8", "surrogateescape", "\n")  # bytes that are not UTF-8 are refused by tokenizers


@contextmanager
def open_lines(file: Path | None = None) -> Generator[Iterator[str]]:
    """Open a file, or standard input, as an iterator over its lines."""
    with (
        TextIOWrapper(sys.stdin.buffer, *UTF8)
        if file is None
        else gzip.open(file, "rt", 9, *UTF8)
        if file.suffix.lower() == ".gz"
        else file.open("r", -1, *UTF8)
    ) as stream:
        if file is None and stream.isatty():
            report("reading lines from the terminal; Ctrl-D ends them")
        yield read_lines(stream, file)


def read_lines(stream: Iterable[str], file: Path | None) -> Iterator[str]:
    try:
        for line in stream:
            yield line.rstrip("\r\n")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise StartupError(f"{file} is not a whole gzip file: {error}") from error


def batches_of(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    left = iter(lines)
    while batch := [*islice(left, size)]:
        yield batch
