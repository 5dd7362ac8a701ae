"""heed attention and heed attribution: what a text's target attends to and depends on, by an engine
in this process or a service."""

import asyncio
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, get_args

import click

from service.command.asking import open_model
from service.command.errors import reported
from service.command.flags import (
    SEARCH,
    SELECTION,
    Command,
    ModelPlace,
    OutputFile,
    ablate_flag,
    given_fields,
    json_flag,
    model_place,
    place_flags,
    search_flags,
    selection_flags,
)
from service.command.heatmap import draw_attribution, draw_heatmaps
from service.formats.json import JSON
from service.occlusion import Of, Unit

SUFFIXES = {
    ".json": JSON,
    ".npz": "application/npz",
    ".safetensors": "application/safetensors",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".html": "text/html",
}
SHAPE = ("layers", "heads", "reduce_heads", "reduce_layers")
MEAN = {"reduce_heads": "mean", "reduce_layers": "mean"}


def output_flag(suffixes: Collection[str]) -> Callable[[Command], Command]:
    """Return a decorator that adds a flag for a file whose name ends in one of the suffixes."""
    names = ", ".join(suffixes)

    def check(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
        if path and path.suffix.lower() not in suffixes:
            raise click.BadParameter(f"{path} must end in one of {names}")
        return path

    return click.option(
        "-o",
        "--output",
        type=OutputFile(),
        callback=check,
        help=f"File to write; its suffix says how: {names}.",
    )


@click.command()
@click.argument("text")
@click.argument("target", required=False)
@output_flag(SUFFIXES)
@selection_flags
@search_flags
@ablate_flag
@place_flags
@json_flag
def attention(text: str, output: Path | None, as_json: bool, **values: Any) -> None:
    """Show what TARGET, or else the target that is decoded, attends to in TEXT.

    \b
    heed attention photograph
    heed attention photograph -o photograph.png

    A terminal shows the mean of all layers and heads unless you select some; files have all.
    """
    selection, place = given_fields(values, SELECTION), model_place(values)
    if not (output or as_json or any(name in selection for name in SHAPE)):
        selection |= MEAN
    others = given_fields(values, ["target", *SEARCH, "ablate"])
    body = {"source": text, "attention": selection, **others}
    show_answer("/v1/attention", body, place, output, None if as_json else draw_heatmaps)


@click.command()
@click.argument("text")
@click.argument("target", required=False)
@output_flag([suffix for suffix in SUFFIXES if suffix != ".html"])
@click.option("--contrast", help="A foil: another target, for what speaks for TARGET and not it.")
@click.option(
    "--of",
    type=click.Choice(get_args(Of)),
    help="source: replace its parts. heads: switch off each attention head.",
)
@click.option("--unit", type=click.Choice(get_args(Unit)), help="What is replaced at a time.")
@click.option("--decimals", type=int, help="Decimals of the numbers in files and with --json.")
@search_flags
@place_flags
@json_flag
def attribution(text: str, output: Path | None, as_json: bool, **values: Any) -> None:
    """Show what TARGET, or else the target that is decoded, loses without each part of TEXT.

    \b
    heed attribution photograph
    heed attribution read "R EH1 D" --contrast "R IY1 D"
    """
    place, fields = model_place(values), ("target", "contrast", "of", "unit", "decimals")
    body = {"source": text, **given_fields(values, [*SEARCH, *fields])}
    show_answer("/v1/attribution", body, place, output, None if as_json else draw_attribution)


def show_answer(
    path: str,
    body: dict[str, Any],
    place: ModelPlace,
    output: Path | None,
    to_text: Callable[[dict[str, Any]], str] | None,
) -> None:
    """Write the answer to a file, or print it: as JSON, or as the text of its only result."""
    media_type = SUFFIXES[output.suffix.lower()] if output else JSON
    if media_type != JSON and not to_text:
        raise click.UsageError("give an --output that ends in .json, or leave out --json")
    with reported():
        answer = asyncio.run(ask(path, body, place, media_type))
        if output:
            output.write_bytes(answer)
        elif to_text:
            (result,) = json.loads(answer)["results"]
            click.echo(to_text(result))
        else:
            click.echo(answer, nl=False)


async def ask(path: str, body: dict[str, Any], place: ModelPlace, media_type: str) -> bytes:
    """Return the service's answer. Raise as the service does."""
    async with open_model(place) as model:
        return await model.ask(path, body, media_type)
