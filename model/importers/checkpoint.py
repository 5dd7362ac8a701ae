"""Read a checkpoint: a folder with weights and config.json, as Hugging Face writes it, with weights
and heed.toml, which describes a model of your own, or with the files of Marian.

Nothing in the folder is executed: weights are read as safetensors, or by torch's loader that
refuses everything but tensors.
"""

import tomllib
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, dtype

from model.checkpoint import parse_json
from model.export.files.tensor_file import pieces_of
from model.importers.files.container import OPTIONS
from model.importers.files.flat_yaml import read_flat
from model.importers.files.foreign import describe_files
from model.importers.files.marian import find_weights, open_marian
from model.importers.files.names import AVERAGED, shared_prefix, without_wrappers
from model.importers.files.pickle_file import open_pickle
from model.importers.files.reading import StoredTensor, check_pointer, read
from model.network.config import InputError

GENERATION = "generation_config.json"
OWN = "heed.toml"  # if it exists, config.json is not read: it may be of another program
MARIAN = OPTIONS  # the item of Marian's weights that takes config.json's place
WEIGHT_FILES = (  # the first of these that exists is read
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "model.pt",
)
OTHERS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")  # of weights that heed.toml may name
PREFIXES = ("module.", "model.")  # before all names; that of Hugging Face's may be the second


