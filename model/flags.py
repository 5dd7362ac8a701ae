"""Kinds of options and arguments that commands share."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer


def positive(help_text: str) -> Any:
    return typer.Option(help=help_text, min=1)


def share(help_text: str, most: float = 1) -> Any:
    return typer.Option(help=help_text, min=0, max=most)


def existing_file(help_text: str) -> Any:
    return typer.Option(help=help_text, exists=True, dir_okay=False)


def existing_folder(help_text: str) -> Any:
    return typer.Option(help=help_text, exists=True, file_okay=False)


def output_file(help_text: str) -> Any:
    return typer.Option(help=help_text, dir_okay=False, writable=True, callback=check_folder)


def check_folder(path: Path | None) -> Path | None:
    """Raise BadParameter, before any work, for a new file in a folder that cannot be written to."""
    if path is not None and not path.exists():
        folder = path.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise typer.BadParameter(
                f"{folder} is not a folder that can be written to: make it, or name another file"
            )
    return path


PairsFile = Annotated[
    Path,
    typer.Argument(
        help="UTF-8 file of lines source<TAB>target; a source may be repeated with another target",
        exists=True,
        dir_okay=False,
    ),
]
Examples = Annotated[
    list[str] | None,
    typer.Option(help="a source that shows what the model does; repeat it for several"),
]
