"""Read a .npz that Marian wrote: a zip archive of arrays, in the format of NumPy.

Sizes are compared with each other and with the file before anything is unpacked: an archive may say
that it holds more than there is memory.
"""

import tokenize
import zipfile
import zlib
from functools import partial
from math import prod
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from model.importers.files.container import (
    AGAIN,
    LONGEST_OPTIONS,
    OPTIONS,
    Container,
    check_shape,
    shown,
)
from model.importers.files.reading import FREE, MOST_UNPACKED, StoredTensor, check_pointer
from model.network.config import InputError

MOST_ITEMS = 1 << 16
LONGEST_HEADER = 1024
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
Layout = tuple[int, "np.dtype[np.generic]", tuple[int, ...]]  # start, type and axes of numbers
DAMAGED = (
    EOFError,
    NotImplementedError,  # of a compression or an encryption that Python lacks
    OSError,
    RuntimeError,  # of an encrypted member
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)
# Of a header, which NumPy reads as Python
NOT_A_HEADER = (IndexError, SyntaxError, TypeError, tokenize.TokenError)


def open_npz(path: Path) -> Container:
    """Raise InputError if the file is damaged, or is not Marian's."""
    check_pointer(path)
    try:
        archive = ZipFile(path)
        infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        check_sizes(path, archive.infolist())
        if OPTIONS not in infos:
            raise InputError(
                f"{path} has weights in NumPy's format without {OPTIONS}, so Marian did not write"
                " it: save its tensors as model.safetensors, and describe it in heed.toml"
                " (docs/checkpoints.md)"
            )
        items = {name: open_item(path, archive, name, info) for name, info in infos.items()}
        options = items.pop(OPTIONS)
        if options.shape[0] > LONGEST_OPTIONS:
            raise InputError(f"{path}: {OPTIONS} has {options.shape[0]} bytes: {AGAIN}")
        return Container(path, options.read().numpy().tobytes(), items)
    except DAMAGED as error:
        raise damaged(path, error) from error


def check_sizes(path: Path, infos: list[ZipInfo]) -> None:
    """Raise InputError if the archive holds more, or more often the same, than it can, or is not
    packed as models are: LZMA may ask for 4 GB to unpack a byte."""
    unpacked, size = sum(info.file_size for info in infos), path.stat().st_size
    if len(infos) > MOST_ITEMS or unpacked > MOST_UNPACKED * size + FREE:
        raise InputError(
            f"{path} says that {len(infos)} items of {unpacked} bytes lie in its {size} bytes,"
            f" which no model does: {AGAIN}"
        )
    if odd := [info.filename for info in infos if info.compress_type not in PACKINGS]:
        raise InputError(
            f"{path} packs {shown(odd[0])} by another method than deflate: unpack it, and pack it"
            " again with zip"
        )
    names = [info.filename for info in infos]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path} holds {shown(twice)} twice: {AGAIN}")


def open_item(path: Path, archive: ZipFile, name: str, info: ZipInfo) -> StoredTensor:
    """Read the header of an array. Only the version that NumPy and Marian write for short headers
    is read: others may have a header of 4 GB."""
    with archive.open(info) as file:
        if npy.read_magic(file) != (1, 0):
            raise InputError(f"{path}: {shown(name)} is not an array of NumPy 1.0: {AGAIN}")
        try:
            shape, in_columns, dtype = npy.read_array_header_1_0(file, LONGEST_HEADER)
        except NOT_A_HEADER as error:
            raise damaged(path, error) from error
        start = file.tell()
    check_shape(path, name, shape)
    kinds = ("<f4", "<f2") if name != OPTIONS else ("|i1", "|u1", "|S1")
    if dtype.str not in kinds:
        expected = "float32 or float16" if name != OPTIONS else "bytes"
        raise InputError(f"{path}: {shown(name)} has numbers of type {dtype}; expected {expected}")
    if start + prod(shape) * dtype.itemsize != info.file_size:
        raise InputError(
            f"{path}: {shown(name)} has {info.file_size} bytes, which are not those of an array"
            f" {shape}: {AGAIN}"
        )
    numbers = np.dtype("|i1") if name == OPTIONS else dtype
    stored = shape[::-1] if in_columns else shape  # of the numbers as they lie in the file
    layout = start, numbers, stored
    return StoredTensor(shape, partial(read_item, path, archive, info, layout, in_columns))


def read_item(
    path: Path, archive: ZipFile, info: ZipInfo, layout: Layout, in_columns: bool
) -> Tensor:
    start, dtype, shape = layout
    try:
        with archive.open(info) as file:
            content = file.read()  # at most what the archive says, which was checked
    except DAMAGED as error:
        raise damaged(path, error) from error
    array = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return torch.from_numpy((array.T if in_columns else array).copy())


def damaged(path: Path, error: Exception) -> InputError:
    said = " ".join(str(error).split())[:100]
    return InputError(f"{path} is damaged or cut short ({said}): {AGAIN}")
