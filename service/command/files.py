"""Decode files of texts: lines, tab-separated values or JSON Lines, with gzip or without.

What is decoded is written at once to a file with the end .part. The same command goes on after its
last whole line, so that a killed command has lost nothing that it wrote.
"""

import fcntl
import gzip
import hashlib
import json
import os
import shutil
import sys
import time
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import click

from service.command.asking import AnyModel, Decoded, decode_in_order, open_model, tell
from service.command.errors import count_lines, describe, report
from service.command.flags import ModelPlace, real_file
from service.errors import StartupError
from service.formats.json import Document, to_json
from service.memory import collect_rarely

COMPARED = 256  # lines of standard input that tell whether it is the same
TOGETHER = 3  # batches in the engine
REPORT_EVERY = 10.0  # seconds, where standard error is not a terminal
ANSWER = ("source", "hypotheses", "source_tokens", "sentences", "error")  # fields of our lines
ONE_LINE = str.maketrans("\t\n\r", "   ")
UTF8 = ("utf-8-sig", "surrogateescape", "\n")  # bytes that are not UTF-8 are refused by tokenizers


def format_of(file: Path) -> str:
    """Return the end of a file's name that says what its lines are."""
    *_, before, last = ["", "", *(suffix.lower() for suffix in file.suffixes)]
    return before if last == ".gz" else last


def standard_input() -> TextIO:
    """Return standard input. Raise StartupError if it is closed."""
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise StartupError("standard input is closed: give texts, or redirect it from a file by <")
    return sys.stdin


@contextmanager
def open_lines(file: Path | None = None, *, keep_ends: bool = False) -> Generator[Iterator[str]]:
    """Open a file, or standard input, as an iterator over its lines, without their ends unless
    `keep_ends`. It raises StartupError."""
    with (
        TextIOWrapper(standard_input().buffer, *UTF8)
        if file is None
        else gzip.open(file, "rt", 9, *UTF8)
        if file.suffix.lower() == ".gz"
        else file.open("r", -1, *UTF8)
    ) as stream:
        if file is None and stream.isatty():
            report("reading lines from the terminal; Ctrl-D ends them")
        lines = read_lines(stream, file)
        yield lines if keep_ends else (line.rstrip("\r\n") for line in lines)


def read_lines(stream: Iterable[str], file: Path | None) -> Iterator[str]:
    """Yield the lines of an open file. Raise StartupError where it is not gzip as its name says."""
    try:
        yield from stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise StartupError(f"{file} is not a whole gzip file: {error}") from error


@contextmanager
def open_texts(file: Path | None) -> Generator[Iterator[str]]:
    """Open a file, or standard input, as an iterator over the texts of its lines: the first column
    of .tsv, the source of .jsonl, else the line. It raises StartupError."""
    kind = format_of(file) if file else ""
    count_lines()
    with open_lines(file) as lines:
        if kind == ".tsv":
            yield (line.partition("\t")[0] for line in lines)
        elif kind == ".jsonl":
            yield (read_json_line(line, f"{file}:{i}") for i, line in enumerate(lines, 1))
        else:
            yield lines


class JsonSource(str):
    """A text, with the other fields of its JSON object, which are written with its target."""

    __slots__ = ("others",)
    others: dict[str, Any]


def read_json_line(line: str, place: str) -> str:
    """Return a JSON text, or the `source` of a JSON object as JsonSource. Raise StartupError."""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    text = value.get("source") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise StartupError(f"{place} is not a JSON text, nor an object with a text as source")
    if isinstance(value, dict):
        text = JsonSource(text)
        text.others = {name: value[name] for name in value if name not in ANSWER}
    return text


def write_json_line(text: str, found: Document) -> bytes:
    """Return a line of .jsonl: fields that were read, the source and what was found. Bytes that are
    not UTF-8 become question marks."""
    line = to_json({"source": text.encode(errors="replace").decode(), **found}) + b"\n"
    if not (isinstance(text, JsonSource) and text.others):
        return line
    # by Python's json: that of `line` has no integers of more than 64 bits
    others = json.dumps(text.others, ensure_ascii=False, separators=(",", ":"))
    return others[:-1].encode(errors="replace") + b"," + line[1:]


