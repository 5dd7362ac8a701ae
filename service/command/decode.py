"""heed decode: the targets of texts, by an engine in this process or a service."""

import asyncio
import os
import signal
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import click

from service.command.asking import MOST, Decoded, decode_batch, decode_in_order, open_model, tell
from service.command.errors import report, reported
from service.command.files import (
    decode_file,
    format_of,
    open_lines,
    open_part,
    open_texts,
    standard_input,
)
from service.command.flags import (
    SEARCH,
    ModelPlace,
    OutputFile,
    ablate_flag,
    given_fields,
    json_flag,
    model_place,
    place_flags,
    search_flags,
)
from service.errors import StartupError
from service.formats.json import Document, to_json

OWN = (
    *("num_hypotheses", "top_log_probs", "words", "source_share", "source_final", "hold", "ablate"),
    *("split", "markup", "replace_unknown", "partial", "draft"),
)
DOCUMENTS = (".html", ".htm", ".xhtml", ".xml")
OTHER_KINDS = (".csv", ".json", ".ndjson", ".xlsx", ".parquet", ".zip", ".bz2", ".xz", ".zst")


def check_kind(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Refuse formats whose lines would be taken for texts."""
    if path and format_of(path) in OTHER_KINDS:
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
    "--words",
    is_flag=True,
    default=None,
    help="With --json or .jsonl: write the words with their log-probs and entropies.",
)
@click.option(
    "--source-share",
    is_flag=True,
    default=None,
    help="With --words: say how much each word depends on the source.",
)
@click.option(
    "--source-final/--no-source-final",
    default=None,
    help="--no-source-final: TEXTS will grow. Print what is committed, a tab, and the rest of the"
    " target; give what is committed as --target-prefix with the longer text.",
)
@click.option(
    "--hold",
    type=int,
    help="With --no-source-final: how many of the last tokens may still change their meaning.",
)
@ablate_flag
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
    "--draft",
    type=click.Choice(["source"]),
    help="source: check the tokens of the text as a draft of its target, which gives the same"
    " target, and is faster for few texts if the model copies most of their tokens.",
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
    help="File of texts: .tsv (the first column), .jsonl (texts, or objects with source), .html or"
    " .xml (one document), else lines; .gz after it.",
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
    options, place = given_fields(values, [*SEARCH, *OWN]), model_place(values)
    if texts and (source or output):
        raise click.UsageError("give TEXTS or files, not both")
    check_document(source, output, options)
    check_output(output, options, as_json)
    with reported(), interruptible():
        if source and format_of(source) in DOCUMENTS:
            failed = asyncio.run(decode_document(source, output, options, place, as_json))
        elif output:
            check_other_file(source, output)
            with going_on():
                failed = asyncio.run(decode_file(source, output, options, place))
        else:
            typed = not texts and not source and standard_input().isatty()
            with nullcontext(texts) if texts else open_texts(source) as lines:
                printed = (
                    print_document(require_lines(lines, source), options, place)
                    if as_json
                    else print_targets(lines, options, place, 1 if typed else MOST)
                )
                failed = asyncio.run(printed)
    if failed:
        raise click.exceptions.Exit(1)


def check_output(output: Path | None, options: dict[str, Any], as_json: bool) -> None:
    """Raise UsageError for what a line of text, or a document, cannot hold."""
    kind = format_of(output) if output else ""
    if kind in DOCUMENTS:
        check_alone(options, as_json)
        return
    if kind == ".jsonl" if output else as_json:
        return
    for name in {"words", "top_log_probs"} & options.keys():
        flag = f"--{name.replace('_', '-')}"
        raise click.UsageError(f"{flag} needs --json, or an --output that ends in .jsonl")
    if not output:
        return
    if as_json:
        raise click.UsageError("give an --output that ends in .jsonl, or leave out --json")
    if options.get("num_hypotheses", 1) > 1:
        raise click.UsageError("several hypotheses need an --output that ends in .jsonl")
    if options.get("source_final") is False:
        raise click.UsageError("what is committed needs an --output that ends in .jsonl")


def check_alone(options: dict[str, Any], as_json: bool) -> None:
    """Raise UsageError for what would be written beside the only target of a document."""
    unfit = {
        "--json": as_json,
        "--num-hypotheses": options.get("num_hypotheses", 1) > 1,
        "--words": "words" in options,
        "--top-log-probs": "top_log_probs" in options,
        "--no-source-final": options.get("source_final") is False,
    }
    if named := [flag for flag, given in unfit.items() if given]:
        detail = "an output that is a document has one hypothesis and nothing else"
        raise click.UsageError(f"{detail}: leave out {' and '.join(named)}")


def check_document(source: Path | None, output: Path | None, options: dict[str, Any]) -> None:
    """Raise UsageError if a document would be read or written as lines."""
    reads = source is not None and format_of(source) in DOCUMENTS
    writes = output is not None and format_of(output) in DOCUMENTS
    if (reads or writes) and "markup" not in options:
        name = source if reads else output
        raise click.UsageError(f"{name} is a document: give --markup html or xml as well")
    if writes and not reads:
        raise click.UsageError(f"{output} is a document: give one of these as --input, too")
    if output and reads and not writes:
        raise click.UsageError(
            f"{source} is one document: give an --output that ends in {' or '.join(DOCUMENTS)}"
        )


def check_other_file(source: Path | None, output: Path) -> None:
    """Raise UsageError if the output would replace the input, by whatever path or link, and
    StartupError if there is no input."""
    if not source:
        standard_input()  # if standard input is closed, descriptor 0 may be another file
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


async def decode_document(
    source: Path, output: Path | None, options: dict[str, Any], place: ModelPlace, as_json: bool
) -> int:
    """Decode a file as one text, and print the target or write it as it is. Return how many texts
    failed: 1 or none."""
    with open_lines(source, keep_ends=True) as lines:
        text = "".join(lines)
    if not output:
        return await (print_document if as_json else print_targets)([text], options, place)
    check_other_file(source, output)
    async with open_model(place) as model:
        done = await decode_batch(model, [text], options)
    if tell(done):
        return 1
    target = done.document["results"][0]["hypotheses"][0]["text"]
    with open_part(output) as file:
        file.truncate(0)
        file.write(target.encode(errors="surrogateescape"))
    return 0


async def print_targets(
    texts: Iterable[str], options: dict[str, Any], place: ModelPlace, most: int = MOST
) -> int:
    """Print the targets of all texts, and return how many texts failed. Decode at most `most` texts
    together."""
    failed = 0
    async with open_model(place) as model:
        async for each in decode_in_order(model, texts, options, most=most):
            click.echo("".join(lines_of(each)), nl=False)
            failed += tell(each)
    return failed


async def print_document(texts: list[str], options: dict[str, Any], place: ModelPlace) -> int:
    """Print the service's answer to a request for all texts, and return how many failed."""
    async with open_model(place) as model:
        done = await decode_batch(model, texts, options)
    click.echo(to_json(done.document))
    return tell(done)


def require_lines(lines: Iterable[str], source: Path | None) -> list[str]:
    """Return the lines. Raise StartupError if there is none: an answer has one or more results."""
    if not (found := [*lines]):
        name = source or "standard input"
        raise StartupError(f"{name} holds no line: give one, or leave out --json")
    return found


def lines_of(decoded: Decoded) -> Iterator[str]:
    """Yield a line for each hypothesis, and an empty one for a text that failed."""
    for place, result in enumerate(decoded.document["results"]):
        texts = [""] if place in decoded.errors else map(line_of, result["hypotheses"])
        yield from (f"{text}\n" for text in texts)


def line_of(hypothesis: Document) -> str:
    """Return the text; of a source that will grow, what is committed, a tab, and the rest."""
    if committed := hypothesis.get("committed"):
        return f"{committed['text']}\t{hypothesis['tentative']}"
    return hypothesis["text"]
