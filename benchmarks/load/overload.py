"""Send more requests than the service can answer: python -m benchmarks.load.overload

Requests of mixed kinds arrive at random times, each on a connection of its own, at multiples of
what a closed loop of 24 clients gets answered just before. Answers are compared with those that
the same requests get alone.
"""

import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from benchmarks.kit.http_client import PATIENCE
from benchmarks.kit.memory import cpu_seconds_of, family, memory_of, read_status
from benchmarks.kit.raw_client import RawClient, status_of, write_request
from benchmarks.kit.serving import serving
from benchmarks.load.load import WORDS
from benchmarks.load.mixed_requests import Judge, draw_requests, write_body
from service.settings.settings import DEFAULT_BUNDLE

CLIENTS = 24
DRAWN = 10_000  # requests that are sent again and again: to draw one costs as much as to send it
PROBE_EVERY = 0.25  # seconds
PROBES = {path: write_request(path, None) for path in ("/livez", "/readyz")}
PROBED = write_request("/v1/decode", b'{"source": "heed"}')  # how the end of an overload is seen
MOST_OPEN = 8000  # connections of the client at once; later arrivals are counted, but not sent
PAUSE = 5.0  # seconds after a load, before the memory is looked at
RECOVERED = 0.5  # seconds within which a word is answered again
PROCESSES = ("client", "HTTP", "engine")


@dataclass(slots=True)
class Outcome:
    """The fate of the requests of one load. Times are in seconds."""

    sent: int = 0
    unsent: int = 0  # arrivals for which the client had no connection or no time left
    statuses: Counter[int] = field(default_factory=Counter[int])
    wrong: int = 0
    without_retry: int = 0  # refusals that do not say when to come back
    words: list[float] = field(default_factory=list[float])  # until a single word was answered
    refusals: list[float] = field(default_factory=list[float])
    probes: dict[str, list[tuple[int, float]]] = field(
        default_factory=lambda: {path: [] for path in PROBES}
    )
    goodput: float = 0.0  # right answers a second while requests arrived
    recovery: float = 0.0
    memory: list[int] = field(default_factory=list[int])  # of the service, before and after
    cpu: list[float] = field(default_factory=list[float])  # cores in use, of each of PROCESSES


class LoadRun:
    """One run against a service."""

    def __init__(self, port: int, judge: Judge) -> None:
        self.judge = judge
        self.client = RawClient(port)
        self.words = {write_request("/v1/decode", write_body(word, {})) for word in WORDS}
        self.outcome = Outcome()
        self.right = 0

    def request(self, request: bytes) -> None:
        """Send a request. When it is answered, count its outcome."""

        def ended(seconds: float, answer: bytes) -> None:
            status, found = status_of(answer), self.outcome
            found.statuses[status] += 1
            head, _, content = answer.partition(b"\r\n\r\n")
            if status == 429:
                found.refusals.append(seconds)
                found.without_retry += b"retry-after" not in head.lower()
            elif status == 200:
                right = self.judge.is_right(request, content)
                found.wrong += not right
                self.right += right
                if request in self.words:
                    found.words.append(seconds)

        self.client.send(request, ended)

    @contextmanager
    def measured(self) -> Generator[None]:
        began, cpu, right, found = time.perf_counter(), cpu_of_each(), self.right, self.outcome
        yield
        passed = time.perf_counter() - began
        found.goodput = (self.right - right) / passed
        found.cpu = [
            (after - before) / passed for before, after in zip(cpu, cpu_of_each(), strict=True)
        ]

    def closed(self, seconds: float, clients: int) -> None:
        """Let clients ask again as soon as they are answered."""
        requests, until = (
            cycle(draw_requests(random.Random(0), DRAWN)),
            time.perf_counter() + seconds,
        )
        with self.measured():
            while time.perf_counter() < until:
                for _ in range(clients - len(self.client)):
                    self.request(next(requests))
                self.client.wait(until)
        self.client.drain(PATIENCE)

    def open(self, seconds: float, rate: float) -> None:
        """Let requests arrive at random times. Then wait until the service answers as before."""
        chance = random.Random(1)
        requests = cycle(draw_requests(chance, DRAWN))
        with self.measured():
            self.arrive(seconds, rate, chance, requests)
        self.recover()
        self.client.drain(PATIENCE)

    def arrive(
        self, seconds: float, rate: float, chance: random.Random, requests: Iterator[bytes]
    ) -> None:
        arrival, found = 0.0, self.outcome
        began, probed = time.perf_counter(), 0.0
        while (arrival := arrival + chance.expovariate(rate)) < seconds:
            self.client.wait_until(began + arrival)
            passed = time.perf_counter() - began
            if passed - probed >= PROBE_EVERY:
                probed = passed
                self.probe()
            if len(self.client) >= MOST_OPEN or passed >= seconds:
                found.unsent += 1
            else:
                found.sent += 1
                self.request(next(requests))

    def probe(self) -> None:
        for path, request in PROBES.items():
            found = self.outcome.probes[path]
            self.client.send(
                request,
                lambda seconds, answer, found=found: found.append((status_of(answer), seconds)),
            )

    def recover(self) -> None:
        """Measure how long it takes until a word is answered within RECOVERED seconds."""
        ended, answers = time.perf_counter(), list[bool]()

        def count(seconds: float, answer: bytes) -> None:
            answers.append(status_of(answer) == 200 and seconds < RECOVERED)

        while not any(answers):
            self.client.send(PROBED, count)
            self.client.wait_until(time.perf_counter() + 0.05)
        self.outcome.recovery = time.perf_counter() - ended


