"""python -m model align: find which attention of a bundle aligns."""

from pathlib import Path
from typing import Annotated

import typer

from model.data.text_file import read_text
from model.flags import existing_file
from model.network.config import InputError


def align_command(
    bundle: Annotated[Path, typer.Argument(help="a bundle", exists=True, file_okay=False)],
    texts: Annotated[
        Path | None,
        existing_file(
            "sources to look for it on, one a line up to a tab; the bundle's examples and built-in"
            " sentences if omitted"
        ),
    ] = None,
) -> None:
    """Find which attention aligns targets with sources, and write it into bundle.json.

    `export` and `convert` do this for new bundles.
    """
    if not (bundle / "bundle.json").is_file():
        raise InputError(f"{bundle} has no bundle.json: give the folder of a bundle")
    try:
        from model.export.alignment.find import align
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is not installed: run pip install heed-server") from error
    try:
        typer.echo(align(bundle, texts=read_sources(texts) if texts else ()))
    except OSError as error:
        raise InputError(
            f"{error.filename or bundle}: {error.strerror or error}: give a bundle that can be"
            " written"
        ) from error


def read_sources(file: Path) -> list[str]:
    """Return what precedes a tab on each line. Raise InputError if that is nothing."""
    lines = read_text(file).splitlines()
    if sources := [text for line in lines if (text := line.partition("\t")[0].strip())]:
        return sources
    raise InputError(f"{file} holds no text: give a file with a text on each line")
