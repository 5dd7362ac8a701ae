"""Send more requests than the service can answer.

Requests of mixed kinds arrive at random times, each on a connection of its own, at multiples of
what a closed loop of 24 clients gets answered. Answers are compared with those that the same
requests get alone.
"""

import asyncio
import json
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import typer

from benchmarks.http_client import ask
from benchmarks.load import WORDS
from benchmarks.memory import memory_of, read_status
from benchmarks.serving import serving
from service.settings import DEFAULT_BUNDLE

CLIENTS = 24
BATCH = [WORDS[i % len(WORDS)] for i in range(32)]
KINDS: list[tuple[int, str, dict[str, Any]]] = [  # share in percent, path, body without a word
    (60, "/v1/decode", {}),
    (12, "/v1/decode", {"source": BATCH}),
    (10, "/v1/decode", {"beam_size": 8}),
    (8, "/v1/score", {"target": "HH IY1 D"}),
    (5, "/v1/decode", {"attention": {"kinds": ["encoder", "decoder", "cross"]}}),
    (5, "/v1/encode", {}),
]
TOLERANCE = 1e-4  # of a log-prob, weight or number of a vector
PROBE_EVERY = 0.25  # seconds
MOST_OPEN = 8000  # connections of the client at once; later arrivals are counted, but not sent
PAUSE = 5.0  # seconds after a load, before the memory is looked at
RECOVERED = 0.5  # seconds within which a word is answered again
Request = tuple[str, bytes]


@dataclass(slots=True)
class Outcome:
    """What became of the requests of one load. Times are in seconds."""

    sent: int = 0
    unsent: int = 0  # arrivals for which the client had no connection left
    statuses: Counter[int] = field(default_factory=Counter[int])
    wrong: int = 0
    without_retry: int = 0  # refusals that do not say when to come back
    words: list[float] = field(default_factory=list[float])  # until a single word was answered
    refusals: list[float] = field(default_factory=list[float])
    probes: dict[str, list[tuple[int, float]]] = field(
        default_factory=lambda: {"/livez": [], "/readyz": []}
    )
    goodput: float = 0.0  # right answers a second while requests arrived
    recovery: float = 0.0
    memory: list[int] = field(default_factory=list[int])  # of the service, before and after


def draw(chance: random.Random) -> Request:
    _, path, changes = chance.choices(KINDS, [share for share, *_ in KINDS])[0]
    body = {"source": chance.choice(WORDS), **changes}
    return path, json.dumps(body).encode()


def is_right(content: bytes, expected: Any) -> bool:
    try:
        return agree(json.loads(content), expected)
    except ValueError:  # the answer was cut off
        return False


def agree(answer: Any, expected: Any) -> bool:
    """Return whether two JSON documents are equal, except that numbers may differ by TOLERANCE."""
    if isinstance(expected, float):
        return isinstance(answer, float) and abs(answer - expected) <= TOLERANCE
    if isinstance(expected, list):
        return len(answer) == len(expected) and all(map(agree, answer, expected))
    if isinstance(expected, dict):
        return answer.keys() == expected.keys() and all(
            agree(answer[name], value) for name, value in expected.items()
        )
    return answer == expected


