"""heed serve: `python -m service`, which also serves models of the Hugging Face hub."""

import os
import subprocess
import sys
from functools import partial
from http import HTTPStatus
from itertools import takewhile
from pathlib import Path

import click
from click.shell_completion import CompletionItem
from typing_extensions import override

from service.bundle.files import HUB_ID
from service.command.errors import report
from service.errors import StartupError
from service.serving.client import run_module
from service.settings.command_line import FlagParser, make_parser, read_settings
from service.settings.settings import Settings

ABOUT = (
    "MODEL is the folder of a bundle, or the id of a model of the Hugging Face hub, such as"
    " Helsinki-NLP/opus-mt-en-fr, to which @ and a revision may be added. A model of the hub is"
    " downloaded and converted once, and kept in ~/.cache/heed."
)


def make_serve_parser() -> FlagParser:
    parser = make_parser("heed serve")
    parser.usage = "%(prog)s [MODEL ...] [flags]"
    parser.advice = f"models come before flags; {parser.advice}"
    parser.description = f"{parser.description} {ABOUT}"
    return parser


class Serve(click.Command):
    @override
    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        flags = make_serve_parser().flags
        return [CompletionItem(flag) for flag in flags if flag.startswith(incomplete)]


@click.command(cls=Serve, add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
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
    return read_settings(flags, parser, [find_model(each) for each in models])


def find_model(name: str) -> Path:
    """Return the folder of a bundle, given itself or as a model of the hub. Raise StartupError."""
    if Path(name).exists():
        return Path(name)
    if HUB_ID.fullmatch(name):
        return find_bundle(name)
    raise StartupError(
        f"{name} is neither a folder nor an id of the Hugging Face hub: give the folder of a"
        " bundle, or an id such as Helsinki-NLP/opus-mt-en-fr"
    )


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