def write_lines(kind: str, decoded: Decoded) -> Iterator[bytes]:
    """Yield a line for each text. One that failed has an empty target, or an error in JSON."""
    for place, (text, result) in enumerate(
        zip(decoded.texts, decoded.document["results"], strict=True)
    ):
        error = decoded.errors.get(place)
        if kind == ".jsonl":
            found = {"error": describe(error)} if error else result
            yield write_json_line(text, found)
            continue
        target = "" if error else result["hypotheses"][0]["text"].translate(ONE_LINE)
        line = f"{text.translate(ONE_LINE)}\t{target}" if kind == ".tsv" else target
        yield encode_line(line)


def encode_line(line: str) -> bytes:
    """Return the bytes that were read, also those that are not UTF-8. Half a surrogate pair, which
    only JSON can hold, becomes a question mark."""
    try:
        return f"{line}\n".encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return f"{line}\n".encode(errors="replace")


async def decode_file(
    source: Path | None, output: Path, options: dict[str, Any], place: ModelPlace
) -> int:
    """Open a model and write `output`, as `decode_lines` does."""
    async with open_model(place) as model:
        collect_rarely()
        return await decode_lines(model, source, output, options)


async def decode_lines(
    model: AnyModel, source: Path | None, output: Path, options: dict[str, Any]
) -> int:
    """Write `output`, and return how many texts failed. Raise StartupError and HeedError."""
    kind = format_of(output)
    with open_texts(source) as texts:
        first = [] if source else [*islice(texts, COMPARED)]
        mark = fingerprint(source or first, kind, options, model.version)
        with open_part(output, f".{mark}") as file:
            done = count_whole_lines(file)
            if done:
                report(f"going on after line {done} of {file.name}")
            progress = LineProgress(done)
            failed = 0
            left = islice(chain(first, texts), done, None)
            async for each in decode_in_order(model, left, options, before=done, together=TOGETHER):
                file.writelines(write_lines(kind, each))
                file.flush()
                failed += tell(each)
                progress.add(len(each.texts))
    progress.end(output)
    return failed


def fingerprint(
    source: Path | list[str], kind: str, options: Mapping[str, Any], version: str
) -> str:
    """Return a mark of all that decides about the lines of an output: of a file, or of the first
    lines of standard input. With `partial` they are the same up to the first bad one: a command
    that it ended goes on."""
    if isinstance(source, Path):
        state = source.stat()
        source = [str(source.resolve()), str(state.st_size), str(state.st_mtime_ns)]
    others = {name: value for name, value in options.items() if name != "partial"}
    content = json.dumps([source, kind, others, version], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


@contextmanager
def open_part(output: Path, mark: str = "") -> Generator[BinaryIO]:
    """Open the file of what is done so far, to read and append, and move it to its place at the
    end. Raise StartupError if another process writes it."""
    real = real_file(output)
    part = real.with_name(f"{real.name}{mark}.part")
    with part.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.path.samestat(os.fstat(file.fileno()), part.stat())
        except (BlockingIOError, FileNotFoundError):
            ours = False
        if not ours:  # or it was moved to its place just now
            raise StartupError(
                f"another heed writes {output}: wait for it, or choose another --output"
            )
        yield file
        file.flush()
        finish(part, real, packed=output.suffix.lower() == ".gz")


def count_whole_lines(file: BinaryIO) -> int:
    """Return how many lines of the file end, and cut off what follows them."""
    lines = end = size = 0
    file.seek(0)
    while piece := file.read(1 << 20):
        if b"\n" in piece:
            lines += piece.count(b"\n")
            end = size + piece.rindex(b"\n") + 1
        size += len(piece)
    file.truncate(end)
    return lines


def finish(part: Path, output: Path, *, packed: bool) -> None:
    """Move the whole file to its place, compressed if it is to be packed."""
    if packed:
        plain, part = part, part.with_suffix(".gz")
        with plain.open("rb") as read, gzip.open(part, "wb") as file:
            shutil.copyfileobj(read, file)
        plain.unlink()
    os.replace(part, output)


class LineProgress:
    """Writes to standard error how many lines are decoded, and how many a second."""

    def __init__(self, before: int) -> None:
        self._before, self._lines = before, 0
        self._began = self._reported = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def add(self, lines: int) -> None:
        self._lines += lines
        now = time.monotonic()
        if self._terminal:
            click.echo(f"\r{self._text}", nl=False, err=True)
        elif now - self._reported > REPORT_EVERY:
            self._reported = now
            report(self._text)

    def end(self, output: Path) -> None:
        if self._terminal:
            click.echo("\r", nl=False, err=True)
        report(f"{output}: {self._text}")

    @property
    def _text(self) -> str:
        rate = self._lines / max(time.monotonic() - self._began, 1e-3)
        return f"{self._before + self._lines} lines, {rate:.0f} a second"
