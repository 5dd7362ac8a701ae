"""Models of the Hugging Face hub: download the files of one that are read."""

import re
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from model.importers.checkpoint import OWN, WEIGHT_FILES, config_name, read_json
from model.importers.fields import CONFIG
from model.importers.networks.kinds import check_config
from model.importers.readme import README, find_licence
from model.network.config import InputError

HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?")
TEXTS = (".json", ".txt", ".md", ".model", ".spm", ".toml")  # vocabularies among them
FROM_CACHE: dict[str, Any] = {  # of what is there, only texts are known to be needed
    "local_files_only": True,
    "allow_patterns": [f"*{suffix}" for suffix in TEXTS],
    "ignore_patterns": ["*/*"],
}


def download(name: str, licence: str) -> Path:
    """Return the folder of a model, `owner/model` or `owner/model@revision`. Only files that the
    hub's own cache lacks are downloaded; if the hub cannot be reached, that cache is used.

    Raise InputError if there is no such model, or neither the hub nor the cache has it, or, before
    its weights are downloaded, if neither `licence` nor its README.md names a licence, or if its
    config.json is of a kind that is not converted.
    """
    from httpx2 import TransportError
    from huggingface_hub import model_info, snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    model, _, revision = name.partition("@")
    try:
        try:
            info = model_info(model, revision=revision or None)
        except (TransportError, OfflineModeIsEnabled):
            return Path(snapshot_download(model, revision=revision or None, **FROM_CACHE))
        files = choose([each.rfilename for each in info.siblings or []])
        few = Path(
            snapshot_download(model, revision=info.sha, allow_patterns=[README, OWN, CONFIG])
        )
        find_licence(few, licence)
        if config_name(few) == CONFIG and (few / CONFIG).is_file():
            check_config(read_json(few / CONFIG), name)
        return Path(snapshot_download(model, revision=info.sha, allow_patterns=files))
    except LocalEntryNotFoundError as error:
        raise InputError(
            f"{name} is not a folder, and the Hugging Face hub cannot be reached: try again online,"
            " or give the folder of a checkpoint"
        ) from error
    except HFValidationError as error:
        raise InputError(f"{name} is not a folder, nor an id of the hub: {error}") from error
    except HfHubHTTPError as error:
        status = HTTPStatus(error.response.status_code)
        raise InputError(
            f"{name} is not a folder, and the Hugging Face hub answers {status:d} to it:"
            f" {advice_on(status)}"
        ) from error
    except TransportError as error:
        raise InputError(f"the download of {name} failed ({error}): try again") from error


def advice_on(status: HTTPStatus) -> str:
    """Return what to do if the hub answers with this status."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "wait some minutes, or raise your limit by `hf auth login`"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "try again later"
    return "check name and revision; private and gated models need `hf auth login`"


def choose(names: Sequence[str]) -> list[str]:
    """Return the files that `convert` may read: those at the top, with the weights once.

    The hub's models often have the same weights for several libraries.
    """
    top = [name for name in names if "/" not in name]
    weights = next((name for name in WEIGHT_FILES if name in top), "none.none")
    stem, suffix = weights.removesuffix(".index.json").split(".")
    return [
        name
        for name in top
        if name.endswith(TEXTS)
        or name.startswith(("LICEN", "NOTICE"))
        or (name.startswith(stem) and name.endswith(suffix))
    ]
