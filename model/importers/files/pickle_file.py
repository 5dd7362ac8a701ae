"""Read the tensors of a file that torch.save wrote, without running any code of it."""

import pickle
import pickletools
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, cast
from zipfile import ZipFile, is_zipfile

import torch
from torch import Tensor

from model.checkpoint import DAMAGED
from model.importers.files.foreign import describe_entries
from model.importers.files.reading import StoredTensor, head_of
from model.network.config import InputError

OBJECT = re.compile(r"GLOBAL (\S+) (was not an allowed|whose module)")  # how torch names it
LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)  # begins a file of torch before 1.6
PICKLE = b"\x80"
TAKE = "save the weights alone with torch.save(model.state_dict(), path)"
LARGEST = 1 << 26  # bytes of a pickle without its tensors that are searched for names of entries


def open_pickle(path: Path, entry: str = "") -> dict[str, StoredTensor]:
    """Return the tensors by their names.

    `entry` is the key of the state dict in the file; "" if the file is the state dict.
    """
    mapped = is_zipfile(path)  # torch 1.6 or later wrote it: only such files can be mapped
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # about the pickle
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except DAMAGED as error:
        raise InputError(f"{path} {describe_damage(path, str(error))}") from error
    held = cast("dict[Any, Any]", content) if isinstance(content, dict) else {}
    tensors = tensors_of(held.get(entry) if entry else held)
    if not tensors:
        raise InputError(f"{path} {describe_content(held, entry)}")
    found: dict[tuple[Any, ...], StoredTensor] = {}
    return {
        name: found.setdefault(
            (tensor.data_ptr() or name, tensor.shape, tensor.stride(), tensor.dtype),
            StoredTensor(tuple(tensor.shape), lambda tensor=tensor: tensor),
        )
        for name, tensor in tensors.items()
    }


def tensors_of(state: Any) -> dict[str, Tensor]:
    held = cast("dict[Any, Any]", state) if isinstance(state, dict) else {}
    return {str(name): value for name, value in held.items() if isinstance(value, Tensor)}


def describe_content(held: dict[Any, Any], entry: str) -> str:
    """Say which entries a file has that has no tensors where they are sought."""
    place = f"under {entry!r}" if entry else "at its top"
    states = [name for name, value in held.items() if tensors_of(value)]
    written = describe_entries([*map(str, held)])
    advice = "save model.state_dict(), or name the entry that holds it as state in heed.toml"
    if len(states) == 1:
        advice = f'write state = "{states[0]}" in heed.toml'
    elif written:
        advice = f"it is {written}"
    return f"has no tensors {place}, but {', '.join(map(str, held)) or 'nothing'}: {advice}"


def describe_damage(path: Path, reason: str) -> str:
    """Say why torch does not load a file."""
    if found := OBJECT.search(reason):
        written = describe_entries({*strings_of(path)})
        advice = f"it is {written}" if written else TAKE
        return (
            f"holds more than tensors, namely {found[1]}, and loading that could run code: {advice}"
        )
    if "TorchScript" in reason:
        return f"is a program of TorchScript, which is not run: open it with torch.jit.load; {TAKE}"
    if is_other_pickle(path):
        return (
            "is a pickle that torch.save did not write: its objects are not loaded, because that"
            " could run code; save the weights with torch.save(model.state_dict(), path)"
        )
    return "is damaged, or is not written by torch.save(model.state_dict(), path)"


def strings_of(path: Path) -> Iterator[str]:
    """Yield the texts of a file's pickles, among them the names of entries, without loading it."""
    for content in pickles_of(path):
        with suppress(ValueError):  # after the last pickle come tensors, or nothing
            while True:
                for _, argument, _ in pickletools.genops(content):
                    if isinstance(argument, str):
                        yield argument


def pickles_of(path: Path) -> Iterator[BytesIO]:
    if not is_zipfile(path):
        yield BytesIO(head_of(path, LARGEST))
        return
    with ZipFile(path) as archive:
        for info in archive.infolist():
            if info.filename.endswith(".pkl") and info.file_size <= LARGEST:
                yield BytesIO(archive.read(info))


def is_other_pickle(path: Path) -> bool:
    """Return whether the file is a pickle, but not one of torch's."""
    head = head_of(path, len(LEGACY))
    return head.startswith(PICKLE) and not LEGACY.startswith(head)
