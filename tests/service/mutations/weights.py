"""Damaged safetensors files."""

import json
import struct
from functools import partial

import numpy as np

from tests.service.mutations.edit import WEIGHTS, cut, put, write


def header_of(folder):
    content = (folder / WEIGHTS).read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:end]), content[end:]


def edit_header(change, folder):
    """Change the header, keeping its length, since the graphs read at offsets in the file."""
    content = (folder / WEIGHTS).read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    del header["decoder.layers.1.self_sublayer.norm.weight"]  # makes room; the graphs read no names
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode().ljust(end - 8)
    write(WEIGHTS, content[:8] + text[: end - 8] + content[end:], folder)


def set_number(tensor, value, folder):
    header, _ = header_of(folder)
    content = bytearray((folder / WEIGHTS).read_bytes())
    start = 8 + struct.unpack("<Q", content[:8])[0] + header[tensor]["data_offsets"][0]
    content[start : start + 4] = struct.pack("<f", value)
    write(WEIGHTS, bytes(content), folder)


def scale_weights(factor, folder):
    content = (folder / WEIGHTS).read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    numbers = np.frombuffer(content[end:], "<f4") * np.float32(factor)
    write(WEIGHTS, content[:end] + numbers.tobytes(), folder)


TABLE, LAST = "encoder.embedding.tokens.weight", "generator.weight"
WEIGHT_FILES = {
    "weights empty": partial(write, WEIGHTS, b""),
    "weights of 8 bytes": partial(write, WEIGHTS, bytes(8)),
    "weights cut": partial(cut, WEIGHTS, 0.6),
    "header of 2^63 bytes": partial(write, WEIGHTS, struct.pack("<Q", 1 << 63) + bytes(99)),
    "header too long": partial(write, WEIGHTS, struct.pack("<Q", 200) + bytes(99)),
    "header no JSON": partial(write, WEIGHTS, struct.pack("<Q", 9) + b"{" * 99),
    "header deep": partial(write, WEIGHTS, struct.pack("<Q", 99_999) + b"[" * 100_020),
    "header a list": partial(write, WEIGHTS, struct.pack("<Q", 2) + b"[]" + bytes(9)),
    "tensor outside": partial(edit_header, put(LAST, "data_offsets", [10**9, 10**9 + 1820])),
    "tensor negative": partial(edit_header, put(LAST, "data_offsets", [-4, 4])),
    "tensor backwards": partial(edit_header, put(LAST, "data_offsets", [9, 4])),
    "tensor of 10^12": partial(edit_header, put(LAST, "shape", [10**12])),
    "metadata": partial(edit_header, lambda header: header.update(__metadata__={"a": "b"})),
    **{
        f"{value} in {tensor}": partial(set_number, tensor, value)
        for value in (float("nan"), float("inf"), float("-inf"))
        for tensor in (TABLE, LAST, "decoder.embedding.tokens.weight")
    },
    "weights x 1.05": partial(scale_weights, 1.05),
    "weights x 1e30": partial(scale_weights, 1e30),
}
