"""docs/performance.md and .json from what was measured."""

import json
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ["onnxruntime", "ctranslate2", "torch", "transformers", "numpy", "fastapi", "uvicorn"]
PRECISIONS = ["int8", "fp32"]


def columns_of(cell: dict[str, Any]) -> list[str]:
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
    return columns


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
LENGTHS = """
## Lengths

The base model at int8, one source; the peer is CTranslate2 int8, its best setting.

"""
LOAD = """
## HTTP

The default model, one word a request; client and server share the cores. CTranslate2 int8 stands
behind the same application, in its process: each of its workers, one a core, decodes together all
that waits when it is free. Requests arrive at random moments (Poisson), at shares of what the
slower of both can answer ({saturation}); latencies from the moment of arrival, milliseconds.

"""

STREAMS = """
Heed streaming (`"stream": true`) answers {saturation:.0f} words a second at most. At {rate:.0f} a
second the first token comes after {first[p50_ms]:.1f} ms (p99 {first[p99_ms]:.1f}), and each other
{next[p50_ms]:.1f} ms after the one before (p99 {next[p99_ms]:.1f}).
"""


def table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def lengths(rows: list[dict[str, Any]]) -> str:
    columns = ["source", "generated", "Heed, ms", "ms a token", "peer, ms", "ratio"]
    return LENGTHS + table(
        columns,
        [
            [
                f"{row['source']:,}",
                str(row["target"]),
                f"{row['ms']:.0f}",
                f"{row['ms'] / row['target']:.2f}",
                f"{row['peer_ms']:.0f}",
                f"{row['peer_ms'] / row['ms']:.2f}",
            ]
            for row in rows
        ],
    )


def load(results: dict[str, Any]) -> str:
    answers = (f"{name} {rate:.0f} a second" for name, rate in results["saturation"].items())
    names = [
        column for name in results["saturation"] for column in (f"{name} p50", "p99", "a second")
    ]
    columns = ["load", "requests/s", *names]
    rows = [
        [
            f"{row['share']:.0%}",
            f"{row['Heed']['rate']:.0f}",
            *(
                f"{row[name][part]:.1f}"
                for name in results["saturation"]
                for part in ("p50_ms", "p99_ms", "throughput")
            ),
        ]
        for row in results["loads"]
    ]
    alone = ", ".join(f"{name} {ms:.2f}" for name, ms in results["one_connection_ms"].items())
    return (
        LOAD.format(saturation=", ".join(answers))
        + table(columns, rows)
        + f"\nOne connection, one request after the other, medians: {alone} ms; Heed's engine"
        f" without HTTP {results['engine_ms']:.2f} ms.\n"
        + STREAMS.format(
            saturation=results["streams"]["saturation"],
            rate=results["streams"]["rate"],
            first=results["streams"]["first"],
            next=results["streams"]["next"],
        )
    )


def slow(results: dict[str, dict[int, float]]) -> str:
    named = ", ".join(
        f"{name} batch {batch} {ms:.0f} ms"
        for name, times in results.items()
        for batch, ms in times.items()
    )
    return f"\nFar behind, float32, base, best of three: {named}.\n"


def memory(results: dict[str, float]) -> str:
    peaks = ", ".join(f"{name} {peak:.0f}" for name, peak in results.items())
    return f"\nPeak memory of the process, base, after batches of 1 and 8, MiB: {peaks}.\n"


def write(results: dict[str, Any], docs: Path) -> None:
    facts = ", ".join(f"{name} {value}" for name, value in results["machine"].items())
    text = HEAD.format(machine=facts, rounds=results["rounds"])
    text += table(COLUMNS, [columns_of(cell) for cell in results["cells"]])
    if "memory" in results:
        text += (
            "\nDecoder and cross-attention of all layers and heads add"
            f" {results['attention']:.0%} to base int8, batch 8.\n"
        )
        text += slow(results["slow"]) + memory(results["memory"]) + lengths(results["lengths"])
    text += load(results["load"])
    (docs / "performance.md").write_text(text)
    (docs / "performance.json").write_text(json.dumps(results, indent=1) + "\n")
