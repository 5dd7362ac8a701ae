"""Read a checkpoint: a folder with weights and config.json, as Hugging Face writes it, or with
weights and heed.toml, which describes a model of your own.

Nothing in the folder is executed: weights are read as safetensors, or by torch's loader that
refuses everything but tensors.
"""

import json
import pickle
import re
import struct
import tomllib
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from model.export.tensor_file import pieces_of
from model.importers.files import check_pointer, head_of, read
from model.network.config import InputError

DAMAGED = (  # what torch.load raises for a file that is damaged or no state dict
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    struct.error,
)
OBJECT = re.compile(r"GLOBAL (\S+) (was not an allowed|whose module)")  # how torch names it
GENERATION = "generation_config.json"
LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)  # begins a file of torch before 1.6
PICKLE = b"\x80"
OWN = "heed.toml"  # beside it, config.json is not read: it may be of another program
WEIGHTS = (  # the first of these that exists is read
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "model.pt",
)


class Checkpoint:
    """The configuration and the tensors of a folder; `unread` names those that were never read.

    Weights are memory-mapped: pages that were read count as memory of this process until `close`
    and until all tensors are freed. They are rounded to the number type `rounding`.
    """

    def __init__(self, folder: Path, rounding: torch.dtype | None = None) -> None:
        """Raise InputError if the configuration or the weights are missing or damaged."""
        self.folder, self.rounding = folder, rounding
        self.config_name = OWN if (folder / OWN).is_file() else "config.json"
        path = folder / self.config_name
        if not path.is_file():
            raise InputError(
                f"{folder} is not a checkpoint: it has no config.json; give a folder that"
                f" save_pretrained wrote, or describe a model of your own in {OWN}"
            )
        self.config = read_toml(path) if path.name == OWN else read_json(path)
        entry = str(self.config.get("state", "")) if path.name == OWN else ""
        self._tensors = open_weights(folder, entry)
        self._unread = set(self._tensors)

    @property
    def names(self) -> list[str]:
        return sorted(self._tensors)

    @property
    def unread(self) -> list[str]:
        return sorted(self._unread)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> Tensor:
        """Return a tensor as it is stored. Raise InputError if there is none of this name, or if it
        holds NaN or infinity."""
        if name not in self._tensors:
            raise InputError(
                f"{self.folder} has no tensor {name}: the checkpoint is incomplete, so download its"
                f" weights again, or {self.config_name} belongs to another model"
            )
        self._unread.discard(name)
        tensor = self._tensors[name]()
        if not all(piece.isfinite().all() for piece in pieces_of(tensor)):
            raise InputError(f"{self.folder}: tensor {name} holds NaN or infinity")
        rounds = self.rounding is not None and tensor.is_floating_point()
        return tensor.to(self.rounding) if rounds else tensor

    def close(self) -> None:
        """Let go of the weights. The configuration and the other files can still be read."""
        self._tensors = {}

    def ignore(self, *names: str) -> None:
        """Count tensors as read that the network does not need."""
        self._unread.difference_update(names)

    def optional_json(self, name: str) -> dict[str, Any]:
        """Return a JSON file of the folder; {} if there is none."""
        path = self.folder / name
        return read_json(path) if path.is_file() else {}


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read(path).decode())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} must be a JSON object")
    return cast("dict[str, Any]", content)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read(path).decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from error


def open_weights(folder: Path, entry: str = "") -> dict[str, Callable[[], Tensor]]:
    """Return, for each tensor's name, a function that reads it.

    `entry` is the key of a pickle that holds the state dict; "" if the pickle is the state dict.
    """
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise InputError(f"{folder} has no weights: it needs {' or '.join(WEIGHTS)}")
    if path.suffix in (".bin", ".pt"):
        check_pointer(path)
        return open_pickle(path, entry)
    if entry:
        raise InputError(
            f"{folder / OWN} has state {entry!r}, but {path.name} has no entries: remove it"
        )
    return open_shards(folder, path.name) if path.suffix == ".json" else open_file(path)


def open_shards(folder: Path, index: str) -> dict[str, Callable[[], Tensor]]:
    places = read_json(folder / index).get("weight_map")
    if not isinstance(places, dict):
        raise InputError(f"{folder / index} has no weight_map")
    files: list[str] = sorted({str(name) for name in cast("dict[str, Any]", places).values()})
    tensors: dict[str, Callable[[], Tensor]] = {}
    for i, name in enumerate(files, 1):
        path = folder / name
        if not path.is_file() or path.name != name:  # a link into a cache is fine, a path is not
            raise InputError(f"{folder}: shard {i} of {len(files)}, {name}, is missing")
        tensors |= open_file(path)
    return tensors


def open_file(path: Path) -> dict[str, Callable[[], Tensor]]:
    check_pointer(path)
    return open_safetensors(path) if path.suffix == ".safetensors" else open_pickle(path)


def open_safetensors(path: Path) -> dict[str, Callable[[], Tensor]]:
    try:
        file = cast("Any", safe_open(path, "pt"))
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged or cut short: {error}") from error
    return {name: lambda name=name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def open_pickle(path: Path, entry: str = "") -> dict[str, Callable[[], Tensor]]:
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # about the pickle
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip(path))
    except DAMAGED as error:
        if found := OBJECT.search(str(error)):
            raise InputError(
                f"{path} holds more than tensors, namely {found[1]}, and loading that could run"
                " code: save the weights alone with torch.save(model.state_dict(), path)"
            ) from error
        if is_other_pickle(path):
            raise InputError(
                f"{path} is a pickle that torch.save did not write: its objects are not loaded,"
                " because that could run code; save the weights with"
                " torch.save(model.state_dict(), path)"
            ) from error
        raise InputError(
            f"{path} is damaged, or is not written by torch.save(model.state_dict(), path)"
        ) from error
    held = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    state = held.get(entry) if entry else held
    tensors = {
        name: lambda tensor=tensor: tensor
        for name, tensor in cast("dict[str, Any]", state if isinstance(state, dict) else {}).items()
        if isinstance(tensor, Tensor)
    }
    if not tensors:
        place = f"under {entry!r}" if entry else "at its top"
        raise InputError(
            f"{path} has no tensors {place}, but {', '.join(map(str, held)) or 'nothing'}: save"
            f" model.state_dict(), or name the entry that holds it as state in {OWN}"
        )
    return tensors


def is_other_pickle(path: Path) -> bool:
    """Return whether the file is a pickle, but not one of torch's."""
    head = head_of(path, len(LEGACY))
    return head.startswith(PICKLE) and not LEGACY.startswith(head)


def is_zip(path: Path) -> bool:
    """Return whether torch 1.6 or later wrote the file: only such files are mapped into memory."""
    return zipfile.is_zipfile(path)
