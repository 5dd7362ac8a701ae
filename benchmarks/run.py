"""All measurements, one after the other, in one run."""

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.cells import (
    CELLS,
    SHORT,
    run_attention,
    run_cells,
    run_lengths,
    run_memory,
    run_slow,
)
from benchmarks.load import load
from benchmarks.models import write_models
from benchmarks.report import machine, write


def main(
    short: Annotated[bool, typer.Option(help="fewer cells and rounds, for a look")] = False,
    docs: Annotated[Path, typer.Option(help="where performance.md goes")] = Path("docs"),
) -> None:
    rounds, wanted = (3, SHORT) if short else (9, CELLS)
    results: dict[str, Any] = {"machine": machine(), "rounds": rounds, "cells": []}
    with tempfile.TemporaryDirectory() as work:
        for size, cells in wanted.items():
            folder = Path(work) / size
            folder.mkdir()
            write_models(size, folder)
            results["cells"] += run_cells(size, folder, rounds, cells)
        if not short:
            base = Path(work) / "base"
            results["memory"] = run_memory(base)
            results["lengths"] = run_lengths(base, 3)
            results["attention"] = run_attention(base, rounds)
            results["slow"] = run_slow(base)
        results["load"] = load(1.0 if short else 10.0)
    write(results, docs)
