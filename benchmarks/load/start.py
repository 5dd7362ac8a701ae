"""What a start costs: python -m benchmarks.load.start

Heed, and CTranslate2 behind the same application, start in turns, and answer a text. Before, the
system forgets the model's files, but not those of Python and of libraries. Only Heed checks its
model.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from typing import Annotated, NamedTuple

import httpx2
import typer

from benchmarks.kit.document import describe_machine, machine_line, table
from benchmarks.kit.memory import memory_of
from benchmarks.kit.serving import serving
from service.serving.registry import OpenEngine
from service.serving.supervisor import Supervisor

COLUMNS = ["model", "system", "first answer, s", "memory, MiB", "without pages of files, MiB"]
NEW_TOKENS = 8
MIB = 1 << 20


class Start(NamedTuple):
    """Seconds from the start of the process to the first answer, and bytes in memory after it."""

    seconds: float
    held: int
    anonymous: int


def start(folder: Path, open_engine: OpenEngine, text: str) -> Start:
    drop_pages(folder)
    began = time.monotonic()
    with serving(folder / "heed", open_engine, self_check=open_engine is Supervisor) as port:
        body = {"source": text, "max_new_tokens": NEW_TOKENS}
        url = f"http://127.0.0.1:{port}/v1/decode"
        httpx2.post(url, json=body, timeout=60).raise_for_status()
        seconds = time.monotonic() - began
        (process,) = active_children()
        assert process.pid
        memory = memory_of(process.pid)
    return Start(seconds, memory.held, memory.anonymous)


def drop_pages(folder: Path) -> None:
    """Let the system forget what it holds of the files."""
    os.sync()  # only written pages can be dropped
    for path in filter(Path.is_file, folder.rglob("*")):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(folder: Path, text: str, turns: int) -> list[list[str]]:
    """Return a line of medians for each system. `write_models` has written `folder`."""
    # Not above: the servers' processes import this module too
    from benchmarks.kit.translating import Translating

    systems: Mapping[str, OpenEngine] = {
        "Heed": Supervisor,
        "CTranslate2": partial(Supervisor, open_engine=Translating),
    }
    starts: dict[str, list[Start]] = {system: [] for system in systems}
    for _ in range(turns):
        for system, open_engine in systems.items():
            starts[system].append(start(folder, open_engine, text))
    lines: list[list[str]] = []
    for system, found in starts.items():
        seconds, held, anonymous = map(statistics.median, zip(*found, strict=True))
        lines.append([system, f"{seconds:.1f}", f"{held / MIB:.0f}", f"{anonymous / MIB:.0f}"])
    return lines


def main(turns: Annotated[int, typer.Option(help="Starts of each system")] = 5) -> None:
    """Print seconds and memory, medians of the turns."""
    from benchmarks.kit.models import MARIAN, SENTENCES, like_the_default, with_words, write_models
    from model.export.files.manifest import Precision

    sentences = SENTENCES.read_text(encoding="utf-8").splitlines()
    models = {
        "default": (like_the_default, "knight"),
        "Marian": (partial(with_words, MARIAN.config, sentences), sentences[0]),
    }
    rows: list[list[str]] = []
    for name, (make, text) in models.items():
        with tempfile.TemporaryDirectory() as work:
            write_models(make(), Path(work), Precision.int8)
            rows += [[name, *line] for line in measure(Path(work), text, turns)]
    typer.echo(f"{machine_line(describe_machine())}\n\n{table(COLUMNS, rows)}")


if __name__ == "__main__":
    typer.run(main)
