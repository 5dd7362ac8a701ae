"""heed attention: what a text's target attends to, by an engine in this process or a service."""

import asyncio
import json
from pathlib import Path
from typing import Any

import click

from service.command.asking import open_model
from service.command.errors import reported
from service.command.flags import (
    SEARCH,
    SELECTION,
    OutputFile,
    Place,
    given,
    json_flag,
    place_flags,
    place_of,
    search_flags,
    selection_flags,
)
from service.command.heatmap import draw
from service.formats.json import JSON

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


def check_suffix(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    if path and path.suffix.lower() not in SUFFIXES:
        raise click.BadParameter(f"{path} must end in one of {', '.join(SUFFIXES)}")
    return path


@click.command()
@click.argument("text")
@click.argument("target", required=False)
@click.option(
    "-o",
    "--output",
    type=OutputFile(),
    callback=check_suffix,
    help=f"File to write; its suffix says how: {', '.join(SUFFIXES)}.",
)
@selection_flags
@search_flags
@place_flags
@json_flag
def attention(
    text: str,
    target: str | None,
    output: Path | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Show what TARGET, or else the target that is decoded, attends to in TEXT.

    \b
    heed attention photograph
    heed attention photograph -o photograph.png

    A terminal shows the mean of all layers and heads unless you select some; files have all.
    """
    selection, place = given(values, SELECTION), place_of(values)
    if not (output or as_json or any(name in selection for name in SHAPE)):
        selection |= MEAN
    body = {"source": text, "attention": selection, **given(values, SEARCH)}
    if target is not None:
        body["target"] = target
    media_type = SUFFIXES[output.suffix.lower()] if output else JSON
    with reported():
        answer = asyncio.run(attend(body, place, media_type))
        if output:
            output.write_bytes(answer)
        elif as_json:
            click.echo(answer, nl=False)
        else:
            (result,) = json.loads(answer)["results"]
            click.echo(draw(result))


async def attend(body: dict[str, Any], place: Place, media_type: str) -> bytes:
    """Return the service's answer. Raise as the service does."""
    async with open_model(place) as model:
        return await model.ask("/v1/attention", body, media_type)
