"""heed: one command for the service, its model at a terminal, and training.

It finds commands by name, and imports the modules of the one that runs: `heed decode` needs no web
framework's application and no PyTorch. `service` and `model` do not import each other; the commands
of `model` are started here by name, as `python -m model` starts them.
"""

import sys
from contextlib import redirect_stderr, suppress
from difflib import get_close_matches
from importlib import import_module
from io import StringIO
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem
from typing_extensions import override

from service import __version__

COMMANDS = {  # in the order of --help: what each does, and the module with a function of its name
    "serve": ("serve models over HTTP", "service.command.serve"),
    "decode": ("decode texts", "service.command.decode"),
    "attention": ("show what a text's target attends to", "service.command.attention"),
    "attribution": ("show what a text's target depends on", "service.command.attention"),
    "score": ("print how probable targets are", "service.command.score"),
    "convert": ("make a bundle of a Hugging Face checkpoint, or of a model of your own", "model"),
    "train": ("train a model on pairs of texts", "model"),
    "evaluate": ("compare a model's answers with the right ones", "model"),
    "export": ("make a bundle of a trained model", "model"),
    "align": ("find which attention of a bundle aligns", "model"),
}


class LazyGroup(click.Group):
    """The commands of COMMANDS, imported when they are used."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        _, module = COMMANDS[cmd_name]
        if module == "model":
            return ModelCommand(cmd_name)
        return getattr(import_module(module), cmd_name)

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the command that is spelled alike, if there is none of this name."""
        if args[0] not in COMMANDS and (near := get_close_matches(args[0], COMMANDS, 1)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]}?")
        return super().resolve_command(ctx, args)

    @override
    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command. Exit with a line if the encoding of standard output lacks a character."""
        try:
            return super().main(*args, **extra)
        except UnicodeEncodeError as error:
            if error.encoding == "utf-8":  # it lacks no character
                raise
            lacking = ascii(error.object[error.start])
            encoding = f"standard output is {sys.stdout.encoding}, which lacks {lacking}"
            sys.exit(f"heed: {encoding}: set PYTHONIOENCODING=utf-8")

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Describe the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (what, _) in COMMANDS.items()])

    @override
    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = (name for name in COMMANDS if name.startswith(incomplete))
        flags = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=COMMANDS[name][0]) for name in names), *flags]


def flags_of(command: str | None) -> dict[str, list[str]]:
    """Return the flags of a command of the model, each with the values between which it chooses."""
    # without the extra there is nothing to offer, and a message would stand in the prompt
    with suppress(ModuleNotFoundError, SystemExit), redirect_stderr(StringIO()):
        return import_module("model.__main__").flags_of(command)
    return {}


def complete_argument(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the values of the flag before, or else let the shell complete the names of files."""
    before = (ctx.params["arguments"] or ("",))[-1]
    values = flags_of(ctx.command.name).get(before) if before.startswith("-") else None
    if values:
        return [CompletionItem(value) for value in values if value.startswith(incomplete)]
    return [CompletionItem(incomplete, type="file")]


class ModelCommand(click.Command):
    """A command of `python -m model`, which reads its own arguments."""

    def __init__(self, name: str) -> None:
        arguments = click.Argument(
            ["arguments"], nargs=-1, type=click.UNPROCESSED, shell_complete=complete_argument
        )
        settings = {"ignore_unknown_options": True}
        super().__init__(name, settings, self.run, [arguments], add_help_option=False)

    def run(self, arguments: tuple[str, ...]) -> None:
        sys.argv = ["heed", str(self.name), *arguments]
        start_model()

    @override
    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(flag) for flag in flags_of(self.name) if flag.startswith(incomplete)]


def start_model() -> NoReturn:
    try:
        command = import_module("model.__main__")
    except ModuleNotFoundError as error:
        if error.name != "model":
            raise
        sys.exit("heed: only the service is installed here: run pip install 'heed-server[convert]'")
    sys.exit(command.main("heed"))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="heed COMMAND --help explains a command. In bash, this completes commands and flags:"
    ' eval "$(_HEED_COMPLETE=bash_source heed)"',
)
@click.version_option(
    __version__, "-V", "--version", prog_name="heed", message="%(prog)s %(version)s"
)
def main() -> None:
    """Serve encoder-decoder Transformers, and show what they attend to."""


if __name__ == "__main__":
    main(prog_name="heed")
