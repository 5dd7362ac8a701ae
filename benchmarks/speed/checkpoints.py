"""Measure converting and serving of large checkpoints: python -m benchmarks.speed.checkpoints

Checkpoints of published shapes are written with random weights, converted by `python -m model
convert` and served by `python -m service`, each in a process of its own. The numbers go to
docs/performance.json, and from there to docs/performance.md. Takes about an hour on two cores, and
16 GB of disk. Linux only.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx2
import typer

from benchmarks.kit.document import describe_machine
from benchmarks.kit.memory import memory_of, run_command
from benchmarks.kit.process import REPOSITORY
from benchmarks.kit.results import Checkpoints, Conversion, Serving
from benchmarks.kit.serving import is_ready, reserved_port
from benchmarks.speed.random_checkpoint import MT5_LARGE, NLLB_600M, TINY, Shape, write_checkpoint
from benchmarks.speed.report import (
    DOCS,
    conversion_columns,
    read_results,
    serving_columns,
    write_results,
)

PATIENCE = 900.0  # seconds until a server must be ready
PLAN: dict[Shape, Sequence[str]] = {  # precisions to convert to
    NLLB_600M: ("int8", "both"),
    MT5_LARGE: ("fp32",),  # above 2 GB in one graph; with random weights, int8 fails its proof
}
TEXT = "The ship left the harbour in the morning."
NEW_TOKENS = 32


def measure(plan: Mapping[Shape, Sequence[str]], work: Path) -> Generator[Checkpoints]:
    """Convert every shape to its precisions, and serve it at those of the last bundle.

    Yields all results so far after each shape: the next may not fit into memory or on the disk.
    """
    write_checkpoint(TINY, work / "least")
    own = run_command(conversion_command(work / "least", work / "bundle", "both")).peak
    conversions: list[Conversion] = []
    servings: list[Serving] = []
    for shape, precisions in plan.items():
        folder, bundle = work / shape.name, work / "bundle"
        write_checkpoint(shape, folder)
        for precision in precisions:
            conversion = measure_conversion(shape.name, folder, bundle, precision)
            typer.echo(" | ".join(conversion_columns(conversion, own)))
            conversions.append(conversion)
        shutil.rmtree(folder)
        for precision in ("int8", "fp32") if precisions[-1] == "both" else precisions[-1:]:
            serving = measure_serving(bundle, shape.name, precision)
            typer.echo(" | ".join(serving_columns(serving)))
            servings.append(serving)
        yield {
            "machine": describe_machine(),
            "own": own,
            "conversions": conversions,
            "servings": servings,
        }


def measure_conversion(name: str, folder: Path, bundle: Path, precision: str) -> Conversion:
    ran = run_command(conversion_command(folder, bundle, precision))
    return {
        "checkpoint": name,
        "bytes": (folder / "model.safetensors").stat().st_size,
        "precision": precision,
        "seconds": ran.seconds,
        "core_seconds": ran.core_seconds,
        "peak": ran.peak,
        "anonymous": ran.anonymous,
        "bundle": sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()),
    }


def conversion_command(folder: Path, bundle: Path, precision: str) -> list[str | Path]:
    return [sys.executable, "-m", "model", "convert", folder, bundle, "--precision", precision]


def measure_serving(bundle: Path, name: str, precision: str) -> Serving:
    """Serve a bundle and look at its memory: when it is ready, after two decodings, and after
    attention and scores were asked for."""
    languages = json.loads((bundle / "bundle.json").read_text())["languages"]
    used = {f"{side}_language": next(iter(codes)) for side, codes in languages.items() if codes}
    began = time.monotonic()
    with reserved_port() as port, served(bundle, precision, port) as (pid, post):
        ready, seconds = memory_of(pid), time.monotonic() - began
        wanted = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "beam_size": 1}
        post("/v1/decode", source=TEXT, **wanted, **used)
        began = time.monotonic()
        post("/v1/decode", source=TEXT, **wanted, **used)
        rate = NEW_TOKENS / (time.monotonic() - began)
        decoded = memory_of(pid)
        kinds = {"kinds": ["encoder", "decoder", "cross"]}
        post("/v1/attention", source=TEXT, target=TEXT, attention=kinds, **used)
        post("/v1/score", source=TEXT, target=TEXT, **used)
        shown = memory_of(pid)
    return {
        "checkpoint": name,
        "precision": precision,
        "weights": (bundle / precision / "model.safetensors").stat().st_size,
        "seconds": seconds,
        "ready": ready.held,
        "ready_peak": ready.peak,
        "decoded": decoded.held,
        "shown": shown.held,
        "shown_peak": shown.peak,
        "tokens_per_second": rate,
    }


@contextmanager
def served(bundle: Path, precision: str, port: int) -> Generator[tuple[int, Any]]:
    """Yield the id of the service's process, and a function that sends a request."""
    flags = {"--bundles": bundle, "--port": port, "--precision": precision, "--timeout": 600}
    command = [sys.executable, "-m", "service", *(str(x) for flag in flags.items() for x in flag)]
    process = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    address = f"http://127.0.0.1:{port}"

    def post(path: str, **body: Any) -> None:
        httpx2.post(address + path, json=body, timeout=PATIENCE).raise_for_status()

    try:
        until = time.monotonic() + PATIENCE
        while not is_ready(address):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the service did not start: run {' '.join(command)} to see why")
            time.sleep(0.1)
        yield process.pid, post
    finally:
        process.terminate()
        process.wait()


def main(
    docs: Annotated[Path, typer.Option(help="Folder of performance.md and .json")] = DOCS,
    work: Annotated[
        Path | None, typer.Option(help="Folder on a disk with 16 GB of room; /tmp by default")
    ] = None,
) -> None:
    """Measure memory, time and disk of large checkpoints, and add them to docs/performance.md."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        for found in measure(PLAN, Path(folder)):
            write_results({**read_results(docs), "checkpoints": found}, docs)


if __name__ == "__main__":
    typer.run(main)
