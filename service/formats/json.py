"""Write documents as JSON, in pieces.

The pieces together are byte for byte what `to_json` returns. Each is made when it is asked for:
other threads (those that stream tokens) can take the interpreter's lock in between, and what a
client has not read yet need not be in memory. Nor need the results that it has read: a large
document is used up.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

# As in service.api.answering.responses, with NumPy arrays for lists of numbers.
Document = dict[str, Any]
Piece = bytes | memoryview
Pieces = Iterable[Piece]

JSON = "application/json"
CONTAINERS = (dict, list, np.ndarray)
NUMBERS = 1 << 16  # most numbers in one call of orjson: two milliseconds of work
LEAST_PIECE = 1 << 20  # bytes; smaller parts are concatenated until they reach it


def field_of_blocks(document: Document) -> str:
    """Return the field of each result that has its blocks of attention or attribution."""
    return next(name for name in ("attention", "attribution") if name in document["results"][0])


def to_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def to_json_pieces(document: Document) -> Iterator[bytes]:
    return concatenate(write(document, frees=True))


def to_json_line(document: Document) -> Iterator[bytes]:
    """Yield the JSON with a line break, as terminals like it."""
    return concatenate(chain(write(document, frees=True), [b"\n"]))


def concatenate(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in fewer parts: each but the last has at least LEAST_PIECE bytes."""
    collected: list[bytes] = []
    size = 0
    for part in parts:
        collected.append(part)
        size += len(part)
        if size >= LEAST_PIECE:
            yield b"".join(collected)
            collected, size = [], 0
    yield b"".join(collected)


def write(value: Any, frees: bool = False) -> Iterator[bytes]:
    """Yield the JSON of `value` in parts of at most NUMBERS numbers. If it `frees`, the items of a
    large list, or of a large document's `results`, are let go of as they are written."""
    size = size_of(value)
    if size <= NUMBERS:
        yield to_json(value)
    elif isinstance(value, dict):
        for i, (name, item) in enumerate(value.items()):
            yield (b"," if i else b"{") + to_json(name) + b":"
            yield from write(item, frees and name == "results")
        yield b"}"
    else:
        yield b"["
        yield from write_items(value, size, frees)
        yield b"]"


def write_items(items: list[Any] | NDArray[Any], size: int, frees: bool) -> Iterator[bytes]:
    """Yield the JSON of the items, with commas between them. Together they hold `size` numbers."""
    step = max(1, len(items) * NUMBERS // size)  # items that hold NUMBERS, if all are alike
    for start in range(0, len(items), step):
        group = items[start : start + step]
        if frees and isinstance(items, list):
            items[start : start + step] = [None] * len(group)
        if start:
            yield b","
        if (group_size := size_of(group)) <= NUMBERS:
            yield to_json(group)[1:-1]
        elif len(group) > 1:
            yield from write_items(group, group_size, frees)
        else:
            yield from write(group[0])


def size_of(value: Any) -> int:
    """Return how many numbers and texts `value` holds.

    The count is exact for arrays. In a list without arrays, all items are assumed to be as large
    as the first that is not JSON already: visiting every item would take about as long as writing
    it.
    """
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, dict):
        return sum([size_of(item) for item in value.values()])
    if not isinstance(value, list):
        return 1
    first = first_written(value)
    if not isinstance(first, CONTAINERS):
        return len(value)
    if holds_array(first):
        return sum([size_of(item) for item in value])
    return len(value) * size_of(first)


def first_written(items: list[Any]) -> Any:
    """Return the first item that is not JSON already."""
    return next((item for item in items if not isinstance(item, orjson.Fragment)), None)


def numbers_in_arrays(value: Any) -> int:
    """Return how many numbers the arrays in `value` hold."""
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, dict):
        return sum(map(numbers_in_arrays, value.values()))
    if not isinstance(value, list) or not isinstance(first_written(value), CONTAINERS):
        return 0
    return sum(map(numbers_in_arrays, value))


def holds_array(value: Any) -> bool:
    """Return whether an array is in `value`, judged by the first item of every list."""
    if isinstance(value, dict):
        return any(map(holds_array, value.values()))
    if isinstance(value, list):
        return bool(value) and holds_array(value[0])
    return isinstance(value, np.ndarray)
