"""Send very many short requests, and see what grows: python -m benchmarks.load.soak

CLIENTS connections send words, one after the other; every FRESH-th request has a connection of its
own. Memory of both processes is looked at after every tenth of the requests. The first two tenths
warm up. The numbers go to docs/soak.json; `paragraph` says them in docs/reliability.md.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks.kit.document import describe_machine
from benchmarks.kit.memory import memory_of, read_status
from benchmarks.kit.serving import serving
from benchmarks.load.load import WORDS
from benchmarks.speed.report import DOCS
from service.settings.settings import DEFAULT_BUNDLE

CLIENTS = 8
FRESH = 50
TENTHS, WARM = 10, 2  # samples of a run, and those of its warm-up
GROWTH = 0.02  # of memory
DRIFT = 0.1  # of the median latency
KINDS = [{}, {"beam_size": 4}, {"temperature": 1.0}, {"attention": {}}, {"stream": True}]
SHARES = [80, 8, 5, 4, 3]  # of the kinds, in percent


class Sample(NamedTuple):
    """One tenth of a run: the bytes that the HTTP process and the engine hold at its end, seconds
    of a request at its quantiles, and requests in a second."""

    http: int
    engine: int
    p50: float
    p99: float
    rate: float


def requests() -> Iterator[bytes]:
    """Yield the requests over and over. They mix words with kinds in a fixed order."""
    kinds = [kind for kind, share in zip(KINDS, SHARES, strict=True) for _ in range(share)]
    number = 0
    while True:
        kind = kinds[number * 37 % len(kinds)]  # 37 and 100 have no common divisor
        body = json.dumps({"source": WORDS[number % len(WORDS)], **kind}).encode()
        number += 1
        head = "POST /v1/decode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        close = "Connection: close\r\n" if number % FRESH == 0 else ""
        yield f"{head}{close}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Answers(asyncio.Protocol):
    """Reads one answer at a time. `done` gets whether it was 200 and complete."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.done: asyncio.Future[bool] | None = None

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.done and not self.done.done() and is_complete(self.received):
            self.done.set_result(self.received.startswith(b"HTTP/1.1 200 "))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self.done and not self.done.done():
            self.done.set_result(False)


def is_complete(received: bytearray) -> bool:
    """Return whether these bytes, which begin with the head of an answer, hold all of it."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return False
    place = received.find(b"content-length: ", 0, end)
    if place < 0:
        return received.endswith(b"0\r\n\r\n")  # of a stream, whose lines of JSON end otherwise
    length = int(received[place + 16 : received.index(b"\r", place)])
    return len(received) >= end + 4 + length


class Soak:
    """The clients of one run, which share the requests and the seconds that they took."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests = requests()
        self.seconds: list[float] = []
        self.failed = 0

    async def client(self, left: Iterator[int]) -> None:
        transport, answers = await self.connect()
        for _ in left:
            sent = next(self.requests)
            began = time.perf_counter()
            answers.received.clear()
            answers.done = asyncio.get_running_loop().create_future()
            transport.write(sent)
            self.failed += not await answers.done
            self.seconds.append(time.perf_counter() - began)
            if b"\r\nConnection: close\r\n" in sent or transport.is_closing():
                transport.close()
                transport, answers = await self.connect()
        transport.close()

    async def connect(self) -> tuple[asyncio.Transport, Answers]:
        loop = asyncio.get_running_loop()
        return await loop.create_connection(Answers, "127.0.0.1", self.port)

    def tenth(self, count: int) -> Sample:
        """Send `count` requests and return their sample."""

        async def clients() -> None:
            left = iter(range(count))
            await asyncio.gather(*(self.client(left) for _ in range(CLIENTS)))

        self.seconds.clear()
        began = time.perf_counter()
        asyncio.run(clients())
        rate = count / (time.perf_counter() - began)
        quantiles = statistics.quantiles(self.seconds, n=100)
        return Sample(*memory_of_processes(), quantiles[49], quantiles[98], rate)


def memory_of_processes() -> tuple[int, int]:
    """Return the bytes that the HTTP process and the engine hold."""
    (server,) = active_children()
    assert server.pid
    http = read_status(server.pid).held
    return http, memory_of(server.pid).held - http


def judge_growth(samples: list[Sample]) -> dict[str, Any]:
    """Return how much memory and latency grew after the warm-up, and whether too much."""
    warm = samples[WARM - 1 :]
    grown = {
        name: getattr(warm[-1], name) / getattr(warm[0], name) - 1 for name in ("http", "engine")
    }
    half = len(warm) // 2
    early, late = (
        statistics.median(each.p50 for each in part) for part in (warm[:half], warm[half:])
    )
    drift = late / early - 1
    grew, drifted = max(grown.values()) > GROWTH, drift > DRIFT
    return {"grown": grown, "drift": drift, "memory_grew": grew, "latency_drifted": drifted}


def soak(port: int, count: int) -> dict[str, Any]:
    """Send `count` requests and return what was measured."""
    run, samples = Soak(port), list[Sample]()
    for number in range(TENTHS):
        samples.append(run.tenth(count // TENTHS))
        last = samples[-1]
        typer.echo(
            f"{(number + 1) * count // TENTHS:,}: {last.http / 1e6:.1f} and"
            f" {last.engine / 1e6:.1f} MB, p50 {1000 * last.p50:.1f} ms,"
            f" p99 {1000 * last.p99:.1f} ms, {last.rate:.0f}/s"
        )
    found = {
        "requests": count,
        "failed": run.failed,
        "samples": [each._asdict() for each in samples],
    }
    return {"machine": describe_machine(), **found, **judge_growth(samples)}


def paragraph(found: dict[str, Any]) -> str:
    """Return what docs/reliability.md says about a run."""
    first, last = found["samples"][WARM - 1], found["samples"][-1]
    share = WARM / TENTHS
    return (
        f"`python -m benchmarks.load.soak` sent {found['requests']:,} short requests over {CLIENTS}"
        f" connections (cpu {found['machine']['cpu']}), of which every {FRESH}th was closed and"
        f" opened anew; {found['failed']} of"
        f" them failed. From the first {share:.0%} of them, a warm-up, to the end, the HTTP process"
        f" grew from {first['http'] / 1e6:.1f} to {last['http'] / 1e6:.1f} MB"
        f" ({found['grown']['http']:+.1%}) and the engine from {first['engine'] / 1e6:.1f} to"
        f" {last['engine'] / 1e6:.1f} MB ({found['grown']['engine']:+.1%}). The median latency"
        f" changed by {found['drift']:+.0%}, to {1000 * last['p50']:.1f} ms.\n"
    )


def main(
    count: Annotated[int, typer.Option("--requests", help="How many requests")] = 1_000_000,
    docs: Annotated[Path, typer.Option(help="Folder for soak.json")] = DOCS,
) -> None:
    """Measure the default model over very many requests. Exit with 1 if it grew or failed."""
    with serving(DEFAULT_BUNDLE) as port:
        found = soak(port, count)
    (docs / "soak.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    typer.echo(paragraph(found))
    bad = found["memory_grew"] or found["latency_drifted"] or found["failed"]
    raise typer.Exit(bool(bad))


if __name__ == "__main__":
    typer.run(main)
