"""heed decode: the targets of texts, by an engine in this process."""

import asyncio
import sys
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from service.command.errors import count_on, describe, report, reported
from service.command.flags import SEARCH, bundle_flag, given, json_flag, search_flags
from service.command.lines import read_lines
from service.errors import HeedError
from service.formats.json import Document, to_json

if TYPE_CHECKING:
    from service.api.reading.call import Call

TOGETHER = 256  # lines that are decoded at once
OWN = ("num_hypotheses", "top_log_probs", "split", "partial")


@click.command()
@click.argument("texts", nargs=-1)
@click.option("--num-hypotheses", type=int, help="How many hypotheses to print, one a line.")
@click.option(
    "--top-log-probs",
    type=int,
    help="With --json: how many of the most probable tokens to return with each generated one.",
)
@click.option(
    "--split",
    type=click.Choice(["none", "sentences"]),
    help="sentences: decode each sentence by itself, and put the targets into their places.",
)
@click.option(
    "--partial", is_flag=True, default=None, help="Go on after a text that cannot be decoded."
)
@search_flags
@bundle_flag
@json_flag
def decode(texts: tuple[str, ...], bundle: Path | None, as_json: bool, **values: Any) -> None:
    """Decode TEXTS, or the lines of standard input, and print a target for each.

    \b
    heed decode knight
    heed decode < words.txt > targets.txt
    """
    options = given(values, [*SEARCH, *OWN])
    lines = texts or read_lines()
    together = 1 if not texts and sys.stdin.isatty() else TOGETHER
    batches = iter([[*lines]]) if as_json else batches_of(lines, together)
    with reported():
        failed = asyncio.run(decode_all(batches, options, bundle, as_json))
    if failed:
        raise click.exceptions.Exit(1)


def batches_of(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    left = iter(lines)
    while batch := [*islice(left, size)]:
        yield batch


async def decode_all(
    batches: Iterable[list[str]], options: dict[str, Any], bundle: Path | None, as_json: bool
) -> int:
    """Print the targets of all batches, and return how many texts failed."""
    # imported here, since --help and completion do without
    from service.command.local import local_service, make_call, read_local_settings

    failed = before = 0
    async with local_service(read_local_settings(bundle)) as service:
        for batch in batches:
            call = make_call(service, "/v1/decode")
            try:
                document, errors = await decode_batch(call, batch, options)
            except HeedError as error:
                raise count_on(error, before) from None
            if as_json:
                click.echo(to_json(document))
            else:
                click.echo("".join(lines_of(document, errors)), nl=False)
            for error in errors.values():
                report(describe(count_on(error, before)))
            failed, before = failed + len(errors), before + len(batch)
    return failed


async def decode_batch(
    call: "Call", batch: list[str], options: dict[str, Any]
) -> tuple[Document, dict[int, HeedError]]:
    """Return the service's answer, and the errors of the texts that failed."""
    from service.api.endpoints.decode import DecodeRequest, prepare
    from service.api.reading.json_route import validate

    body = validate(DecodeRequest, {"source": batch, **options})
    model, entries, sources, write, faults = await prepare(body, call)
    answers = await call.submit_and_wait(model, entries, faults, sources.results)
    return write(answers), faults.failed


def lines_of(document: Document, errors: Container[int]) -> Iterator[str]:
    """Yield a line for each hypothesis, and an empty one for a text that failed."""
    for place, result in enumerate(document["results"]):
        texts = [""] if place in errors else [each["text"] for each in result["hypotheses"]]
        yield from (f"{text}\n" for text in texts)
