"""HTTP load on two servers: Heed, and CTranslate2 behind the same application.

Requests of one word, or of one sentence, arrive at random times (a Poisson process), whether or not
earlier ones have been answered. A latency starts at the arrival, so that it includes waiting for a
connection.
"""

import asyncio
import gc
import random
import statistics
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from benchmarks.kit.http_client import Client, Refused
from benchmarks.kit.process import Call, Running
from benchmarks.kit.results import Latencies, Load, LoadRow, OpenLoop, Server, Streams
from benchmarks.kit.serving import serving
from benchmarks.kit.systems import heed_system
from benchmarks.kit.translating import Translating
from service.bundle.manifest import load_bundle
from service.serving.supervisor import Supervisor
from service.text.opening import open_tokenizers

NEW_TOKENS = 8
SUBJECT = f"""Both servers run one model with random weights, which never ends a target: each word
becomes {NEW_TOKENS} tokens. It has the sizes and tokenizers of the default model, which needs 6
tokens on average for these words. It has no rotary positions, because CTranslate2 cannot combine
them with sinusoidal ones."""
SHARES = (0.3, 0.6, 0.8, 0.95)  # shares of the rate that the slower server can answer
STREAMED = 0.8  # share of the streams that Heed can answer
MOST = 4000  # requests in progress on each server; more are refused
TURNS = 4
CONNECTIONS = 32  # connections used to find how much a server can answer
WORDS = (Path(__file__).parents[2] / "tests" / "words.txt").read_text().split()
Ports = Mapping[Server, int]
T = TypeVar("T")


class Asked(NamedTuple):
    """What requests send: one of these texts, to be decoded to so many tokens."""

    texts: Sequence[str]
    new_tokens: int


ONE_WORD = Asked(WORDS, NEW_TOKENS)


def measure_load(folder: Path, seconds: float, shares: Sequence[float] = SHARES) -> Load:
    """Measure each load for `seconds` on each server. `write_models` has written `folder`."""
    with both_served(folder) as ports:
        saturation = measure_saturation(ports, seconds)
        slower = min(saturation.values())
        loads = [measure_share(ports, seconds, share, slower) for share in shares]
        streams = measure_streams(ports["Heed"], seconds)
        alone = measure_alone(ports, seconds)
    return {
        "subject": SUBJECT,
        "saturation": saturation,
        "loads": loads,
        "streams": streams,
        "one_connection_ms": alone,
        "engine_ms": measure_engine(folder, seconds / 2),
    }


@contextmanager
def both_served(folder: Path) -> Generator[Ports]:
    translating = partial(Supervisor, open_engine=Translating)
    with (
        serving(folder / "heed", max_requests=MOST) as ours,
        serving(folder / "heed", translating, max_requests=MOST) as theirs,
    ):
        yield {"Heed": ours, "CTranslate2": theirs}


def measure_saturation(
    ports: Ports, seconds: float, asked: Asked = ONE_WORD
) -> dict[Server, float]:
    """Return how many requests a second each server can answer."""
    latencies = alternate(ports, seconds, CONNECTIONS, asked)
    return {name: len(each) / seconds for name, each in latencies.items()}


def measure_alone(ports: Ports, seconds: float, asked: Asked = ONE_WORD) -> dict[Server, float]:
    """Return the median milliseconds of a request while no other connection works."""
    latencies = alternate(ports, seconds, 1, asked)
    return {name: 1000 * statistics.median(each) for name, each in latencies.items()}


def alternate(
    ports: Ports, seconds: float, connections: int, asked: Asked
) -> dict[Server, list[float]]:
    """Return the latencies of a closed loop on each server.

    Servers alternate in TURNS turns, so that a slow moment of the machine hits all. Each runs for
    `seconds` in total.
    """
    latencies: dict[Server, list[float]] = {name: [] for name in ports}
    for _ in range(TURNS):
        for name, port in ports.items():
            for lasts in (min(0.3, seconds / TURNS), seconds / TURNS):  # the first warms up
                found = run_without_pauses(closed_loop(port, lasts, connections, asked))
            latencies[name] += found
    return latencies


def measure_share(
    ports: Ports, seconds: float, share: float, slower: float, asked: Asked = ONE_WORD
) -> LoadRow:
    rate = share * slower
    return {
        "share": share,
        "Heed": run_without_pauses(open_loop(ports["Heed"], seconds, rate, asked)),
        "CTranslate2": run_without_pauses(open_loop(ports["CTranslate2"], seconds, rate, asked)),
    }


