"""Write docs/performance.json, the numbers of a run, and docs/performance.md, which shows them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from benchmarks.kit.document import machine_line, table
from benchmarks.kit.process import TURN
from benchmarks.kit.results import (
    SERVERS,
    Cell,
    Checkpoints,
    Comparison,
    Conversion,
    LengthRow,
    Load,
    LoadRow,
    Results,
    Serving,
)
from benchmarks.load.load import MOST
from benchmarks.speed.agreement_report import render_agreement

DOCS = Path(__file__).parents[2] / "docs"
NUMBERS = "performance.json"


def columns_of(ours: str, theirs: str) -> list[str]:
    times = [f"Heed {ours}, ms", f"CTranslate2 {theirs}, ms"]
    return [*times, "ratio", "CPU ratio", "graphs", "tokens/s", "same"]


COLUMNS = ["cell", *columns_of("int8", "int8"), *columns_of("fp32", "float32")]
HEAD = """# Performance

After this page you know how fast Heed is compared with CTranslate2 and Hugging Face, and what its
options cost.

`python -m benchmarks` writes this page; do not edit it. Times are milliseconds per call, medians of
{rounds} rounds. A ratio above 1 means that Heed is faster; the quartiles of the rounds' ratios are
in brackets. `CPU ratio` compares the CPU time, summed over the cores, of CTranslate2 at the same
setting with Heed's: other work on the machine hardly changes it. `graphs` is the CPU time of Heed's
graphs in the bare loop of one worker, divided by Heed's: where two workers share a batch, each has
the costs of a step that do not depend on its rows. `same` counts the sources that both systems
decode to the same tokens.

Each system runs in a process of its own, with the same random weights and sources, and generates
the same number of tokens. The systems take turns: each answers the same call again and again for at
least {turn:g} ms, after one that does not count, and its time is the mean. CTranslate2 gets its
best setting in each cell, given as workers x threads; Heed uses its defaults.

{machine}

{models}

"""
MODELS = {
    "base": "6 + 6 layers, d_model 512, vocabulary 32,000, 32 tokens in and 32 out.",
    "small": "4 + 4 layers, d_model 256, vocabularies 40 and 60, 8 tokens in and 8 out.",
    "default": "the sizes of the default model (4 + 3 layers, d_model 192), 8 tokens in and 8 out.",
    "Marian": "base with the 58,101 tokens of OPUS-MT, embeddings and output tied.",
    "T5": "the sizes of T5-small: base with RMSNorm, relative positions, 32,128 tied tokens.",
    "NLLB": "the sizes of NLLB-600M (12 + 12 layers, d_model 1024, vocabulary 256,206), tied.",
}
OPTIONS = """
Extra time of search options on Marian int8, batch 8: {options}.
"""
ATTENTION = """
Base int8, batch 8, takes {added:.0%} longer with the decoder and cross-attention of all layers and
heads in the answer.
"""
SLOW = """
Slower peers on base, greedy, best of three calls: {times}. Hugging Face is transformers with
torch; no cache is a loop that runs the whole decoder for every token; Optimum runs its ONNX export
and OpenVINO runs optimum-intel's, both in the loop of transformers.
"""
MEMORY = """
Peak memory of each process after batches of 1 and 8, base, in MiB: {peaks}.
"""
LENGTHS = """
## Lengths

The base model at int8, one source. The peer is CTranslate2 int8 at its best setting.

"""
LOAD = """
## HTTP

{subject}

Each request has one word. The client and the server share the cores. CTranslate2 int8 is behind the
same HTTP application, in the same process. It has one worker per core; a free worker decodes all
waiting requests as one batch. Requests arrive at random times (Poisson). Latencies are milliseconds
from the moment of arrival, of requests that were not refused (429). Both servers take {most:,}
requests at once (`HEED_MAX_REQUESTS`; the default is 200). The load is a share of what the slower
server can answer: {saturation}.