class Overload(NamedTuple):
    """The outcome of a load, and those of the closed loops just before and after it, since the
    speed of a machine changes."""

    factor: float
    closed: tuple[Outcome, Outcome]
    found: Outcome

    @property
    def capacity(self) -> float:
        """Right answers a second in the closed loops."""
        return statistics.mean(each.goodput for each in self.closed)


def measure(factors: Sequence[float], seconds: float) -> list[Overload]:
    """Return the outcome at each multiple of the capacity, which the loop before it measured."""
    rows: list[Overload] = []
    with serving(DEFAULT_BUNDLE) as port:
        judge = Judge(port)

        def closed() -> Outcome:
            load = LoadRun(port, judge)
            load.closed(seconds / 2, CLIENTS)
            return load.outcome

        before = closed()
        for factor in factors:
            load = LoadRun(port, judge)
            load.outcome.memory.append(memory_of_service())
            load.open(seconds, factor * before.goodput)
            time.sleep(PAUSE)
            load.outcome.memory.append(memory_of_service())
            after = closed()
            rows.append(Overload(factor, (before, after), load.outcome))
            typer.echo(" | ".join(columns(rows[-1])))
            before = after
    return rows


def cpu_of_each() -> list[float]:
    """Return the seconds of CPU time of each of PROCESSES."""
    spent = dict.fromkeys(PROCESSES, 0.0)
    for pid in family(os.getpid()):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        server = "engine" if b"service.engine" in command else "HTTP"
        spent["client" if pid == os.getpid() else server] += cpu_seconds_of(pid)
    return [*spent.values()]


def memory_of_service() -> int:
    """Return the bytes held by all processes that this one started."""
    return memory_of(os.getpid()).held - read_status(os.getpid()).held


COLUMNS = [
    "overload",
    "sent",
    "200",
    "wrong",
    "429",
    "other",
    "capacity/s, before and after",
    "right answers/s, of capacity",
    "right answers by the service's CPU time, of capacity",
    "word, p50 and p99",
    "refusal, p50 and max",
    "/livez p99",
    "/readyz 200",
    "recovery",
    "MB before and after",
    "cores in use: " + ", ".join(PROCESSES),
]


def efficiency(found: Outcome) -> float:
    """Return right answers for each second of the service's CPU time."""
    return found.goodput / sum(found.cpu[PROCESSES.index("client") + 1 :])


def columns(row: Overload) -> list[str]:
    factor, closed, found = row
    others = sum(found.statuses.values()) - found.statuses[200] - found.statuses[429]
    live = [seconds for _, seconds in found.probes["/livez"]]
    ready = [status == 200 for status, _ in found.probes["/readyz"]]
    return [
        f"{factor:g} x",
        f"{found.sent:,}" + (f" of {found.sent + found.unsent:,}" if found.unsent else ""),
        f"{found.statuses[200]:,}",
        str(found.wrong),
        f"{found.statuses[429]:,}",
        str(others),
        " and ".join(f"{each.goodput:.0f}" for each in closed),
        f"{found.goodput:.0f} ({found.goodput / row.capacity:.0%})",
        f"{efficiency(found) / statistics.mean(map(efficiency, closed)):.0%}",
        " and ".join(seconds_of(found.words, each) for each in (0.5, 0.99)),
        " and ".join(seconds_of(found.refusals, each) for each in (0.5, 1.0)),
        seconds_of(live, 0.99),
        f"{sum(ready)}/{len(ready)}",
        f"{found.recovery:.1f} s",
        " and ".join(f"{held / 1e6:.0f}" for held in found.memory),
        ", ".join(f"{cores:.2f}" for cores in found.cpu),
    ]


def seconds_of(times: Sequence[float], share: float) -> str:
    if len(times) < 2:
        return "-"
    if share == 1:
        return f"{max(times):.2f} s"
    return f"{statistics.quantiles(times, n=100)[round(100 * share) - 1]:.2f} s"


def main(
    seconds: Annotated[float, typer.Option(help="Duration of each load")] = 30.0,
    factors: Annotated[str, typer.Option(help="Multiples of the capacity")] = "2,4,6,10",
) -> None:
    """Measure the default model under overload, and print a row for each load."""
    typer.echo(" | ".join(COLUMNS))
    measure([float(each) for each in factors.split(",")], seconds)


if __name__ == "__main__":
    typer.run(main)