def measure_streams(port: int, seconds: float) -> Streams:
    saturation = (
        len(run_without_pauses(closed_loop(port, seconds, CONNECTIONS, stream=True))) / seconds
    )
    first, gaps, refused = run_without_pauses(open_streams(port, seconds, STREAMED * saturation))
    return {
        "saturation": saturation,
        "rate": STREAMED * saturation,
        "refused": refused,
        "first": percentiles(first),
        "next": percentiles(gaps),
    }


def measure_engine(folder: Path, seconds: float) -> float:
    """Return the median milliseconds of one word without HTTP."""
    tokenizer, _ = open_tokenizers(load_bundle(folder / "heed"))
    sources = [tokenizer.encode(word, "/").ids for word in WORDS]
    random_, times = random.Random(0), list[float]()
    engine = Running(heed_system("int8"), folder)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        times.append(engine(Call([random_.choice(sources)], 1, NEW_TOKENS)).seconds)
    engine.close()
    return 1000 * statistics.median(times)


def run_without_pauses(coroutine: Coroutine[Any, Any, T]) -> T:
    with without_pauses():
        return asyncio.run(coroutine)


@contextmanager
def without_pauses() -> Generator[None]:
    """Stop the garbage collector, whose pauses would count as latency."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def closed_loop(
    port: int, seconds: float, connections: int, asked: Asked = ONE_WORD, *, stream: bool = False
) -> list[float]:
    """Return the seconds of each answer. Each connection asks again as soon as it is answered."""
    random_, until = random.Random(0), time.perf_counter() + seconds
    latencies: list[float] = []
    async with Client(port, asked.new_tokens) as client:
        ask = client.stream if stream else client.decode

        async def ask_again() -> None:
            while (started := time.perf_counter()) < until:
                await ask(random_.choice(asked.texts))
                answered = time.perf_counter()
                if answered < until:  # later answers would count in a rate over `seconds`
                    latencies.append(answered - started)

        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(ask_again())
    return latencies


async def arrive(
    ask: Callable[[str, float], Coroutine[Any, Any, None]],
    seconds: float,
    rate: float,
    texts: Sequence[str],
) -> float:
    """Start `rate` requests a second; each gets a text and the moment of its arrival. Return the
    share of requests that the server refuses."""
    random_, arrival = random.Random(1), 0.0
    outcomes: list[asyncio.Task[bool]] = []

    async def is_refused(text: str, arrived: float) -> bool:
        try:
            await ask(text, arrived)
        except Refused:
            return True
        return False

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        while (arrival := arrival + random_.expovariate(rate)) < seconds:
            await asyncio.sleep(max(0.0, started + arrival - time.perf_counter()))
            asking = is_refused(random_.choice(texts), started + arrival)
            outcomes.append(group.create_task(asking))
    return statistics.fmean(each.result() for each in outcomes)


async def open_loop(port: int, seconds: float, rate: float, asked: Asked) -> OpenLoop:
    latencies: list[float] = []
    async with Client(port, asked.new_tokens) as client:

        async def ask(text: str, arrived: float) -> None:
            await client.decode(text)
            latencies.append(time.perf_counter() - arrived)

        started = time.perf_counter()
        refused = await arrive(ask, seconds, rate, asked.texts)
        throughput = len(latencies) / (time.perf_counter() - started)
    return {"rate": rate, "throughput": throughput, "refused": refused, **percentiles(latencies)}


async def open_streams(
    port: int, seconds: float, rate: float
) -> tuple[list[float], list[float], float]:
    """Return seconds from each arrival to the first token, and from each token to the next, and the
    share of the streams that was refused."""
    first: list[float] = []
    gaps: list[float] = []
    async with Client(port, NEW_TOKENS) as client:

        async def ask(word: str, arrived: float) -> None:
            moments = await client.stream(word)
            first.append(moments[0] - arrived)
            gaps.extend(later - sooner for sooner, later in pairwise(moments))

        refused = await arrive(ask, seconds, rate, WORDS)
    return first, gaps, refused


def percentiles(seconds: Sequence[float]) -> Latencies:
    return {
        "p50_ms": 1000 * statistics.median(seconds),
        "p99_ms": 1000 * statistics.quantiles(seconds, n=100)[98],
    }
