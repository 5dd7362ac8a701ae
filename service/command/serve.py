"""heed serve: `python -m service`, which also serves models of the Hugging Face hub."""

from functools import partial
from itertools import takewhile
from pathlib import Path

import click
from click.shell_completion import CompletionItem
from typing_extensions import override

from service.bundle.files import HUB_ID
from service.command.errors import describe_os
from service.command.hub import bundle_of, find_bundle, is_checkpoint
from service.errors import StartupError
from service.settings.command_line import FlagParser, make_parser, read_settings
from service.settings.settings import Settings

ABOUT = (
    "MODEL is the folder of a bundle or of a checkpoint, or the id of a model of the Hugging Face"
    " hub, such as Helsinki-NLP/opus-mt-en-fr, to which @ and a revision may be added. A checkpoint"
    " is converted once, and a model of the hub downloaded before: bundles are kept in"
    " ~/.cache/heed."
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
    try:
        return read_settings(flags, parser, [find_model(each) for each in models])
    except OSError as error:
        raise StartupError(describe_os(error)) from error


def find_model(name: str) -> Path:
    """Return the folder of a bundle, given itself, as a checkpoint or as a model of the hub. Raise
    StartupError."""
    folder = Path(name)
    if folder.exists():
        return bundle_of(folder) if is_checkpoint(folder) else folder
    if HUB_ID.fullmatch(name):
        return find_bundle(name)
    raise StartupError(
        f"the folder {name} does not exist, and this is not an id of the Hugging Face hub: give the"
        " folder of a bundle, or an id such as Helsinki-NLP/opus-mt-en-fr"
    )
