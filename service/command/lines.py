"""Lines of texts."""

import gzip
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import islice
from pathlib import Path

UTF8 = ("utf-8", "surrogateescape", "\n")  # bytes that are not UTF-8 are refused by tokenizers


@contextmanager
def open_lines(file: Path | None = None) -> Generator[Iterator[str]]:
    """Open a file, or standard input, as an iterator over its lines."""
    with (
        TextIOWrapper(sys.stdin.buffer, *UTF8)
        if file is None
        else gzip.open(file, "rt", 9, *UTF8)
        if file.suffix == ".gz"
        else file.open("r", -1, *UTF8)
    ) as stream:
        yield (line.rstrip("\r\n") for line in stream)


def batches_of(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    left = iter(lines)
    while batch := [*islice(left, size)]:
        yield batch
