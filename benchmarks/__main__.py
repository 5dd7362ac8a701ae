"""python -m benchmarks: Heed beside CTranslate2 and the loop without a cache, in one run."""

import json
import os
import platform
import random
import re
import statistics
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.models import CONFIGS, write_models
from benchmarks.systems import (
    Call,
    Running,
    System,
    ctranslate2_settings,
    heed,
    no_cache,
)

CELLS = {  # batch and beams, by model
    "base": [(1, 1), (8, 1), (32, 1), (1, 4), (8, 4)],
    "small": [(1, 1), (8, 1), (32, 1), (256, 1), (1, 4), (8, 4)],
}
LENGTHS = {"base": 32, "small": 8}  # of sources and of what is generated
PACKAGES = ["onnxruntime", "ctranslate2", "torch", "numpy"]
PRECISIONS = {"int8": "int8", "fp32": "float32"}  # ours, and what CTranslate2 calls it
Times = dict[str, list[float]]


def call_of(size: str, batch: int, beam_size: int) -> Call:
    """Random sources, the same ones each time."""
    random_, length = random.Random(batch), LENGTHS[size]
    ids = range(4, CONFIGS[size].source_vocab_size)
    return Call([random_.choices(ids, k=length) for _ in range(batch)], beam_size, length)


def measure(systems: list[Running], call: Call, rounds: int) -> tuple[Times, dict[str, Any]]:
    """Milliseconds of each system's call in every round, the systems taking turns; what each
    answered."""
    answers = {system.name: [system(call) for _ in range(2)][-1][1] for system in systems}
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


def run_cells(size: str, folder: Path, rounds: int) -> dict[str, Any]:
    cores = os.cpu_count() or 1
    systems = [System(f"heed {name}", heed, (name,)) for name in PRECISIONS]
    for name in PRECISIONS.values():
        systems += ctranslate2_settings(name, cores)
    running = [Running(system, folder) for system in systems]
    cells: list[dict[str, Any]] = []
    for batch, beam_size in CELLS[size]:
        call = call_of(size, batch, beam_size)
        row = compare(*measure(running, call, rounds), call)
        cells.append({"model": size, "batch": batch, "beam_size": beam_size, **row})
        typer.echo(line_of(cells[-1]))
    return {"cells": cells, "peak_mib": {system.name: system.close() for system in running}}


def run_without_cache(folder: Path) -> dict[int, list[float]]:
    """Milliseconds of three calls, by batch."""
    system = Running(System("no cache", no_cache, ("base",)), folder)
    found: dict[int, list[float]] = {}
    for batch in (1, 8):
        call = call_of("base", batch, 1)
        found[batch] = [1000 * system(call)[0] for _ in range(3)]
    system.close()
    return found


def line_of(cell: dict[str, Any]) -> str:
    columns = [f"{cell['model']}, batch {cell['batch']}, beams {cell['beam_size']}"]
    for name in PRECISIONS:
        one = cell[name]
        low, high = one["quartiles"]
        columns += [
            f"{one['ms']:.1f}",
            f"{one['peer_ms']:.1f} ({one['peer'].partition(' ')[2].partition(' ')[2]})",
            f"**{one['ratio']:.2f}** ({low:.2f}-{high:.2f})",
            f"{one['tokens_per_second']:.0f}",
            f"{one['same']}/{cell['batch']}",
        ]
    return "| " + " | ".join(columns) + " |"


def machine() -> dict[str, Any]:
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    versions = {name: version(name) for name in PACKAGES}
    cpu = names[0] if names else platform.processor()
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version(), **versions}


COLUMNS = [
    "cell",
    *("Heed int8, ms", "CTranslate2 int8, ms", "ratio", "tokens/s", "same"),
    *("Heed fp32, ms", "CTranslate2 float32, ms", "ratio", "tokens/s", "same"),
]
HEAD = """# Performance

Written by `python -m benchmarks`; do not edit. Milliseconds a call, medians of {rounds} rounds.
A ratio above 1 means that Heed is faster; in brackets the quartiles of the ratios of single rounds.
`same`: sources that both decode to the same tokens. All systems wait in processes of their own and
take turns, call by call, with the same random weights and sources, and generate exactly as many
tokens. CTranslate2 is given its best setting in each cell, workers x threads; Heed runs as it is.

{machine}

base: 6 + 6 layers, d_model 512, vocabulary 32,000, 32 tokens in and 32 out. small: 4 + 4 layers,
d_model 256, vocabularies 40 and 60, 8 tokens in and 8 out.

"""


def write(results: dict[str, Any], docs: Path) -> None:
    facts = ", ".join(f"{name} {value}" for name, value in results["machine"].items())
    text = HEAD.format(machine=facts, rounds=results["rounds"])
    text += f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    for size in CELLS:
        text += "".join(f"{line_of(cell)}\n" for cell in results[size]["cells"])
    for size in CELLS:
        peaks = results[size]["peak_mib"].items()
        named = ", ".join(f"{name} {peak:.0f}" for name, peak in peaks)
        text += f"\nPeak memory, {size}, MiB: {named}.\n"
    slow = ", ".join(
        f"batch {batch} {statistics.median(times):.0f} ms"
        for batch, times in results["no_cache"].items()
    )
    text += f"\nThe torch loop without a cache, base: {slow}.\n"
    (docs / "performance.md").write_text(text)
    (docs / "performance.json").write_text(json.dumps(results, indent=1) + "\n")


def main(
    short: Annotated[bool, typer.Option(help="fewer rounds, for a look")] = False,
    docs: Annotated[Path, typer.Option(help="where performance.md goes")] = Path("docs"),
) -> None:
    rounds = 3 if short else 11
    results: dict[str, Any] = {"machine": machine(), "rounds": rounds}
    with tempfile.TemporaryDirectory() as work:
        for size in CELLS:
            folder = Path(work) / size
            folder.mkdir()
            write_models(size, folder)
            results[size] = run_cells(size, folder, rounds)
        results["no_cache"] = run_without_cache(Path(work) / "base")
    write(results, docs)


if __name__ == "__main__":
    typer.run(main)
