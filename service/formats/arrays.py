"""Attention documents as NumPy and safetensors files."""

import io
import json
from typing import Any

import numpy as np

from service.arrays import FloatArray
from service.formats.json import PIECE, Document, Pieces, to_json


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
