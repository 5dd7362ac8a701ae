"""The forms in which attention is sent: one document, as JSON, arrays, pictures or a page.

A document is as in responses.AttentionAnswer, `data` being arrays. A form is made of pieces, so
that none of them holds the interpreter lock for long while streams wait for it.
"""

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import orjson

from service.formats.heatmaps import draw_blocks
from service.formats.picture import to_png, to_svg
from service.runtime.cache import FloatArray

Document = dict[str, Any]
Pieces = list[bytes | memoryview]

MODULES = ("labels.js", "bipartite.js", "heatmap.js")
MODULE_LINES = re.compile(r"^import .*$|^export (?=\w)", re.MULTILINE)
JSON = "application/json"
WEB = Path(__file__).parents[1] / "web"
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


def arrays_of(document: Document) -> tuple[dict[str, FloatArray], bytes]:
    """By `{result}.{hypothesis}.{kind}`; and the rest of the document, as JSON."""
    arrays = {
        f"{i}.0.{block['kind']}": block["data"]
        for i, result in enumerate(document["results"])
        for block in result["attention"]
    }
    results = [
        {**result, "attention": [without_data(block) for block in result["attention"]]}
        for result in document["results"]
    ]
    return arrays, to_json({**document, "results": results})


def without_data(block: Document) -> Document:
    return {name: value for name, value in block.items() if name != "data"}


def to_npz(document: Document) -> Pieces:
    """As numpy.load reads it, without pickle; `meta` is an array of one text."""
    arrays, meta = arrays_of(document)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, meta=np.array(meta.decode()), **arrays)
    return in_pieces(file.getbuffer())


def to_safetensors(document: Document) -> Pieces:
    """The length of a header, the header, the arrays as they lie in memory; `meta` is among the
    header's metadata (https://huggingface.co/docs/safetensors)."""
    arrays, meta = arrays_of(document)
    header: dict[str, Any] = {"__metadata__": {"meta": meta.decode()}}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pieces: Pieces = [len(text).to_bytes(8, "little") + text]
    for array in arrays.values():
        pieces += in_pieces(array.reshape(-1).data.cast("B")) if array.size else []
    return pieces


def in_pieces(content: memoryview) -> Pieces:
    return [content[start : start + PIECE] for start in range(0, len(content), PIECE)]


def drawn(document: Document) -> Any:
    result = document["results"][0]
    return draw_blocks(result["attention"], result["source"], result["target"])


def to_page(document: Document) -> Pieces:
    """One file that needs no other: the modules of the page, less their imports of each other, and
    the document, in which nothing may end a script."""
    modules = [(WEB / name).read_text(encoding="utf-8") for name in MODULES]
    script = MODULE_LINES.sub("", "\n".join(modules))
    style = (WEB / "style.css").read_text(encoding="utf-8")
    page = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    before, after = page.substitute(style=style, script=script, document=HOLE.decode()).split("\0")
    written = [bytes(piece).replace(b"<", b"\\u003c") for piece in to_json_pieces(document)]
    return [before.encode(), *written, after.encode()]


FORMS: dict[str, Callable[[Document], Pieces]] = {
    JSON: to_json_pieces,
    "application/npz": to_npz,
    "application/safetensors": to_safetensors,
    "text/html": to_page,
    "image/svg+xml": lambda document: [to_svg(drawn(document))],
    "image/png": lambda document: [to_png(drawn(document))],
}
FILES = {"application/npz": "attention.npz", "application/safetensors": "attention.safetensors"}
OF_ONE = {"image/svg+xml", "image/png"}  # source
