"""Measure direct calls: by batch and beam size (cells), by length, memory, and attention."""

import dataclasses
import os
import random
import statistics
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import typer

from benchmarks.kit.models import MeasuredModel
from benchmarks.kit.process import Call, Ids, Running, System
from benchmarks.kit.results import Cell, Comparison, LengthRow, MeasuredPrecision
from benchmarks.kit.systems import (
    bare_system,
    ctranslate2,
    ctranslate2_systems,
    heed,
    heed_system,
    hugging_face,
    no_cache,
)
from benchmarks.speed.report import cell_columns
from benchmarks.speed.runtimes import runtimes

BatchAndBeams = tuple[int, int]
COMPUTE_TYPES: dict[MeasuredPrecision, str] = {
    "int8": "int8",
    "fp32": "float32",
}  # CTranslate2's names
Times = dict[str, list[float]]  # milliseconds of each round, by system
CORES = os.cpu_count() or 1


class Measured(NamedTuple):
    """Times of the wall and of all cores together, and what each system answers."""

    wall: Times
    cpu: Times
    answers: dict[str, Ids]


def call_of(
    model: MeasuredModel, batch: int, beam_size: int, source: int = 0, target: int = 0
) -> Call:
    """Return a call with random sources, the same each time. Length 0: the model's usual one."""
    random_, ids = random.Random(batch), range(4, model.config.source_vocab_size)
    sources = [random_.choices(ids, k=source or model.length) for _ in range(batch)]
    return Call(sources, beam_size, target or model.length)


@contextmanager
def opened(systems: Sequence[System], folder: Path) -> Generator[list[Running]]:
    running = [Running(system, folder) for system in systems]
    yield running
    for system in running:
        system.close()


def measure(systems: Sequence[Running], call: Call, rounds: int, warm_ups: int = 2) -> Measured:
    """Give every system a turn in each round, so that a slow moment of the machine hits all."""
    answers = {system.name: [system(call) for _ in range(warm_ups)][-1].ids for system in systems}
    wall: Times = {system.name: [] for system in systems}
    cpu: Times = {system.name: [] for system in systems}
    for _ in range(rounds):
        for system in systems:
            timed = system.turn(call)
            wall[system.name].append(1000 * timed.seconds)
            cpu[system.name].append(1000 * timed.cpu_seconds)
    return Measured(wall, cpu, answers)


def compare_servers(found: Measured, call: Call, precision: MeasuredPrecision) -> Comparison:
    """Compare Heed with the setting of CTranslate2 that answers soonest, with one ratio per
    round."""
    wall, cpu, answers = found
    name = f"heed {precision}"
    settings = [
        each for each in wall if each.startswith(f"ctranslate2 {COMPUTE_TYPES[precision]} ")
    ]
    best = min(settings, key=lambda each: statistics.median(wall[each]))
    low, middle, high = statistics.quantiles(ratios(wall[best], wall[name]), n=4)
    median = statistics.median(wall[name])
    return {
        "ms": median,
        "cpu_ms": statistics.median(cpu[name]),
        "tokens_per_second": 1000 * len(call.sources) * call.new_tokens / median,
        "peer": best,
        "peer_ms": statistics.median(wall[best]),
        "peer_cpu_ms": statistics.median(cpu[best]),
        "ratio": middle,
        "quartiles": [low, high],
        "cpu_ratio": statistics.median(ratios(cpu[best], cpu[name])),
        "graphs": statistics.median(ratios(cpu[f"bare {precision}"], cpu[name])),
        "same": sum(map(list.__eq__, answers[name], answers[best])),
    }


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> list[float]:
    return [their / our for their, our in zip(theirs, ours, strict=True)]


def measure_cells(
    model: MeasuredModel,
    folder: Path,
    rounds: int,
    wanted: Sequence[BatchAndBeams],
    cores: int = CORES,
) -> list[Cell]:
    """Measure cells, printing each as soon as it is done. Quartiles need at least 2 rounds."""
    systems = [*map(heed_system, model.precisions), *map(bare_system, model.precisions)]
    for precision in model.precisions:
        systems += ctranslate2_systems(COMPUTE_TYPES[precision], cores)
    cells: list[Cell] = []
    with opened(systems, folder) as running:
        for batch, beam_size in wanted:
            call = call_of(model, batch, beam_size)
            found = measure(running, call, rounds)
            cell: Cell = {
                "model": model.name,
                "batch": batch,
                "beam_size": beam_size,
                "int8": compare_servers(found, call, "int8"),
            }
            if "fp32" in model.precisions:
                cell["fp32"] = compare_servers(found, call, "fp32")
            typer.echo(" | ".join(cell_columns(cell)))
            cells.append(cell)
    return cells


