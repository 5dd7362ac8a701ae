"""heed attention: what a text's target attends to, by an engine in this process."""

import asyncio
from pathlib import Path
from typing import Any

import click

from service.command.errors import reported
from service.command.flags import (
    SEARCH,
    SELECTION,
    OutputFile,
    bundle_flag,
    given,
    json_flag,
    search_flags,
    selection_flags,
)
from service.command.heatmap import draw
from service.formats.json import JSON, Document

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
@bundle_flag
@json_flag
def attention(
    text: str,
    target: str | None,
    output: Path | None,
    bundle: Path | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Show what TARGET, or else the target that is decoded, attends to in TEXT.

    \b
    heed attention photograph
    heed attention photograph -o photograph.png

    A terminal shows the mean of all layers and heads unless you select some; files have all.
    """
    selection = given(values, SELECTION)
    if not (output or as_json or any(name in selection for name in SHAPE)):
        selection |= MEAN
    body = {"source": text, "attention": selection, **given(values, SEARCH)}
    if target is not None:
        body["target"] = target
    with reported():
        write(asyncio.run(attend(body, bundle)), output, as_json)


async def attend(body: dict[str, Any], bundle: Path | None) -> Document:
    """Return the service's answer. Raise as the service does."""
    # imported here, since --help and completion do without
    from service.api.endpoints.attention import AttentionRequest, run_attention
    from service.api.reading.json_route import validate
    from service.command.local import (
        LocalEngine,
        local_service,
        make_call,
        read_local_settings,
    )

    async with local_service(read_local_settings(bundle), LocalEngine) as service:
        call = make_call(service, "/v1/attention")
        return (await run_attention(validate(AttentionRequest, body), call)).write()


def write(document: Document, output: Path | None, as_json: bool) -> None:
    """Write to a file, as its suffix says, or to standard output."""
    if output or as_json:
        from service.formats.writers import WRITERS

        pieces = WRITERS[SUFFIXES[output.suffix.lower()] if output else JSON](document)
        if output:
            output.write_bytes(b"".join(pieces))
        else:
            click.echo(b"".join(pieces))
    else:
        (result,) = document["results"]
        click.echo(draw(result))
