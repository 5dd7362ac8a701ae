"""Train a small translation model in Hugging Face's own classes, and save it as they do."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: as in model/__main__.py

from examples.ledger.train import train
from examples.ledger.vocabulary import write_bart, write_marian, write_pegasus, write_t5


class Kind(StrEnum):
    marian = "marian"
    t5 = "t5"
    bart = "bart"
    pegasus = "pegasus"


WRITERS = {
    Kind.marian: write_marian,
    Kind.t5: write_t5,
    Kind.bart: write_bart,
    Kind.pegasus: write_pegasus,
}


def main(
    kind: Annotated[Kind, typer.Argument(help="class of the model")],
    folder: Annotated[Path, typer.Argument(help="where to write the checkpoint")],
    lines: Annotated[int, typer.Option(help="lines to draw; duplicates are removed")] = 100_000,
    epochs: Annotated[int, typer.Option(help="times that each line is read")] = 3,
    seed: int = 0,
) -> None:
    """Write a checkpoint that translates lines of a ledger, and held_out.tsv next to it."""
    train(folder, WRITERS[kind], lines, epochs, seed)


typer.run(main)
