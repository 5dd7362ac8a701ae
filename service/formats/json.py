"""The forms in which attention is sent: one document, as JSON, arrays, pictures or a page.

A document is as in responses.AttentionAnswer, `data` being arrays. A form is made of pieces, so
that none of them holds the interpreter lock for long while streams wait for it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson

from service.arrays import FloatArray

Document = dict[str, Any]
Pieces = list[bytes | memoryview]

JSON = "application/json"
SMALL = 1 << 10  # numbers that are written with what is around them
LARGE = 1 << 16  # numbers in a piece of JSON: two milliseconds of work
PIECE = 1 << 20  # bytes
HOLE = b"\0"  # where an array belongs: orjson itself never writes this byte


def to_json(content: Document) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def to_json_pieces(content: Document) -> Pieces:
    large: list[FloatArray] = []

    def write(value: Any) -> orjson.Fragment:
        if isinstance(value, np.ndarray) and value.size > SMALL:
            large.append(value)
            return orjson.Fragment(HOLE)
        return orjson.Fragment(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))

    first, *rest = orjson.dumps(content, write).split(HOLE)
    pieces, some, size = list[bytes | memoryview](), [first], 0
    for array, text in zip(large, rest, strict=True):
        for part in (*array_pieces(array), text):
            some.append(part)
            size += len(part)
            if size > PIECE:
                pieces.append(b"".join(some))
                some, size = [], 0
    return [*pieces, b"".join(some)]


def array_pieces(array: FloatArray) -> Iterator[bytes]:
    step = LARGE // max(1, array[0].size)
    for start in range(0, len(array), step or 1):
        yield b"," if start else b"["
        if step:
            some = orjson.dumps(array[start : start + step], option=orjson.OPT_SERIALIZE_NUMPY)
            yield some[1:-1]
        else:
            yield from array_pieces(array[start])
    yield b"]"
