"""heed decode: the targets of texts, by an engine in this process or a service."""

import asyncio
import os
import signal
import sys
from collections.abc import Container, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import click

from service.command.asking import decode_in_order, open_model
from service.command.errors import describe, report, reported
from service.command.files import BATCH, batches_of, decode_file, kind_of, open_texts
from service.command.flags import (
    SEARCH,
    OutputFile,
    Place,
    given,
    json_flag,
    place_flags,
    place_of,
    search_flags,
)
from service.formats.json import Document, to_json

OWN = ("num_hypotheses", "top_log_probs", "split", "markup", "replace_unknown", "partial")
OTHER_KINDS = (".csv", ".json", ".ndjson", ".xlsx", ".parquet", ".zip", ".bz2", ".xz", ".zst")


def check_kind(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Refuse formats whose lines would be taken for texts."""
    if path and kind_of(path) in OTHER_KINDS:
        raise click.BadParameter(
            f"{path} is of another format: give .tsv, .jsonl, or .txt for a text a line, each"
            " with .gz or without"
        )
    return path


@click.command()
@click.argument("texts", nargs=-1)
@click.option("--num-hypotheses", type=int, help="How many hypotheses to print, one a line.")
@click.option(
    "--top-log-probs",
    type=int,
    help="With --json or .jsonl: how many of the most probable tokens to write with each token.",
)
@click.option(
    "--split",
    type=click.Choice(["none", "sentences"]),
    help="sentences: decode each sentence by itself, and put the targets into their places.",
)
@click.option(
    "--markup",
    type=click.Choice(["html", "xml"]),
    help="Decode the texts of HTML or XML, and put the tags where their words went.",
)
@click.option(
    "--replace-unknown",
    is_flag=True,
    default=None,
    help="Put the aligned source word in the place of each token of unknown words.",
)
@click.option(
    "--partial", is_flag=True, default=None, help="Go on after a text that cannot be decoded."
)
@search_flags
@click.option(
    "--input",
    "source",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    callback=check_kind,
    help="File of texts: .tsv (the first column), .jsonl (texts, or objects with source), else"
    " lines; .gz after it.",
)
@click.option(
    "--output",
    type=OutputFile(),
    callback=check_kind,
    help="File to write: .tsv (source and target), .jsonl (all of the answer), else targets; .gz"
    " after it. The same command goes on where one was stopped.",
)
@place_flags
@json_flag
def decode(
    texts: tuple[str, ...],
    source: Path | None,
    output: Path | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Decode TEXTS, or the lines of a file or of standard input, and print a target for each.

    \b
    heed decode knight
    heed decode --input words.txt --output pronounced.tsv
    """
    options, place = given(values, [*SEARCH, *OWN]), place_of(values)
    if texts and (source or output):
        raise click.UsageError("give TEXTS, or files")
    if output and options.get("num_hypotheses", 1) > 1 and kind_of(output) != ".jsonl":
        raise click.UsageError("several hypotheses need an --output that ends in .jsonl")
    with reported(), interruptible():
        if output:
            check_other_file(source, output)
            with going_on():
                failed = asyncio.run(decode_file(source, output, options, place))
        else:
            typed = not texts and not source and sys.stdin.isatty()
            with nullcontext(texts) if texts else open_texts(source) as lines:
                batches = [[*lines]] if as_json else batches_of(lines, 1 if typed else BATCH)
                failed = asyncio.run(print_all(batches, options, place, as_json))
    if failed:
        raise click.exceptions.Exit(1)


def check_other_file(source: Path | None, output: Path) -> None:
    """Raise UsageError if the output would replace the input, by whatever path or link."""
    state = source.stat() if source else os.fstat(0)
    if output.exists() and os.path.samestat(state, output.stat()):
        name = f"--input {source}" if source else "standard input"
        raise click.UsageError(f"{name} and --output {output} are the same file: give another one")


@contextmanager
def interruptible() -> Generator[None]:
    """End at the first Ctrl-C. asyncio's own handler waits for the event loop, which may be waiting
    for a line of the terminal."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def going_on() -> Generator[None]:
    """Say at Ctrl-C that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt as error:
        click.echo(err=True)  # the terminal's line holds the progress, or ^C
        report("stopped: the same command goes on after the lines that are done")
        raise click.exceptions.Exit(128 + signal.SIGINT) from error


async def print_all(
    batches: Iterable[list[str]], options: dict[str, Any], place: Place, as_json: bool
) -> int:
    """Print the targets of all batches, and return how many texts failed."""
    failed = 0
    async with open_model(place) as model:
        async for each in decode_in_order(model, batches, options):
            if as_json:
                click.echo(to_json(each.document))
            else:
                click.echo("".join(texts_of(each.document, each.errors)), nl=False)
            for error in each.errors.values():
                report(describe(error))
            failed += len(each.errors)
    return failed


def texts_of(document: Document, errors: Container[int]) -> Iterator[str]:
    """Yield a line for each hypothesis, and an empty one for a text that failed."""
    for place, result in enumerate(document["results"]):
        texts = [""] if place in errors else [each["text"] for each in result["hypotheses"]]
        yield from (f"{text}\n" for text in texts)
