"""Lines of standard input."""

import sys
from collections.abc import Iterator
from io import TextIOWrapper


def read_lines() -> Iterator[str]:
    """Yield the lines of standard input. Bytes that are not UTF-8 become what tokenizers refuse."""
    stream = TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="surrogateescape")
    return (line.rstrip("\r\n") for line in stream)
