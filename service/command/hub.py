"""Bundles of models of the Hugging Face hub: converted once for each revision, and kept."""

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
    try:
        if not (bundle / "bundle.json").is_file():
            bundle.parent.mkdir(parents=True, exist_ok=True)
            convert(f"{model}@{commit}", bundle)
        if not latest.is_file() or latest.read_text() != commit:  # else it may be read-only
            latest.parent.mkdir(exist_ok=True)
            latest.write_text(commit)
    except OSError as error:
        raise StartupError(
            f"{folder} cannot be written ({error.strerror}): name another folder by XDG_CACHE_HOME"
        ) from error
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
        raise StartupError(f"{model} is not a folder, nor an id of the hub: {error}") from error
    except (TransportError, OfflineModeIsEnabled):
        pass
    if latest.is_file():
        return latest.read_text()
    raise StartupError(
        f"{model} at {revision} is not in {cache()}, and the Hugging Face hub cannot be reached:"
        " try again online, or give the folder of a bundle"
    )


def convert(model: str, bundle: Path) -> None:
    """Convert a model in a process of its own, whose memory ends with it. It writes what it does to
    standard error, and the whole bundle or nothing. Exit as it does if it fails."""
    report(f"converting {model} to {bundle}")
    command = [*run_module("service.command"), "convert", model, str(bundle)]
    code = subprocess.run(command, check=False, stdout=2).returncode  # ours has the log
    if code:
        sys.exit(code)
