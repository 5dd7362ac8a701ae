"""Take all measurements of docs/performance.md, one after the other."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cells import (
    BatchAndBeams,
    measure_attention,
    measure_cells,
    measure_lengths,
    measure_memory,
    measure_options,
    measure_slow_peers,
)
from benchmarks.document import describe_machine
from benchmarks.load import measure_load
from benchmarks.models import (
    BASE,
    MARIAN,
    NLLB,
    SMALL,
    MeasuredModel,
    lettered,
    like_the_default,
    write_models,
)
from benchmarks.report import NUMBERS, read, write
from benchmarks.results import Cell, Results
from model.checkpoint import TrainedModel
from model.export.manifest import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Extent of a run.

    `lengths` are pairs: tokens of the source, tokens generated. Lengths, memory, attention and the
    slow peers are measured with the first model only. All four are skipped if `lengths` is empty.
    """

    cells: Sequence[tuple[MeasuredModel, Sequence[BatchAndBeams]]]
    options: MeasuredModel | None = None  # a model of `cells`, on which search options are timed
    lengths: Sequence[tuple[int, int]] = ()
    rounds: int
    seconds: float  # duration of each load


SMALL_CELLS = [(1, 1), (8, 1), (32, 1), (256, 1), (1, 4), (8, 4)]
FULL = Plan(
    cells=[
        (BASE, [(1, 1), (8, 1), (32, 1), (1, 4), (8, 4)]),
        (SMALL, SMALL_CELLS),
        (MARIAN, [(1, 1), (8, 1), (1, 4)]),
        (NLLB, [(1, 1)]),
    ],
    options=MARIAN,
    lengths=[
        *((32, target) for target in (32, 64, 128, 256, 512)),
        *((source, 32) for source in (128, 512, 1024)),
    ],
    rounds=9,
    seconds=10.0,
)
SHORT = Plan(cells=[(BASE, [(1, 1), (8, 1)]), (SMALL, SMALL_CELLS)], rounds=3, seconds=1.0)


def measure(plan: Plan, served: TrainedModel, work: Path) -> Results:
    """Write the models to folders of `work` and measure them. HTTP load is measured on `served`."""
    cells: list[Cell] = []
    for model, batches in plan.cells:
        folder = work / model.name
        precision = Precision.both if "fp32" in model.precisions else Precision.int8
        write_models(lettered(model.config), folder, precision)
        cells += measure_cells(model, folder, plan.rounds, batches)
    write_models(served, work / "served")
    results: Results = {
        "machine": describe_machine(),
        "rounds": plan.rounds,
        "cells": cells,
        "load": measure_load(work / "served", plan.seconds),
    }
    if plan.options:
        folder = work / plan.options.name
        results["options"] = measure_options(plan.options, folder, plan.rounds)
    if plan.lengths:
        first = plan.cells[0][0]
        folder = work / first.name
        results["memory"] = measure_memory(first, folder)
        results["lengths"] = measure_lengths(first, folder, 3, plan.lengths)
        results["attention"] = measure_attention(first, folder, plan.rounds)
        results["slow"] = measure_slow_peers(first, folder, 3)
    return results


def main(
    short: Annotated[
        bool, typer.Option(help="Measure fewer cells and rounds, and skip the slow parts")
    ] = False,
    docs: Annotated[Path, typer.Option(help="Folder for performance.md and .json")] = Path("docs"),
) -> None:
    """Compare Heed with CTranslate2, Hugging Face and a loop without a cache."""
    docs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        results = measure(SHORT if short else FULL, like_the_default(), Path(work))
    if (docs / NUMBERS).exists():
        keep(read(docs), results)
    write(results, docs)


def keep(last: Results, results: Results) -> None:
    """Keep the sections of the last run that other commands measure."""
    if "checkpoints" in last:
        results["checkpoints"] = last["checkpoints"]
    if "agreement" in last:
        results["agreement"] = last["agreement"]
