"""Measure direct calls: by batch and beam size (cells), by length, memory, and attention."""

import dataclasses
import os
import random
import statistics
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import typer

from benchmarks.models import MeasuredModel
from benchmarks.report import cell_columns
from benchmarks.results import PRECISIONS, Cell, Comparison, LengthRow, Precision
from benchmarks.systems import (
    Call,
    Ids,
    Running,
    System,
    ctranslate2,
    ctranslate2_systems,
    heed,
    heed_system,
    hugging_face,
    no_cache,
)

BatchAndBeams = tuple[int, int]
COMPUTE_TYPES: dict[Precision, str] = {"int8": "int8", "fp32": "float32"}  # CTranslate2's names
Times = dict[str, list[float]]  # milliseconds of each round, by system
CORES = os.cpu_count() or 1


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


def measure(
    systems: Sequence[Running], call: Call, rounds: int, warm_ups: int = 2
) -> tuple[Times, dict[str, Ids]]:
    """Return the milliseconds of every round, and the answers of each system.

    Every round calls each system once, so that a slow moment of the machine hits all of them.
    """
    answers = {system.name: [system(call) for _ in range(warm_ups)][-1][1] for system in systems}
    times: Times = {system.name: [] for system in systems}
    for _ in range(rounds):
        for system in systems:
            times[system.name].append(1000 * system(call)[0])
    return times, answers


def compare(times: Times, answers: dict[str, Ids], call: Call, precision: Precision) -> Comparison:
    """Compare Heed with the best setting of CTranslate2, with one ratio per round."""
    name = f"heed {precision}"
    settings = [
        each for each in times if each.startswith(f"ctranslate2 {COMPUTE_TYPES[precision]} ")
    ]
    best = min(settings, key=lambda each: statistics.median(times[each]))
    ratios = [theirs / ours for theirs, ours in zip(times[best], times[name], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    median = statistics.median(times[name])
    return {
        "ms": median,
        "tokens_per_second": 1000 * len(call.sources) * call.new_tokens / median,
        "peer": best,
        "peer_ms": statistics.median(times[best]),
        "ratio": middle,
        "quartiles": [low, high],
        "same": sum(map(list.__eq__, answers[name], answers[best])),
    }


def measure_cells(
    model: MeasuredModel,
    folder: Path,
    rounds: int,
    wanted: Sequence[BatchAndBeams],
    cores: int = CORES,
) -> list[Cell]:
    """Measure cells, printing each as soon as it is done. Quartiles need at least 2 rounds."""
    systems = [heed_system(precision) for precision in PRECISIONS]
    for compute_type in COMPUTE_TYPES.values():
        systems += ctranslate2_systems(compute_type, cores)
    cells: list[Cell] = []
    with opened(systems, folder) as running:
        for batch, beam_size in wanted:
            call = call_of(model, batch, beam_size)
            times, answers = measure(running, call, rounds)
            cell: Cell = {
                "model": model.name,
                "batch": batch,
                "beam_size": beam_size,
                "int8": compare(times, answers, call, "int8"),
                "fp32": compare(times, answers, call, "fp32"),
            }
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
            times, _ = measure(running, call_of(model, 1, 1, source, target), rounds, warm_ups=1)
            ours, *theirs = (statistics.median(each) for each in times.values())
            rows.append({"source": source, "target": target, "ms": ours, "peer_ms": min(theirs)})
    return rows


def measure_attention(model: MeasuredModel, folder: Path, rounds: int) -> float:
    """Return the share of time that decoder and cross-attention add to batch 8 at int8."""
    plain = call_of(model, 8, 1)
    shown = dataclasses.replace(plain, attention=True)
    with opened([heed_system("int8")], folder) as (system,):
        times = [[system(call)[0] for call in (plain, shown)] for _ in range(rounds + 2)][2:]
    return statistics.median(with_weights / without for without, with_weights in times) - 1


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
                str(batch): min(1000 * system(call_of(model, batch, 1))[0] for _ in range(rounds))
                for batch in (1, 8)
            }
    return found


def slow_peers(model: MeasuredModel) -> list[System]:
    return [
        System("Hugging Face", partial(hugging_face, config=model.config)),
        System("no cache", partial(no_cache, config=model.config)),
    ]
