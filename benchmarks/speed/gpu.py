"""Compare Heed with its peers on a GPU, at half precision: python -m benchmarks.speed.gpu

It needs torch and ONNX Runtime for CUDA, and for CTranslate2 cuBLAS of CUDA 12. It prints the
milliseconds of a call, and how many of the answers are Heed's.
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks.kit.document import table
from benchmarks.kit.models import MARIAN, MeasuredModel, lettered, write_models
from benchmarks.kit.process import Decode, Running, System
from benchmarks.kit.systems import ctranslate2, heed, hugging_face
from benchmarks.speed.cells import call_of, measure, opened
from model.export.files.manifest import Precision

CELLS = ((1, 1), (8, 1), (32, 1), (256, 1), (1, 4), (8, 4), (32, 4))  # sources, beams
COMPUTE_TYPES = {"cuda": "float16", "cpu": "float32"}  # of CTranslate2, by device


def systems_on(device: str, model: MeasuredModel) -> dict[str, System]:
    """Return the systems by name, at half precision where the device has it."""
    theirs = {"compute_type": COMPUTE_TYPES[device], "inter_threads": 1, "intra_threads": 1}
    opens: dict[str, Callable[[Path], Decode]] = {
        "heed": partial(heed, precision="fp16", provider=device),
        "ctranslate2": partial(ctranslate2, **theirs, device=device),
        "transformers": partial(hugging_face, config=model.config, device=device),
    }
    return {name: System(name, function) for name, function in opens.items()}


def measure_cell(
    systems: Sequence[Running], model: MeasuredModel, sources: int, beams: int, rounds: int
) -> list[str]:
    """Return a row of the table; each system has a turn in each round."""
    found = measure(systems, call_of(model, sources, beams), rounds)
    ours = found.answers["heed"]
    cells = [f"{sources} x {beams}"]
    for name, times in found.wall.items():
        same = sum(map(list.__eq__, ours, found.answers[name]))
        cells.append(f"{median(times):.1f} ({same} of {sources})")
    return cells


def main(
    peers: Annotated[str, typer.Option(help="Comma-separated")] = "ctranslate2,transformers",
    rounds: int = 5,
) -> None:
    """Measure a model of Marian's size with random weights, 32 tokens to 32 tokens."""
    known = systems_on("cuda", MARIAN)
    chosen = [known[name] for name in ["heed", *filter(None, peers.split(","))]]
    with tempfile.TemporaryDirectory() as folder:
        write_models(lettered(MARIAN.config), Path(folder), Precision.fp16)
        with opened(chosen, Path(folder)) as systems:
            rows = [measure_cell(systems, MARIAN, *cell, rounds) for cell in CELLS]
    columns = ["sources x beams", *(f"{each.name}, ms (as Heed)" for each in chosen)]
    typer.echo(table(columns, rows))


if __name__ == "__main__":
    typer.run(main)
