"""Write pairs that Heed trains on: python -m examples.ledger.pairs FOLDER"""

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from examples.ledger.lines import Line, lines

DEV, HELD_OUT = 500, 1_000  # lines
LANGUAGE = "fra"


def main(
    folder: Annotated[Path, typer.Argument(help="where to write the three files")],
    count: Annotated[int, typer.Option(help="lines to draw; duplicates are removed")] = 20_000,
    seed: int = 0,
) -> None:
    """Write train.tsv, dev.tsv and held_out.tsv: English lines of a ledger, and in French."""
    folder.mkdir(parents=True, exist_ok=True)
    french = (line for line in lines(seed) if line.language == LANGUAGE)
    unique = list(dict.fromkeys(islice(french, count + DEV + HELD_OUT)))
    write(folder / "held_out.tsv", unique[:HELD_OUT])
    write(folder / "dev.tsv", unique[HELD_OUT : HELD_OUT + DEV])
    write(folder / "train.tsv", unique[HELD_OUT + DEV :])


def write(path: Path, rows: list[Line]) -> None:
    text = "".join(f"{row.english}\t{row.translation}\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    typer.echo(f"{path}: {len(rows)} lines")


if __name__ == "__main__":
    typer.run(main)