"""
ONE_CONNECTION = """
With one connection, which sends its next request after each answer, the medians are {servers} ms.
Heed's engine without HTTP: {engine:.2f} ms.
"""
STREAMS = """
With `"stream": true`, Heed answers at most {saturation:.0f} words per second. At {rate:.0f} per
second, the first token comes after {first[p50_ms]:.1f} ms (p99 {first[p99_ms]:.1f}), and each
later token {next[p50_ms]:.1f} ms after the one before it (p99 {next[p99_ms]:.1f}); {refused:.1%} of
the streams are refused.
"""
CHECKPOINTS = """
## Checkpoints

`python -m benchmarks.speed.checkpoints` writes this section. Random checkpoints at fp32, with the
shapes and vocabulary sizes of published models, are converted by `python -m model convert` and
served by `python -m service`.

{machine}

The peak is the most memory that the process held. The libraries alone (PyTorch, transformers, ONNX
Runtime) take {own:.2f} GB, the peak for a tiny checkpoint. The ratio is the peak without them,
divided by the checkpoint. Anonymous memory excludes pages of files, which the system takes back
when it needs room.

"""
SERVINGS = """
Memory is summed over all processes of the service. It is measured when the service is ready, after
decoding, and after attention and scoring, which open their graphs on first use. The ratio is the
memory after decoding, divided by the size of the weights on disk. tokens/s is measured with one
source and one beam.