class Load:
    """One run against a service, whose right answers `expected` collects."""

    def __init__(self, port: int, expected: dict[Request, Any]) -> None:
        self.port = port
        self.expected = expected
        self.words = {("/v1/decode", json.dumps({"source": word}).encode()) for word in WORDS}
        self.outcome = Outcome()

    async def request(self, chosen: Request) -> bool:
        """Send a request and count its outcome. Return whether it was answered rightly."""
        began = time.perf_counter()
        status, headers, content = await ask(self.port, *chosen)
        seconds, found = time.perf_counter() - began, self.outcome
        found.statuses[status] += 1
        if status == 200:
            right = is_right(content, self.expected[chosen])
            found.wrong += not right
            if chosen in self.words:
                found.words.append(seconds)
            return right
        if status == 429:
            found.refusals.append(seconds)
            found.without_retry += "retry-after" not in headers
        return False

    async def closed(self, seconds: float, clients: int) -> float:
        """Return right answers a second to clients that ask again as soon as they are answered."""
        chance, until, right = random.Random(0), time.perf_counter() + seconds, 0

        async def client() -> None:
            nonlocal right
            while time.perf_counter() < until:
                answered = await self.request(draw(chance))
                right += answered

        await asyncio.gather(*(client() for _ in range(clients)))
        return right / seconds

    async def open(self, seconds: float, rate: float) -> None:
        chance, arrival, right = random.Random(1), 0.0, 0
        began, tasks = time.perf_counter(), set[asyncio.Task[bool]]()

        def count(task: asyncio.Task[bool]) -> None:
            nonlocal right
            tasks.discard(task)
            if time.perf_counter() - began <= seconds:
                right += task.result()

        probing = asyncio.create_task(self.probe_regularly())
        while (arrival := arrival + chance.expovariate(rate)) < seconds:
            await asyncio.sleep(max(0.0, began + arrival - time.perf_counter()))
            if len(tasks) >= MOST_OPEN:
                self.outcome.unsent += 1
            else:
                self.outcome.sent += 1
                tasks.add(task := asyncio.create_task(self.request(draw(chance))))
                task.add_done_callback(count)
        self.outcome.goodput = right / seconds
        probing.cancel()
        await self.recover()
        await asyncio.gather(*tasks)

    async def probe_regularly(self) -> None:
        async with asyncio.TaskGroup() as probes:
            while True:
                await asyncio.sleep(PROBE_EVERY)
                for path, found in self.outcome.probes.items():
                    probes.create_task(self.probe(path, found))

    async def probe(self, path: str, found: list[tuple[int, float]]) -> None:
        began = time.perf_counter()
        status, *_ = await ask(self.port, path, None)
        found.append((status, time.perf_counter() - began))

    async def recover(self) -> None:
        """Measure how long it takes until a word is answered within RECOVERED seconds."""
        ended = time.perf_counter()
        while True:
            began = time.perf_counter()
            status, *_ = await ask(self.port, "/v1/decode", b'{"source": "heed"}')
            if status == 200 and time.perf_counter() - began < RECOVERED:
                break
            await asyncio.sleep(0.05)
        self.outcome.recovery = time.perf_counter() - ended


def expect(port: int) -> dict[Request, Any]:
    """Return the right answer to every request that can be drawn: each is sent alone."""
    requests = {
        (path, json.dumps({"source": word, **changes}).encode())
        for _, path, changes in KINDS
        for word in WORDS
    }

    async def send_all() -> dict[Request, Any]:
        return {each: json.loads((await ask(port, *each))[2]) for each in requests}

    return asyncio.run(send_all())


def measure(factors: Sequence[float], seconds: float) -> tuple[float, dict[float, Outcome]]:
    """Return the capacity in requests a second, and the outcome at each multiple of it."""
    found: dict[float, Outcome] = {}
    with serving(DEFAULT_BUNDLE) as port:
        expected = expect(port)
        capacity = asyncio.run(Load(port, expected).closed(min(10.0, seconds), CLIENTS))
        typer.echo(f"capacity {capacity:.0f}/s")
        for factor in factors:
            load = Load(port, expected)
            load.outcome.memory.append(memory_of_service())
            asyncio.run(load.open(seconds, factor * capacity))
            time.sleep(PAUSE)
            load.outcome.memory.append(memory_of_service())
            found[factor] = load.outcome
            typer.echo(" | ".join(columns(factor, capacity, load.outcome)))
    return capacity, found


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
    "right answers/s, of capacity",
    "word, p50 and p99",
    "refusal, p50 and max",
    "/livez p99",
    "/readyz 200",
    "recovery",
    "MB before and after",
]


def columns(factor: float, capacity: float, found: Outcome) -> list[str]:
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
        f"{found.goodput:.0f} ({found.goodput / capacity:.0%})",
        " and ".join(seconds_of(found.words, each) for each in (0.5, 0.99)),
        " and ".join(seconds_of(found.refusals, each) for each in (0.5, 1.0)),
        seconds_of(live, 0.99),
        f"{sum(ready)}/{len(ready)}",
        f"{found.recovery:.1f} s",
        " and ".join(f"{held / 1e6:.0f}" for held in found.memory),
    ]


def seconds_of(times: Sequence[float], share: float) -> str:
    if len(times) < 2:
        return "-"
    if share == 1:
        return f"{max(times):.2f} s"
    return f"{statistics.quantiles(times, n=100)[round(100 * share) - 1]:.2f} s"
