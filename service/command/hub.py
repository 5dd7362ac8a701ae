"""Bundles of models of the Hugging Face hub, and of checkpoints in folders: converted once for each
revision, or state of the files, and kept."""

import hashlib
import os
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path

from service.command.errors import report
from service.errors import StartupError
from service.serving.client import run_module


def find_bundle(name: str) -> Path:
    """Return the bundle of a model, `owner/model` or `owner/model@revision`. Convert it if the
    cache has none of this revision.

    If the hub cannot be reached, return what the cache had for this revision last. Raise
    StartupError.
    """
    model, _, revision = name.partition("@")
    folder = cache() / model.replace("/", "--")
    latest = folder / "refs" / (revision or "main").replace("/", "--")
    commit = ask_commit(model, revision or "main", latest)
    bundle = folder / commit / model.partition("/")[2]
    convert_once(f"{model}@{commit}", bundle)
    latest.parent.mkdir(exist_ok=True)
    latest.write_text(commit)
    return bundle


def is_checkpoint(folder: Path) -> bool:
    return (folder / "config.json").is_file() and not (folder / "bundle.json").exists()


def bundle_of(checkpoint: Path) -> Path:
    """Return the bundle of a checkpoint's folder. Convert it if the cache has none of its files as
    they are. Raise OSError."""
    folder = checkpoint.resolve()
    files = sorted((each.name, each.stat()) for each in folder.iterdir() if each.is_file())
    state = [(name, status.st_size, status.st_mtime_ns) for name, status in files]
    mark = hashlib.sha256(repr((str(folder), state)).encode()).hexdigest()[:12]
    bundle = cache() / "folders" / mark / folder.name
    convert_once(str(folder), bundle)
    return bundle


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heed"


def ask_commit(model: str, revision: str, latest: Path) -> str:
    """Return the commit that a revision is at. Raise StartupError."""
    from httpx2 import TransportError
    from huggingface_hub import model_info
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        return str(model_info(model, revision=revision).sha)
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise StartupError(
                f"{model} is not a folder here, and the Hugging Face hub answers {status} to it at"
                f" {revision}: check name and revision; private and gated models need"
                " `hf auth login`"
            ) from error
    except HFValidationError as error:
        raise StartupError(f"not an id of the Hugging Face hub: {error}") from error
    except (TransportError, OfflineModeIsEnabled):
        pass
    if latest.is_file():
        return latest.read_text()
    raise StartupError(
        f"{model} at {revision} is not in {cache()}, and the Hugging Face hub cannot be reached:"
        " try again online, or give the folder of a bundle"
    )


def convert_once(model: str, bundle: Path) -> None:
    """Convert a model, unless its bundle is there, in a process of its own, whose memory ends with
    it. It writes its progress to standard error, and the whole bundle or nothing. Exit as it does
    if it fails."""
    if (bundle / "bundle.json").is_file():
        return
    bundle.parent.mkdir(parents=True, exist_ok=True)
    report(f"converting {model} to {bundle}")
    command = [*run_module("model"), "convert", model, str(bundle)]
    code = subprocess.run(command, check=False, stdout=2).returncode  # ours has the log
    if code:
        sys.exit(code)