"""


def write_results(results: Results, docs: Path) -> None:
    (docs / "performance.md").write_text(render(results), encoding="utf-8")
    (docs / NUMBERS).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def read_results(docs: Path) -> Results:
    """Return the numbers of the last run."""
    return cast("Results", json.loads((docs / NUMBERS).read_text(encoding="utf-8")))


def render(results: Results) -> str:
    """Return the document. A short run has only some of its parts."""
    measured = dict.fromkeys(cell["model"] for cell in results["cells"])
    models = [f"- {name}: {MODELS[name]}" for name in measured if name in MODELS]
    text = HEAD.format(
        machine=machine_line(results["machine"]),
        rounds=results["rounds"],
        turn=1000 * TURN,
        models="\n".join(models),
    )
    text += table(COLUMNS, [cell_columns(cell) for cell in results["cells"]])
    if "options" in results:
        added = (f"{name} {share:+.0%}" for name, share in results["options"].items())
        text += OPTIONS.format(options="; ".join(added))
    if "attention" in results:
        text += ATTENTION.format(added=results["attention"])
    if "slow" in results:
        text += render_slow_peers(results["slow"])
    if "memory" in results:
        peaks = (f"{name} {peak:.0f}" for name, peak in results["memory"].items())
        text += MEMORY.format(peaks=", ".join(peaks))
    if "lengths" in results:
        text += render_lengths(results["lengths"])
    text += render_load(results["load"])
    if "checkpoints" in results:
        text += render_checkpoints(results["checkpoints"])
    if "agreement" in results:
        text += render_agreement(results["agreement"])
    return text


def cell_columns(cell: Cell) -> list[str]:
    name = f"{cell['model']}, batch {cell['batch']}, beams {cell['beam_size']}"
    columns = [name, *comparison_columns(cell["int8"], cell["batch"])]
    if "fp32" in cell:
        return columns + comparison_columns(cell["fp32"], cell["batch"])
    return columns + [""] * (len(COLUMNS) - len(columns))


def comparison_columns(found: Comparison, batch: int) -> list[str]:
    low, high = found["quartiles"]
    _, _, setting = found["peer"].split(" ", 2)  # "ctranslate2 int8 1 x 2"
    return [
        f"{found['ms']:.1f}",
        f"{found['peer_ms']:.1f} ({setting})",
        f"**{found['ratio']:.2f}** ({low:.2f}-{high:.2f})",
        f"{found['cpu_ratio']:.2f}",
        f"{found['graphs']:.2f}",
        f"{found['tokens_per_second']:.0f}",
        f"{found['same']}/{batch}",
    ]


def render_slow_peers(found: dict[str, dict[str, float]]) -> str:
    times = [
        f"{name} batch {batch} {ms:.0f} ms"
        for name, by_batch in found.items()
        for batch, ms in by_batch.items()
    ]
    return SLOW.format(times=", ".join(times))


def render_lengths(rows: list[LengthRow]) -> str:
    columns = ["source", "generated", "Heed, ms", "ms per token", "peer, ms", "ratio"]
    cells = [
        [
            f"{row['source']:,}",
            str(row["target"]),
            f"{row['ms']:.0f}",
            f"{row['ms'] / row['target']:.2f}",
            f"{row['peer_ms']:.0f}",
            f"{row['peer_ms'] / row['ms']:.2f}",
        ]
        for row in rows
    ]
    return LENGTHS + table(columns, cells)


def render_load(results: Load) -> str:
    rates = (f"{name} {results['saturation'][name]:.0f} per second" for name in SERVERS)
    alone = (f"{name} {results['one_connection_ms'][name]:.2f}" for name in SERVERS)
    return (
        LOAD.format(subject=results["subject"], most=MOST, saturation=", ".join(rates))
        + load_table(results["loads"])
        + ONE_CONNECTION.format(servers=", ".join(alone), engine=results["engine_ms"])
        + STREAMS.format(**results["streams"])
    )


def load_table(loads: Sequence[LoadRow]) -> str:
    columns = ["load", "requests/s"]
    for name in SERVERS:
        columns += [f"{name} p50", "p99", "answers/s", "refused"]
    rows: list[list[str]] = []
    for row in loads:
        cells = [f"{row['share']:.0%}", f"{row['Heed']['rate']:.0f}"]
        for name in SERVERS:
            found = row[name]
            cells += [f"{x:.1f}" for x in (found["p50_ms"], found["p99_ms"], found["throughput"])]
            cells.append(f"{found['refused']:.1%}")
        rows.append(cells)
    return table(columns, rows)


def render_checkpoints(found: Checkpoints) -> str:
    columns = ["checkpoint", "GB", "precision", "seconds", "core seconds", "peak, GB", "ratio"]
    conversions = [conversion_columns(each, found["own"]) for each in found["conversions"]]
    text = CHECKPOINTS.format(machine=machine_line(found["machine"]), own=found["own"] / 1e9)
    text += table([*columns, "anonymous, GB", "bundle, GB"], conversions)
    columns = ["checkpoint", "precision", "weights, GB", "seconds to start", "ready, GB", "peak"]
    columns += ["decoded, GB", "ratio", "attention, GB", "peak", "tokens/s"]
    return text + SERVINGS + table(columns, [serving_columns(each) for each in found["servings"]])


def conversion_columns(found: Conversion, own: int) -> list[str]:
    """Return a row of the table. `own` is the memory of the libraries."""
    return [
        found["checkpoint"],
        in_gb(found["bytes"]),
        found["precision"],
        f"{found['seconds']:.0f}",
        f"{found['core_seconds']:.0f}",
        in_gb(found["peak"]),
        f"**{(found['peak'] - own) / found['bytes']:.2f}**",
        in_gb(found["anonymous"]),
        in_gb(found["bundle"]),
    ]


def serving_columns(found: Serving) -> list[str]:
    return [
        found["checkpoint"],
        found["precision"],
        in_gb(found["weights"]),
        f"{found['seconds']:.0f}",
        in_gb(found["ready"]),
        in_gb(found["ready_peak"]),
        in_gb(found["decoded"]),
        f"**{found['decoded'] / found['weights']:.2f}**",
        in_gb(found["shown"]),
        in_gb(found["shown_peak"]),
        f"{found['tokens_per_second']:.1f}",
    ]


def in_gb(size: int) -> str:
    return f"{size / 1e9:.2f}"
