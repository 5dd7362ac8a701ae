"""Bundles of models of the Hugging Face hub: converted once for each revision, and kept."""

import os
import re
import subprocess
import sys
from pathlib import Path

from service.errors import StartupError, one_line

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


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
    if not (bundle / "bundle.json").is_file():
        bundle.parent.mkdir(parents=True, exist_ok=True)
        convert(f"{model}@{commit}", bundle)
    latest.parent.mkdir(exist_ok=True)
    latest.write_text(commit)
    return bundle


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heed"


def ask_commit(model: str, revision: str, latest: Path) -> str:
    """Return the commit that a revision is at. Raise StartupError."""
    # they take a tenth of a second, which other commands do without
    from httpx2 import TransportError
    from huggingface_hub import model_info
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        return str(model_info(model, revision=revision).sha)
    except (TransportError, OfflineModeIsEnabled) as error:
        if latest.is_file():
            return latest.read_text()
        raise StartupError(
            f"{model} is not in {cache()}, and the Hugging Face hub cannot be reached"
            f" ({reason_of(error)}): try again online, or give the folder of a bundle"
        ) from error
    except HfHubHTTPError as error:
        raise StartupError(
            f"the Hugging Face hub refuses {model} at {revision}: {reason_of(error)}: check the"
            " name; private models need `hf auth login`"
        ) from error


def reason_of(error: Exception) -> str:
    """Return an error of the hub's library in one line, without its advice."""
    return one_line(str(error).partition("\n\n")[2].partition("\n")[0] or str(error) or repr(error))


def convert(model: str, bundle: Path) -> None:
    """Convert a model in a process of its own, whose memory ends with it. It writes what it does to
    standard error, and the whole bundle or nothing. Exit as it does if it fails."""
    print(f"heed: converting {model} to {bundle}", file=sys.stderr)
    command = [sys.executable, "-m", "model", "convert", model, str(bundle)]
    code = subprocess.run(command, check=False).returncode
    if code:
        sys.exit(code)