class Checkpoint:
    """The configuration and the tensors of a folder; `unread` names those that were never read.

    Weights are memory-mapped: pages that were read count as memory of this process until `close`
    and until all tensors are freed. They are rounded to the number type `rounding`. With
    `shapes_only`, `tensor` reads nothing: it returns tensors on torch's meta device.
    """

    def __init__(
        self, folder: Path, rounding: dtype | None = None, *, shapes_only: bool = False
    ) -> None:
        """Raise InputError if the configuration or the weights are missing or damaged."""
        self.folder, self.rounding, self.shapes_only = folder, rounding, shapes_only
        self.config_name = config_name(folder)
        self.config, found = open_marian_files(folder) if self.is_marian else open_files(folder)
        own = self.config_name == OWN
        found = {without_wrappers(name): stored for name, stored in found.items()}
        self._prefix = shared_prefix(
            [name for name in found if name != AVERAGED], PREFIXES if own else PREFIXES[:1]
        )
        self._tensors = {
            self.unwrapped(name): stored for name, stored in found.items() if name != AVERAGED
        }
        self.names = sorted(self._tensors)
        self._unread = set(self._tensors)
        self._files: dict[str, dict[str, Any]] = {}

    @property
    def is_marian(self) -> bool:
        """Whether the files are those of Marian itself, not of Hugging Face's MarianMTModel."""
        return self.config_name == MARIAN

    def unwrapped(self, name: str) -> str:
        """Return a name without what wrappers, such as DataParallel, put before all names."""
        return without_wrappers(name).removeprefix(self._prefix)

    @property
    def unread(self) -> list[str]:
        return sorted(self._unread)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> Tensor:
        """Return a tensor as it is stored, or its shape alone with `shapes_only`. Raise InputError
        if there is none of this name, or if it is empty or holds NaN or infinity."""
        if self.shapes_only:
            return torch.empty(self.shape(name), device="meta")
        return self.numbers(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, which counts as read. Raise InputError as `tensor` does."""
        if name not in self._tensors:
            raise InputError(
                f"{self.folder} has no tensor {name}: the checkpoint is incomplete, so download its"
                f" weights again, or {self.config_name} belongs to another model"
            )
        stored = self._tensors[name]
        self._unread.difference_update(n for n, other in self._tensors.items() if other is stored)
        if 0 in stored.shape:
            raise InputError(
                f"{self.folder}: tensor {name} is empty, as DeepSpeed leaves it where it splits the"
                " weights: run its zero_to_fp32.py, and give the weights that it writes"
            )
        return stored.shape

    def numbers(self, name: str) -> Tensor:
        """Return a tensor as it is stored, even with `shapes_only`. Raise InputError as `tensor`
        does."""
        self.shape(name)
        tensor = self._tensors[name].read()
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
        """Return a JSON file of the folder, which is read once; {} if there is none."""
        if name not in self._files:
            path = self.folder / name
            self._files[name] = read_json(path) if path.is_file() else {}
        return self._files[name]


def config_name(folder: Path) -> str:
    """Return what describes the weights of a folder."""
    if (folder / OWN).is_file():
        return OWN
    has_own = (folder / "config.json").is_file() or not find_weights(folder)
    return "config.json" if has_own else MARIAN


def open_marian_files(folder: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Return the options and the tensors of a model of Marian."""
    found = open_marian(folder)
    options = read_flat(found.options, f"{found.path}: {OPTIONS}")
    return {**options, "kind": "marian files", "file": found.path.name}, found.tensors


def open_files(folder: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Return the description and the tensors of a checkpoint of Hugging Face's, or of your own."""
    path = folder / config_name(folder)
    if not path.is_file():
        raise InputError(
            f"{folder} is not a checkpoint: it has no config.json; give a folder that"
            f" save_pretrained wrote, or describe a model of your own in {OWN}"
        )
    config = read_toml(path) if path.name == OWN else read_json(path)
    own = config if path.name == OWN else {}
    return config, open_weights(folder, str(own.get("weights", "")), str(own.get("state", "")))


def read_json(path: Path) -> dict[str, Any]:
    return parse_json(read(path), path)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read(path).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not TOML: {error}") from error


def open_weights(folder: Path, name: str, entry: str) -> dict[str, StoredTensor]:
    """Return the tensors of a folder by their names.

    `name` is the file; "" for the first that has a name of Hugging Face's. `entry` is the key of a
    pickle that holds the state dict; "" if the pickle is the state dict.
    """
    if name and not (folder / name).is_file():
        raise InputError(f"{folder / OWN} has weights {name!r}, but the folder has no such file")
    names = (name,) if name else WEIGHT_FILES
    path = next((folder / each for each in names if (folder / each).is_file()), None)
    if path is None:
        raise InputError(f"{folder} {describe_weights(folder)}")
    if path.suffix in (".json", ".safetensors"):
        if entry:
            raise InputError(
                f"{folder / OWN} has state {entry!r}, but {path.name} has no entries: remove it"
            )
        return open_shards(folder, path.name) if path.suffix == ".json" else open_file(path)
    return open_file(path, entry)


def describe_weights(folder: Path) -> str:
    lacks = f"has no weights: it needs {' or '.join(WEIGHT_FILES)}"
    others = sorted(path.name for path in folder.iterdir() if path.suffix in OTHERS)
    if others and (folder / OWN).is_file():
        return f'{lacks}; or name a file in {OWN}, such as weights = "{others[-1]}"'
    return describe_files(folder) or lacks


def open_shards(folder: Path, index: str) -> dict[str, StoredTensor]:
    places = read_json(folder / index).get("weight_map")
    if not isinstance(places, dict):
        raise InputError(f"{folder / index} has no weight_map")
    files: list[str] = sorted({str(name) for name in cast("dict[str, Any]", places).values()})
    tensors: dict[str, StoredTensor] = {}
    for i, name in enumerate(files, 1):
        path = folder / name
        if not path.is_file() or path.name != name:  # a link into a cache is fine, a path is not
            raise InputError(f"{folder}: shard {i} of {len(files)}, {name}, is missing")
        tensors |= open_file(path)
    return tensors


def open_file(path: Path, entry: str = "") -> dict[str, StoredTensor]:
    check_pointer(path)
    return open_safetensors(path) if path.suffix == ".safetensors" else open_pickle(path, entry)


def open_safetensors(path: Path) -> dict[str, StoredTensor]:
    try:
        file = cast("Any", safe_open(path, "pt"))
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged or cut short: {error}") from error
    tensors = {
        name: StoredTensor(tuple(file.get_slice(name).get_shape()), partial(file.get_tensor, name))
        for name in file.keys()  # noqa: SIM118
    }
    aliases = cast("dict[str, str]", file.metadata() or {})  # of tied matrices, stored once
    kept = {alias: tensors[name] for alias, name in aliases.items() if name in tensors}
    return kept | tensors
