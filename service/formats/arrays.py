"""Write documents of attention or attribution as NumPy (npz) and safetensors files."""

import io
import json
from typing import Any

import numpy as np

from service.arrays import FloatArray
from service.formats.json import LEAST_PIECE, Document, Piece, field_of_blocks, to_json


def to_npz(document: Document) -> list[Piece]:
    """Write a file that numpy.load reads without pickle; the array `meta` is the rest as JSON."""
    arrays, meta = split_document(document)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, meta=np.array(meta.decode()), **arrays)
    return in_pieces(file.getbuffer())


def to_safetensors(document: Document) -> list[Piece]:
    """Write the length of a header, the header, and the bytes of the arrays one after another.

    `meta`, the rest as JSON, is metadata of the header (https://huggingface.co/docs/safetensors).
    """
    arrays, meta = split_document(document)
    header: dict[str, Any] = {"__metadata__": {"meta": meta.decode()}}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the arrays are aligned
    pieces: list[Piece] = [len(text).to_bytes(8, "little") + text]
    for array in arrays.values():
        pieces += in_pieces(array.reshape(-1).data.cast("B")) if array.size else []
    return pieces


def split_document(document: Document) -> tuple[dict[str, FloatArray], bytes]:
    """Return the arrays of blocks by `{result}.{hypothesis}.{kind}`, and all else as JSON.

    Each result has one hypothesis.
    """
    field = field_of_blocks(document)
    arrays = {
        f"{i}.0.{block['kind']}": block["data"]
        for i, result in enumerate(document["results"])
        for block in result[field]
    }
    results = [
        {**result, field: [without_data(block) for block in result[field]]}
        for result in document["results"]
    ]
    return arrays, to_json({**document, "results": results})


def without_data(block: Document) -> Document:
    return {name: value for name, value in block.items() if name != "data"}


def in_pieces(content: memoryview) -> list[Piece]:
    return [content[start : start + LEAST_PIECE] for start in range(0, len(content), LEAST_PIECE)]
