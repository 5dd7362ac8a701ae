"""Take all measurements of docs/performance.md, one after the other."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cells import (
    CELLS,
    LENGTHS,
    SHORT,
    measure_attention,
    measure_cells,
    measure_lengths,
    measure_memory,
    measure_slow_peers,
)
from benchmarks.document import describe_machine
from benchmarks.load import measure_load
from benchmarks.models import BASE, lettered, like_the_default, write_models
from benchmarks.report import write
from benchmarks.results import Cell, Results


def main(
    short: Annotated[
        bool, typer.Option(help="Fewer cells and rounds, without the parts of the base model")
    ] = False,
    docs: Annotated[Path, typer.Option(help="Folder for performance.md and .json")] = Path("docs"),
) -> None:
    """Compare Heed with CTranslate2, Hugging Face and a loop without a cache."""
    rounds, wanted = (3, SHORT) if short else (9, CELLS)
    docs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        cells: list[Cell] = []
        for model, batches in wanted:
            folder = Path(work) / model.name
            write_models(lettered(model.config), folder)
            cells += measure_cells(model, folder, rounds, batches)
        served = Path(work) / "served"
        write_models(like_the_default(), served)
        results: Results = {
            "machine": describe_machine(),
            "rounds": rounds,
            "cells": cells,
            "load": measure_load(served, seconds=1.0 if short else 10.0),
        }
        if not short:
            base = Path(work) / BASE.name
            results["memory"] = measure_memory(BASE, base)
            results["lengths"] = measure_lengths(BASE, base, 3, LENGTHS)
            results["attention"] = measure_attention(BASE, base, rounds)
            results["slow"] = measure_slow_peers(BASE, base, 3)
    write(results, docs)
