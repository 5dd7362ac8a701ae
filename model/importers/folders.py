"""Recognise folders that are not checkpoints, and say what to give instead."""

import re
from pathlib import Path

from model.importers.checkpoint import MARIAN, OWN, WEIGHT_FILES, config_name
from model.importers.files.foreign import describe_files
from model.network.config import InputError

ADAPTER = "adapter_config.json"
HUB_NAME = re.compile(r"[\w.-]+")


def check_folder(folder: Path) -> None:
    """Raise InputError if `folder` is missing, or known not to be a checkpoint."""
    if not folder.is_dir():
        raise InputError(f"{folder} {describe_place(folder)}")
    if (folder / ADAPTER).is_file():
        raise InputError(
            f"{folder} holds an adapter ({ADAPTER}): merge it into its model, and give the"
            " folder of the merged model"
        )
    if (folder / "snapshots").is_dir():
        raise InputError(f"{folder} is the root of a hub cache: {describe_snapshots(folder)}")
    if (folder / "bundle.json").is_file() and not (folder / "config.json").is_file():
        raise InputError(
            f"{folder} is a bundle already: serve it with HEED_BUNDLES={folder}, or give the"
            " checkpoint that it was made from"
        )
    if not has_weights(folder) and (foreign := describe_files(folder)):
        raise InputError(f"{folder} {foreign}")


def has_weights(folder: Path) -> bool:
    """Return whether there are weights with a name that is read. Only a folder with a configuration
    has them in model.pt, which is a name of many programs."""
    if (folder / OWN).is_file():
        return True
    if config_name(folder) == MARIAN:
        return True
    names = WEIGHT_FILES if (folder / "config.json").is_file() else WEIGHT_FILES[:-1]
    return any((folder / name).is_file() for name in names)


def name_of(folder: Path) -> str:
    """Return the name of a checkpoint: owner/model@commit if it is in the hub's cache."""
    folder = folder.resolve()
    if is_of_hub(folder):
        model = folder.parents[1].name.removeprefix("models--").replace("--", "/")
        return f"{model}@{folder.name}"
    return folder.name


def is_of_hub(folder: Path) -> bool:
    """Return whether a folder is a model in the hub's cache."""
    folder = folder.resolve()
    return folder.parent.name == "snapshots" and folder.parents[1].name.startswith("models--")


def describe_place(folder: Path) -> str:
    if folder.exists():
        return (
            "is a file: give the folder of a checkpoint, with config.json and the weights, or a zip"
            " of a model of Marian"
        )
    if HUB_NAME.fullmatch(str(folder)):
        return (
            "is not a folder here: for a model of the Hugging Face hub, give its owner as well,"
            f" as in Helsinki-NLP/{folder}"
        )
    return "does not exist: give the folder of a checkpoint"


def describe_snapshots(folder: Path) -> str:
    """Return which folder of a hub cache to give: the one that main is at, if that is known."""
    snapshots = sorted(path for path in (folder / "snapshots").iterdir() if path.is_dir())
    main = folder / "refs" / "main"
    if main.is_file():
        name = main.read_text(encoding="utf-8").strip()
        snapshots = [path for path in snapshots if path.name == name] or snapshots
    if not snapshots:
        return "it has no snapshot, so download the model again"
    return f"give {' or '.join(map(str, snapshots))}"
