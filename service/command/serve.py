"""heed serve: `python -m service`, which also serves models of the Hugging Face hub."""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from itertools import takewhile
from pathlib import Path

import click
from click.shell_completion import CompletionItem
from typing_extensions import override

from service.bundle.files import HUB_ID
from service.bundle.manifest import FORMAT_VERSION
from service.command.errors import describe_os, report
from service.errors import StartupError
from service.serving.client import run_module
from service.settings.command_line import FlagParser, make_parser, read_settings
from service.settings.settings import Settings

ABOUT_MODEL = (
    "MODEL is the folder of a bundle or of a checkpoint, a zip of a model of Marian, or the id of a"
    " model of the Hugging Face hub, such as Helsinki-NLP/opus-mt-en-fr, to which @ and a revision"
    " may be added. A checkpoint is converted once, and a model of the hub downloaded before:"
    " bundles are kept in ~/.cache/heed."
)

TAKES = (
    "give the folder of a bundle or of a checkpoint, a zip of a model of Marian, or the id of a"
    " model of the Hugging Face hub, such as Helsinki-NLP/opus-mt-en-fr"
)


def make_serve_parser() -> FlagParser:
    parser = make_parser("heed serve")
    parser.usage = "%(prog)s [MODEL ...] [flags]"
    parser.advice = f"models come before flags; {parser.advice}"
    parser.description = f"{parser.description} {ABOUT_MODEL}"
    return parser


def complete_value(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the values of the flag before, or else let the shell complete files: of models."""
    parser, before = make_serve_parser(), ctx.params.get("arguments") or ("",)
    if before[-1] in parser.flags:
        values = parser.values_of(before[-1])
        return [CompletionItem(value) for value in values if value.startswith(incomplete)]
    return [CompletionItem(incomplete, type="file")]


class Serve(click.Command):
    @override
    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        flags = make_serve_parser().flags
        return [CompletionItem(flag) for flag in flags if flag.startswith(incomplete)]


OF_CHECKPOINTS = ("config.json", "heed.toml", "*.npz", "*.bin", "*.bin.gz")  # in their folders


@click.command(cls=Serve, add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_value)
def serve(arguments: tuple[str, ...]) -> None:
    from service.__main__ import main

    main(partial(read_arguments, arguments))


def read_arguments(arguments: tuple[str, ...]) -> Settings:
    """Return the settings for `heed serve`, once all its models are bundles on this machine.

    Models come before all flags: what follows a flag may be its value, or a key.
    """
    models = [*takewhile(lambda argument: not argument.startswith("-"), arguments)]
    flags = arguments[len(models) :]
    parser = make_serve_parser()
    read_settings(flags, parser)  # a wrong flag is found before a model is converted
    try:
        return read_settings(flags, parser, [find_model_folder(each) for each in models])
    except OSError as error:
        raise StartupError(describe_os(error)) from error


def find_model_folder(name: str) -> Path:
    """Return the folder of a bundle, given itself, as a checkpoint or as a model of the hub. Raise
    StartupError."""
    path = Path(name)
    if is_checkpoint(path):
        return bundle_of(path)
    if path.is_dir():
        return path
    if path.exists():
        raise StartupError(f"{name} is a file: {TAKES}")
    if HUB_ID.fullmatch(name):
        return find_bundle(name)
    raise StartupError(f"{name} does not exist: {TAKES}")


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
    bundle = folder / commit / model_name(Path(model))
    with writing(folder):
        convert_once(f"{model}@{commit}", bundle)
        if not latest.is_file() or latest.read_text() != commit:  # else it may be read-only
            latest.parent.mkdir(exist_ok=True)
            latest.write_text(commit)
    return bundle


@contextmanager
def writing(folder: Path) -> Generator[None]:
    """Say what to do if this folder of the cache cannot be written."""
    try:
        yield
    except OSError as error:
        raise StartupError(
            f"{folder} cannot be written ({error.strerror}): name another folder by XDG_CACHE_HOME"
        ) from error


def is_checkpoint(path: Path) -> bool:
    """Return whether `convert` may know a folder or file: by the names of files, or as a zip."""
    if path.is_file():
        return path.suffix.lower() == ".zip"
    is_bundle = (path / "bundle.json").exists()
    return not is_bundle and any(any(path.glob(pattern)) for pattern in OF_CHECKPOINTS)


def bundle_of(checkpoint: Path) -> Path:
    """Return the bundle of a checkpoint's folder or zip. Convert it if the cache has none of its
    files as they are. Raise OSError and StartupError."""
    path = Path(os.path.abspath(checkpoint))  # a link to a zip has its name: .zip at its end
    files = sorted((each.name, each.stat()) for each in (path, *path.glob("*")) if each.is_file())
    state = [(name, status.st_size, status.st_mtime_ns) for name, status in files]
    mark = hashlib.sha256(repr((str(path), state)).encode()).hexdigest()[:12]
    bundle = cache() / "folders" / mark / model_name(path)
    with writing(bundle.parent):
        convert_once(str(path), bundle)
    return bundle


def model_name(path: Path) -> str:
    """Return the name of a folder, a zip or a model of the hub, with hyphens for what the names of
    models cannot have, such as the + of opusTCv20210807+bt.zip."""
    stem = path.stem if path.suffix.lower() == ".zip" else path.name
    name = re.sub("[^A-Za-z0-9._-]", "-", stem).lstrip("._-")
    return name or "model"


def cache() -> Path:
    """Return the folder of bundles that this Heed can read: another format is converted again."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "heed" / f"format-{FORMAT_VERSION}"


def ask_commit(model: str, revision: str, latest: Path) -> str:
    """Return the commit that a revision is at; the last one that is known, if the hub does not say.
    Raise StartupError."""
    from httpx2 import TransportError
    from huggingface_hub import model_info
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    why = "cannot be reached: try again online, or give the folder of a bundle"
    try:
        return str(model_info(model, revision=revision).sha)
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            why = f"answers {status}, too many requests: wait some minutes, or raise your limit by"
            why += " `hf auth login`"
        elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            why = f"answers {status}, which is its own fault: try again later"
        else:
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
    raise StartupError(f"{model} at {revision} is not in {cache()}, and the Hugging Face hub {why}")


def convert_once(model: str, bundle: Path) -> None:
    """Convert a model, unless its bundle is there, in a process of its own, whose memory ends with
    it. It writes its progress to standard error, and the whole bundle or nothing, of which no
    folder is left. Exit as it does if it fails."""
    if (bundle / "bundle.json").is_file():
        return
    bundle.parent.mkdir(parents=True, exist_ok=True)
    report(f"converting {model} to {bundle}")
    command = [*run_module("service.command"), "convert", model, str(bundle)]
    try:
        code = subprocess.run(command, check=False, stdout=2).returncode  # ours has the log
    finally:
        with suppress(OSError):  # a folder with a bundle is not empty
            for folder in takewhile(lambda each: each != cache(), bundle.parents):
                folder.rmdir()
    if code:
        sys.exit(code)
