"""Read a checkpoint: a folder with config.json and weights, as Hugging Face writes it.

Nothing in the folder is executed: weights are read as safetensors, or by torch's loader that
refuses everything but tensors.
"""

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from model.network.config import InputError

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
SHARDED = tuple(f"{name}.index.json" for name in WEIGHTS)


class Checkpoint:
    """The configuration and the tensors of a folder; `unread` names those that nobody took."""

    def __init__(self, folder: Path) -> None:
        """Raise InputError if config.json or the weights are missing or damaged."""
        self.folder = folder
        if not (folder / "config.json").is_file():
            raise InputError(
                f"{folder} is not a checkpoint: it has no config.json; give a folder that"
                " save_pretrained wrote"
            )
        self.config = read_json(folder / "config.json")
        self._tensors = open_weights(folder)
        self._unread = set(self._tensors)

    @property
    def unread(self) -> list[str]:
        return sorted(self._unread)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> Tensor:
        """Return a tensor as it is stored. Raise InputError if there is none of this name, or if it
        holds NaN or infinity."""
        if name not in self._tensors:
            raise InputError(f"{self.folder} has no tensor {name}: the checkpoint is incomplete")
        self._unread.discard(name)
        tensor = self._tensors[name]()
        if not tensor.isfinite().all():
            raise InputError(f"{self.folder}: tensor {name} holds NaN or infinity")
        return tensor

    def ignore(self, *names: str) -> None:
        """Take tensors for read that the network does not need."""
        self._unread.difference_update(names)

    def optional_json(self, name: str) -> dict[str, Any]:
        """Return a JSON file of the folder; {} if there is none."""
        path = self.folder / name
        return read_json(path) if path.is_file() else {}


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} must be a JSON object")
    return cast("dict[str, Any]", content)


def open_weights(folder: Path) -> dict[str, Callable[[], Tensor]]:
    """Return a function for each tensor that reads it; safetensors before .bin."""
    for name, index in zip(WEIGHTS, SHARDED, strict=True):
        if (folder / name).is_file():
            return open_file(folder / name)
        if (folder / index).is_file():
            return open_shards(folder, index)
    raise InputError(f"{folder} has no weights: it needs {', '.join((*WEIGHTS, *SHARDED))}")


def open_shards(folder: Path, index: str) -> dict[str, Callable[[], Tensor]]:
    places = read_json(folder / index).get("weight_map")
    if not isinstance(places, dict):
        raise InputError(f"{folder / index} has no weight_map")
    files: list[str] = sorted({str(name) for name in cast("dict[str, Any]", places).values()})
    tensors: dict[str, Callable[[], Tensor]] = {}
    for i, name in enumerate(files, 1):
        path = folder / name
        if not path.is_file() or path.resolve().parent != folder.resolve():
            raise InputError(f"{folder}: shard {i} of {len(files)}, {name}, is missing")
        tensors |= open_file(path)
    return tensors


def open_file(path: Path) -> dict[str, Callable[[], Tensor]]:
    return open_safetensors(path) if path.suffix == ".safetensors" else open_pickle(path)


def open_safetensors(path: Path) -> dict[str, Callable[[], Tensor]]:
    try:
        file = cast("Any", safe_open(path, "pt"))
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged or cut short: {error}") from error
    return {name: lambda name=name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def open_pickle(path: Path) -> dict[str, Callable[[], Tensor]]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip(path))
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise InputError(
            f"{path} is damaged, or holds more than tensors, which Heed does not load: save the"
            " model as safetensors"
        ) from error
    return {
        name: lambda tensor=tensor: tensor
        for name, tensor in cast("dict[str, Any]", state).items()
        if isinstance(tensor, Tensor)
    }


def is_zip(path: Path) -> bool:
    """Return whether torch wrote the file since 1.6: older ones cannot be mapped into memory."""
    return zipfile.is_zipfile(path)
