"""Read the binary files of Marian, version 1, as Firefox has them: fp32, and 8 bits for intgemm.

Numbers of items, lengths of names, types and axes come first, then names, shapes and data. All of
them are compared with the size of the file before they are used.
"""

import math
import struct
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from model.importers.files.container import (
    AGAIN,
    LONGEST_OPTIONS,
    MOST_AXES,
    OPTIONS,
    Container,
    check_shape,
    shown,
)
from model.importers.files.reading import StoredTensor, read
from model.network.config import InputError

VERSION = 1
BYTES, FP32, INT8 = 0x101, 0x404, 0x4101
OTHER_TYPES = {0x402: "float16", 0x4102: "intgemm16", 0x802: "packed16", 0x1801: "packed8avx2"}
LONGEST_NAME = 1 << 10
ALIGNED = 256  # bytes of which an item's data is a multiple
EMBEDDING = "Wemb"  # in the names of matrices that are not stored transposed
STATIC = "_QuantMultA"  # ends the names of scales of activations, which Heed measures itself


class Header(NamedTuple):
    name_length: int
    type: int
    axes: int
    length: int


HEADER = struct.Struct("<4Q")


@dataclass(slots=True)
class Cursor:
    """The place in a file up to which it was read."""

    path: Path
    content: bytes
    place: int = 0

    def take(self, size: int) -> memoryview:
        """Return the next bytes. Raise InputError if the file ends before."""
        if size > len(self.content) - self.place:
            raise InputError(
                f"{self.path} ends after {len(self.content)} bytes, in the middle of what it says"
                f" that it holds: {AGAIN}"
            )
        self.place += size
        return memoryview(self.content)[self.place - size : self.place]

    def number(self) -> int:
        return int.from_bytes(self.take(8), "little")


def is_binary(head: bytes) -> bool:
    """Return whether a file begins as these do: with the version."""
    return head[:8] == VERSION.to_bytes(8, "little")


def open_binary(path: Path) -> Container:
    """Raise InputError if the file is damaged, or of another version, or of other number types."""
    cursor = Cursor(path, read(path))
    if (version := cursor.number()) != VERSION:
        raise InputError(
            f"{path} is not a binary file of Marian in version {VERSION}: it begins with {version};"
            " give the model.npz that it was made from"
        )
    count = cursor.number()
    heads = cursor.take(count * HEADER.size)  # no more items than the file has room for
    headers = [Header(*each) for each in HEADER.iter_unpack(heads)]
    names = [name_of(cursor, header) for header in headers]
    shapes = [shape_of(cursor, *each) for each in zip(headers, names, strict=True)]
    cursor.take(cursor.number())  # up to a multiple of 256
    tensors: dict[str, StoredTensor] = {}
    options: bytes | None = None
    for header, name, shape in zip(headers, names, shapes, strict=True):
        if name in tensors:
            raise InputError(f"{path} holds {shown(name)} twice: {AGAIN}")
        data = cursor.take(header.length)
        check_item(path, header, name, shape)
        if name == OPTIONS:
            options = bytes(data[: shape[0]])
        elif not name.endswith(STATIC):
            tensors[name] = open_item(path, header.type, name, shape, data)
    if options is None:
        raise InputError(f"{path} lacks {OPTIONS}, which says what the model is: {AGAIN}")
    return Container(path, options, tensors)


def name_of(cursor: Cursor, header: Header) -> str:
    if not 1 < header.name_length <= LONGEST_NAME:
        raise InputError(
            f"{cursor.path} has a name of {header.name_length} bytes; expected 2 to {LONGEST_NAME}:"
            f" {AGAIN}"
        )
    name = bytes(cursor.take(header.name_length))
    if not name.endswith(b"\0") or not name[:-1].isascii():
        raise InputError(f"{cursor.path} has a name that is not one, {name[:40]!r}: {AGAIN}")
    return name[:-1].decode()


def shape_of(cursor: Cursor, header: Header, name: str) -> tuple[int, ...]:
    if header.axes > MOST_AXES:
        raise InputError(
            f"{cursor.path}: {shown(name)} has {header.axes} axes; expected at most {MOST_AXES}:"
            f" {AGAIN}"
        )
    shape = struct.unpack(f"<{header.axes}i", cursor.take(4 * header.axes))
    check_shape(cursor.path, name, shape)
    return shape


def check_item(path: Path, header: Header, name: str, shape: tuple[int, ...]) -> None:
    """Raise InputError if the type is not one that is read, or the shape needs another length."""
    is_text = name == OPTIONS
    scale = name.endswith(STATIC)
    known = (BYTES,) if is_text else (FP32, INT8)
    if header.type not in known:
        found = OTHER_TYPES.get(header.type, f"{header.type:#x}")
        raise InputError(
            f"{path}: {shown(name)} has numbers of type {found}: Heed reads float32 and intgemm8;"
            " give the model.npz that it was made from"
        )
    sizes = {BYTES: 1, FP32: 4, INT8: 1}
    needed = prod(shape) * sizes[header.type] + (4 if header.type == INT8 else 0)
    if is_text and needed > LONGEST_OPTIONS:
        raise InputError(f"{path}: {OPTIONS} has {needed} bytes: {AGAIN}")
    if not scale and not needed <= header.length < needed + ALIGNED:
        raise InputError(
            f"{path}: {shown(name)} has {header.length} bytes, which are not those of an array"
            f" {shape}: {AGAIN}"
        )


def open_item(
    path: Path, kind: int, name: str, shape: tuple[int, ...], data: memoryview
) -> StoredTensor:
    count = prod(shape)
    if kind == FP32:
        return StoredTensor(shape, partial(read_fp32, data[: 4 * count], shape))
    (scale,) = struct.unpack("<f", data[count : count + 4])
    if not (math.isfinite(scale) and scale > 0):
        raise InputError(f"{path}: {shown(name)} has the scale {scale}; expected more than 0")
    transposed = len(shape) == 2 and EMBEDDING not in name
    return StoredTensor(shape, partial(read_int8, data[:count], shape, scale, transposed))


def read_fp32(data: memoryview, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, "<f4").reshape(shape).copy())


def read_int8(data: memoryview, shape: tuple[int, ...], scale: float, transposed: bool) -> Tensor:
    """Return what the integers stand for: each divided by one scale, in single precision."""
    stored = shape[::-1] if transposed else shape
    units = torch.from_numpy(np.frombuffer(data, np.int8).reshape(stored).copy())
    numbers = units.float() / torch.tensor(scale, dtype=torch.float32)
    return numbers.T if transposed else numbers