def measure_lengths(
    model: MeasuredModel,
    folder: Path,
    rounds: int,
    lengths: Sequence[tuple[int, int]],
    cores: int = CORES,
) -> list[LengthRow]:
    """Measure one source at int8 for each (length of the source, tokens generated).

    For one source, CTranslate2's settings with one worker are enough.
    """
    systems = [heed_system("int8"), *ctranslate2_systems("int8", cores)[:2]]
    rows: list[LengthRow] = []
    with opened(systems, folder) as running:
        for source, target in lengths:
            found = measure(running, call_of(model, 1, 1, source, target), rounds, warm_ups=1)
            ours, *theirs = (statistics.median(each) for each in found.wall.values())
            rows.append({"source": source, "target": target, "ms": ours, "peer_ms": min(theirs)})
    return rows


def measure_attention(model: MeasuredModel, folder: Path, rounds: int) -> float:
    """Return the share of time that decoder and cross-attention add to batch 8 at int8."""
    plain = call_of(model, 8, 1)
    shown = dataclasses.replace(plain, attention=True)
    with opened([heed_system("int8")], folder) as (system,):
        times = [[system(call).seconds for call in (plain, shown)] for _ in range(rounds + 2)][2:]
    return statistics.median(with_weights / without for without, with_weights in times) - 1


def measure_options(model: MeasuredModel, folder: Path, rounds: int) -> dict[str, float]:
    """Return the share of time that each option of a search adds to batch 8 at int8."""
    changes: dict[str, tuple[int, dict[str, float]]] = {
        "sampling with top_p 0.9, against greedy search": (1, {"temperature": 1.0, "top_p": 0.9}),
        "4 beams, repetition penalty 1.2, against 4 beams": (
            4,
            {"repetition_penalty": 1.2},
        ),
    }
    found: dict[str, float] = {}
    with opened([heed_system("int8")], folder) as (system,):
        for name, (beam_size, options) in changes.items():
            plain = call_of(model, 8, beam_size)
            changed = dataclasses.replace(plain, options=options)
            times = [[system(call).seconds for call in (plain, changed)] for _ in range(rounds + 2)]
            found[name] = statistics.median(after / before for before, after in times[2:]) - 1
    return found


def measure_memory(model: MeasuredModel, folder: Path) -> dict[str, float]:
    """Return the peak memory of each system in MiB, after a batch of 1 and one of 8."""
    systems = [
        System("Heed int8", partial(heed, precision="int8")),
        System(
            "Heed int8 without attention graphs", partial(heed, precision="int8", attention=False)
        ),
        System("Heed fp32", partial(heed, precision="fp32")),
        *(
            System(
                f"CTranslate2 {compute_type}",
                partial(ctranslate2, compute_type=compute_type, inter_threads=1, intra_threads=1),
            )
            for compute_type in COMPUTE_TYPES.values()
        ),
    ]
    peaks: dict[str, float] = {}
    for system in systems:
        running = Running(system, folder)
        for batch in (1, 8):
            running(call_of(model, batch, 1))
        peaks[system.name] = running.close()
    return peaks


def measure_slow_peers(
    model: MeasuredModel, folder: Path, rounds: int
) -> dict[str, dict[str, float]]:
    """Return milliseconds by system and batch, the best of `rounds`."""
    found: dict[str, dict[str, float]] = {}
    for peer in slow_peers(model):
        with opened([peer], folder) as (system,):
            found[peer.name] = {
                str(batch): min(
                    1000 * system(call_of(model, batch, 1)).seconds for _ in range(rounds)
                )
                for batch in (1, 8)
            }
    return found


def slow_peers(model: MeasuredModel) -> list[System]:
    return [
        System("Hugging Face float32", partial(hugging_face, config=model.config)),
        System("no cache float32", partial(no_cache, config=model.config)),
        *runtimes(model.config),
    ]
