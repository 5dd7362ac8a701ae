"""Lines of text files and of standard input. It imports little: --help and completion load it."""

import gzip
import sys
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import islice
from pathlib import Path

from service.errors import StartupError

BATCH = 256  # lines that are decoded at once
UTF8 = ("utf-8", "surrogateescape", "\n")  # bytes that are not UTF-8 are refused by tokenizers


@contextmanager
def open_lines(file: Path | None = None) -> Generator[Iterator[str]]:
    """Open a file, or standard input, as an iterator over its lines. It raises StartupError."""
    with (
        TextIOWrapper(sys.stdin.buffer, *UTF8)
        if file is None
        else gzip.open(file, "rt", 9, *UTF8)
        if file.suffix == ".gz"
        else file.open("r", -1, *UTF8)
    ) as stream:
        try:
            yield (line.rstrip("\r\n") for line in stream)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise StartupError(f"{file} is not a whole gzip file: {error}") from error


def batches_of(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    left = iter(lines)
    while batch := [*islice(left, size)]:
        yield batch
