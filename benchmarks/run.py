"""Take all measurements of docs/performance.md, one after the other."""

import tempfile
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from benchmarks.kit.document import describe_machine
from benchmarks.kit.models import (
    BASE,
    DEFAULT,
    MARIAN,
    NLLB,
    SMALL,
    T5,
    MeasuredModel,
    lettered,
    like_the_default,
    write_models,
)
from benchmarks.kit.results import Cell, Load, Part, Results
from benchmarks.load.load import measure_load
from benchmarks.speed.cells import (
    BatchAndBeams,
    measure_attention,
    measure_cells,
    measure_lengths,
    measure_memory,
    measure_options,
    measure_slow_peers,
)
from benchmarks.speed.report import NUMBERS, read_results, write_results
from model.checkpoint import TrainedModel
from model.export.files.manifest import Precision


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


PARTS = ("load", "options", "memory", "lengths", "attention", "slow")  # besides the cells
SMALL_CELLS = [(1, 1), (8, 1), (32, 1), (256, 1), (1, 4), (8, 4)]
FULL = Plan(
    cells=[
        (BASE, [(1, 1), (8, 1), (32, 1), (1, 4), (8, 4)]),
        (SMALL, SMALL_CELLS),
        (DEFAULT, SMALL_CELLS),
        (MARIAN, [(1, 1), (8, 1), (1, 4)]),
        (T5, [(1, 1), (8, 1), (1, 4)]),
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


def measure(
    plan: Plan, served: TrainedModel, work: Path, only: Collection[str] = ()
) -> Generator[Part]:
    """Write the models to folders of `work` and yield each part of the results when it is measured.

    HTTP load is measured on `served`. `only` names the models and parts to measure; empty: all.
    """

    def written(model: MeasuredModel) -> Path:
        folder = work / model.name
        if not folder.exists():
            precision = Precision.both if "fp32" in model.precisions else Precision.int8
            write_models(lettered(model.config), folder, precision)
        return folder

    for model, batches in plan.cells:
        if not only or model.name in only:
            yield {"cells": measure_cells(model, written(model), plan.rounds, batches)}
    for name, measure_part in parts(plan, served, work, written).items():
        if not only or name in only:
            yield {name: measure_part()}


def parts(
    plan: Plan, served: TrainedModel, work: Path, written: Callable[[MeasuredModel], Path]
) -> dict[str, Callable[[], Any]]:
    """Return what measures each part of a plan but its cells."""
    first, rounds = plan.cells[0][0], plan.rounds

    def load() -> Load:
        write_models(served, work / "served")
        return measure_load(work / "served", plan.seconds)

    found: dict[str, Callable[[], Any]] = {"load": load}
    if options := plan.options:
        found["options"] = lambda: measure_options(options, written(options), rounds)
    if plan.lengths:
        found["memory"] = lambda: measure_memory(first, written(first))
        found["lengths"] = lambda: measure_lengths(first, written(first), 3, plan.lengths)
        found["attention"] = lambda: measure_attention(first, written(first), rounds)
        found["slow"] = lambda: measure_slow_peers(first, written(first), 3)
    return found


def add_part(results: Part, part: Part) -> None:
    """Add a part. Cells of a model take the place of those it had."""
    if "cells" in part:
        cells = by_model(results.get("cells", [])) | by_model(part["cells"])
        part = {"cells": [*chain.from_iterable(cells.values())]}
    results.update(part)


def by_model(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Return the cells of each model."""
    models: dict[str, list[Cell]] = {}
    for cell in cells:
        models.setdefault(cell["model"], []).append(cell)
    return models


def main(
    short: Annotated[
        bool, typer.Option(help="Measure fewer cells and rounds, and skip the slow parts")
    ] = False,
    only: Annotated[
        str,
        typer.Option(
            help="Models and parts to measure, separated by commas, such as T5,load; the numbers of"
            " the last run on this machine are kept for the others"
        ),
    ] = "",
    docs: Annotated[Path, typer.Option(help="Folder for performance.md and .json")] = Path("docs"),
) -> None:
    """Compare Heed with CTranslate2, Hugging Face and a loop without a cache."""
    docs.mkdir(parents=True, exist_ok=True)
    plan, names = SHORT if short else FULL, [name for name in only.split(",") if name]
    last: Part = {**read_results(docs)} if (docs / NUMBERS).exists() else {}
    results: Part = {"machine": describe_machine(), "rounds": plan.rounds}
    if names:
        check(names, plan, results, last)
        results = last
    else:
        others = ("checkpoints", "agreement")  # other commands measure them
        results |= {name: last[name] for name in others if name in last}
    with tempfile.TemporaryDirectory() as work:
        for part in measure(plan, like_the_default(), Path(work), names):
            add_part(results, part)
            if "load" in results:
                write_results(cast("Results", results), docs)  # a later part may fail


def check(names: Sequence[str], plan: Plan, now: Part, last: Part) -> None:
    """Raise BadParameter for an unknown part, or if the last run was on another machine."""
    known = [*(model.name for model, _ in plan.cells), *PARTS]
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(f"{unknown[0]} is not a part: give some of {', '.join(known)}")
    for field in ("machine", "rounds"):
        if last.get(field) != now.get(field):
            raise typer.BadParameter(
                f"{NUMBERS} has another {field} ({last.get(field)}): measure everything"
            )
