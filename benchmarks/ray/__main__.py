"""Compare two replicas on Ray Serve with one: python -m benchmarks.ray

Each computes with one thread. Both applications run all the time and are asked in turns, so that a
slow moment of the machine hits both. Needs the extras ray and model, and two cores: two threads of
one core do not compute twice as much as one. Words show what Ray costs; sentences take long enough
to compute that two replicas must answer GATE times as many requests as one: else it exits with 1.
"""

import asyncio
import contextlib
import json
import random
import statistics
import string
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from benchmarks.kit.document import describe_machine, machine_line
from benchmarks.kit.http_client import ask
from benchmarks.kit.memory import cpu_seconds_of
from benchmarks.kit.models import BASE, lettered
from benchmarks.load.load import WORDS
from benchmarks.ray.cluster import Cluster, application
from model.export.bundle import WeightType, write_bundle
from model.export.files.manifest import Card, Precision
from service.settings.settings import DEFAULT_BUNDLE

GATE = 1.7
CLIENTS = 8
WARM_UP = 3.0  # seconds
NUM_SENTENCES = 32
REPLICAS = {"one": 1, "two": 2}


class Turn(NamedTuple):
    """Answers a second, and seconds of processor time for an answer."""

    rate: float
    cpu: float


class Workload(NamedTuple):
    name: str
    bundle: Path
    body: bytes


def main(
    seconds: Annotated[float, typer.Option(help="Seconds of a turn")] = 10.0,
    turns: Annotated[int, typer.Option(help="Turns of each")] = 6,
) -> None:
    """Measure, print a line for each workload, and exit with 1 if sentences are below the gate."""
    ratio = 0.0
    with tempfile.TemporaryDirectory() as work:
        for number, workload in enumerate([words(), sentences(Path(work) / "base")]):
            folder = Path(work) / str(number)
            folder.mkdir()
            cluster = Cluster(folder, cores=sum(REPLICAS.values()))
            try:
                found = measure_both(cluster, workload, seconds, turns)
            finally:
                cluster.close()
            ratio = statistics.median(
                two.rate / one.rate for one, two in zip(found["one"], found["two"], strict=True)
            )
            typer.echo(
                f"{workload.name}: two replicas {ratio:.2f} times one; {describe_turns(found)}"
            )
    typer.echo(f"{machine_line(describe_machine())}, ray {version('ray')}")
    raise typer.Exit(ratio < GATE)  # of sentences, the last


def words() -> Workload:
    """Return requests to the default model."""
    body = {"source": WORDS[:32], "beam_size": 4}
    return Workload("32 words, 4 beams", DEFAULT_BUNDLE, json.dumps(body).encode())


def sentences(bundle: Path) -> Workload:
    """Return requests to a random model of the size of a translator, which is written here."""
    card = Card(name="base", task="-", licence="CC0-1.0", attribution="-", notice="-")
    write_bundle(lettered(BASE.config), card, WeightType.fp32, bundle, Precision.int8)
    chance, letters = random.Random(0), string.ascii_lowercase  # a letter is a token
    sources = ["".join(chance.choices(letters, k=BASE.length)) for _ in range(NUM_SENTENCES)]
    body = {"source": sources, "max_new_tokens": BASE.length}
    return Workload(f"{NUM_SENTENCES} sentences", bundle, json.dumps(body).encode())


def measure_both(
    cluster: Cluster, workload: Workload, seconds: float, turns: int
) -> dict[str, list[Turn]]:
    """Return the turns of each application. Raise RuntimeError if one is not deployed."""
    status, messages = cluster.deploy(
        *(
            {
                **application(
                    {"num_replicas": count}, root_path=f"/{name}", bundles=str(workload.bundle)
                ),
                "name": name,
                "route_prefix": f"/{name}",
            }
            for name, count in REPLICAS.items()
        )
    )
    if status != "RUNNING":
        raise RuntimeError(f"the applications are {status}: {messages}")
    for name in REPLICAS:
        measure(cluster, name, workload.body, WARM_UP)
    found: dict[str, list[Turn]] = {name: [] for name in REPLICAS}
    for _ in range(turns):
        for name in REPLICAS:
            found[name].append(measure(cluster, name, workload.body, seconds))
    return found


def measure(cluster: Cluster, name: str, body: bytes, seconds: float) -> Turn:
    """Ask for `seconds`, with CLIENTS clients. Raise RuntimeError for an answer but 200."""
    count = 0

    async def client(until: float) -> None:
        nonlocal count
        while time.perf_counter() < until:
            status, _, content = await ask(cluster.port, f"/{name}/v1/decode", body)
            if status != 200:
                raise RuntimeError(f"{name} answers {status}: {content[:500]!r}")
            count += 1

    async def clients() -> None:
        until = time.perf_counter() + seconds
        await asyncio.gather(*(client(until) for _ in range(CLIENTS)))

    before, began = processor_time(cluster.processes()), time.perf_counter()
    asyncio.run(clients())
    elapsed = time.perf_counter() - began
    return Turn(count / elapsed, (processor_time(cluster.processes()) - before) / count)


def processor_time(pids: Sequence[int]) -> float:
    """Return the seconds of processor time that these processes have used."""
    seconds = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):  # it has just ended
            seconds += cpu_seconds_of(pid)
    return seconds


def describe_turns(found: dict[str, list[Turn]]) -> str:
    """Return the medians of both, wall and processor time."""
    return ", ".join(
        f"{name} {statistics.median(turn.rate for turn in measured):.2f} answers/s with"
        f" {statistics.median(turn.cpu for turn in measured):.3f} CPU seconds each"
        for name, measured in found.items()
    )


if __name__ == "__main__":
    typer.run(main)
