"""What is measured: cells of batch and beams, lengths, memory; the systems taking turns."""

import dataclasses
import os
import random
import statistics
from pathlib import Path
from typing import Any

import typer

from benchmarks.models import CONFIGS
from benchmarks.report import columns_of
from benchmarks.systems import (
    Call,
    Running,
    System,
    ctranslate2,
    ctranslate2_settings,
    heed,
    heed_without_attention,
    hugging_face,
    no_cache,
)

CELLS = {  # batch and beams, by model
    "base": [(1, 1), (8, 1), (32, 1), (1, 4), (8, 4)],
    "small": [(1, 1), (8, 1), (32, 1), (256, 1), (1, 4), (8, 4)],
}
SHORT = {"base": [(1, 1), (8, 1)], "small": CELLS["small"]}
LENGTHS = {"base": 32, "small": 8}  # of sources and of what is generated
TARGETS = [32, 64, 128, 256, 512]  # generated from a source of 32, by the base model
SOURCES = [32, 128, 512, 1024]  # from which 32 are generated
PRECISIONS = {"int8": "int8", "fp32": "float32"}  # ours, and what CTranslate2 calls it
Times = dict[str, list[float]]


def call_of(size: str, batch: int, beam_size: int, source: int = 0, target: int = 0) -> Call:
    """Random sources, the same ones each time."""
    random_, length = random.Random(batch), LENGTHS[size]
    ids = range(4, CONFIGS[size].source_vocab_size)
    sources = [random_.choices(ids, k=source or length) for _ in range(batch)]
    return Call(sources, beam_size, target or length)


def measure(
    systems: list[Running], call: Call, rounds: int, warm_ups: int = 2
) -> tuple[Times, dict[str, Any]]:
    """Milliseconds of each system's call in every round, the systems taking turns; what each
    answered."""
    answers = {system.name: [system(call) for _ in range(warm_ups)][-1][1] for system in systems}
    times: Times = {system.name: [] for system in systems}
    for _ in range(rounds):
        for system in systems:
            times[system.name].append(1000 * system(call)[0])
    return times, answers


def compare(times: Times, answers: dict[str, Any], call: Call) -> dict[str, Any]:
    """Ours beside the peer's best setting at each precision; ratios round by round."""
    row: dict[str, Any] = {}
    for ours, theirs in PRECISIONS.items():
        settings = [name for name in times if name.startswith(f"ctranslate2 {theirs} ")]
        best = min(settings, key=lambda name: statistics.median(times[name]))
        pairs = zip(times[best], times[f"heed {ours}"], strict=True)
        low, middle, high = statistics.quantiles([a / b for a, b in pairs], n=4)
        median = statistics.median(times[f"heed {ours}"])
        row[ours] = {
            "ms": median,
            "tokens_per_second": 1000 * len(call.sources) * call.new_tokens / median,
            "peer": best,
            "peer_ms": statistics.median(times[best]),
            "ratio": middle,
            "quartiles": [low, high],
            "same": sum(map(list.__eq__, answers[f"heed {ours}"], answers[best])),
        }
    return row


def run_cells(
    size: str, folder: Path, rounds: int, wanted: list[tuple[int, int]]
) -> list[dict[str, Any]]:
    cores = os.cpu_count() or 1
    systems = [System(f"heed {name}", heed, (name,)) for name in PRECISIONS]
    for name in PRECISIONS.values():
        systems += ctranslate2_settings(name, cores)
    running = [Running(system, folder) for system in systems]
    cells: list[dict[str, Any]] = []
    for batch, beam_size in wanted:
        call = call_of(size, batch, beam_size)
        row = compare(*measure(running, call, rounds), call)
        cells.append({"model": size, "batch": batch, "beam_size": beam_size, **row})
        typer.echo(" | ".join(columns_of(cells[-1])))
    for system in running:
        system.close()
    return cells


def run_lengths(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """One source of the base model at int8: many tokens from a short one, few from a long one."""
    cores = os.cpu_count() or 1
    systems = [System("heed int8", heed, ("int8",)), *ctranslate2_settings("int8", cores)[:2]]
    running = [Running(system, folder) for system in systems]
    shapes = [(32, target) for target in TARGETS] + [(source, 32) for source in SOURCES[1:]]
    rows: list[dict[str, Any]] = []
    for source, target in shapes:
        times, _ = measure(running, call_of("base", 1, 1, source, target), rounds, warm_ups=1)
        ours, *theirs = (statistics.median(each) for each in times.values())
        rows.append({"source": source, "target": target, "ms": ours, "peer_ms": min(theirs)})
    for system in running:
        system.close()
    return rows


def run_attention(folder: Path, rounds: int) -> float:
    """By how much the weights of all layers and heads lengthen a call of batch 8, base, int8."""
    system = Running(System("heed int8", heed, ("int8",)), folder)
    plain = call_of("base", 8, 1)
    shown = dataclasses.replace(plain, attention=True)
    times = [[system(call)[0] for call in (plain, shown)] for _ in range(rounds + 2)][2:]
    system.close()
    return statistics.median(with_weights / without for without, with_weights in times) - 1


def run_memory(folder: Path) -> dict[str, float]:
    """Peak MiB of a process that has answered batches of 1 and 8 with the base model."""
    systems = [
        System("Heed int8", heed, ("int8",)),
        System("Heed int8 without attention graphs", heed_without_attention, ("int8",)),
        System("Heed fp32", heed, ("fp32",)),
        System("CTranslate2 int8", ctranslate2, ("int8", 1, 1)),
        System("CTranslate2 float32", ctranslate2, ("float32", 1, 1)),
    ]
    peaks: dict[str, float] = {}
    for system in systems:
        running = Running(system, folder)
        for batch in (1, 8):
            running(call_of("base", batch, 1))
        peaks[system.name] = running.close()
    return peaks


def run_slow(folder: Path) -> dict[str, dict[int, float]]:
    """Milliseconds of the two that are far behind, by batch; the best of three calls."""
    found: dict[str, dict[int, float]] = {}
    for name, opened in (("Hugging Face", hugging_face), ("no cache", no_cache)):
        system = Running(System(name, opened, ("base",)), folder)
        found[name] = {
            batch: min(1000 * system(call_of("base", batch, 1))[0] for _ in range(3))
            for batch in (1, 8)
        }
        system.close()
    return found
