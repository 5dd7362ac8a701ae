"""Open-loop HTTP load on the default model: Heed, and CTranslate2 behind the same application.

Requests of one word arrive at random moments (a Poisson process), whether or not earlier ones have
been answered; a latency counts from the moment of arrival, so that waiting for a connection counts.
"""

import asyncio
import contextlib
import gc
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.systems import Call, Running, System, heed
from service import __main__ as server
from service import app
from service.bundle import load_bundle
from service.engine.client import EngineClient
from service.engine.messages import Answer, Entry
from service.search.protocol import Hypothesis
from service.settings import DEFAULT_BUNDLE, Provider, Settings
from service.tokenizer import open_tokenizers

PORTS = {"Heed": 8701, "CTranslate2": 8702}
SHARES = [0.3, 0.6, 0.8, 0.95]  # of what the slower of both answers at most
STREAMED = 0.8  # of the streams that are answered at most
CONNECTIONS = 32  # that ask again at once, to find out how much that is
MOST_TOGETHER = 64  # sources that CTranslate2 decodes together
Way = Callable[[str], Awaitable[Any]]
WORDS = [
    line.strip()
    for line in (Path(__file__).parents[1] / "tests" / "words.txt").read_text().splitlines()
]


class Translating(EngineClient):
    """CTranslate2 in the place of our engine: a worker a core, each of which decodes together all
    that waits when it is free, as servers built on it do."""

    def __init__(self, bundle: Any, settings: Settings) -> None:
        import ctranslate2

        from benchmarks.models import write_ctranslate2
        from model.checkpoint import load_model

        super().__init__(bundle, settings)  # what the application asks of a model
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work) / "ctranslate2"
            write_ctranslate2(load_model(bundle.root).transformer, folder)
            self._translator = ctranslate2.Translator(
                str(folder), compute_type="int8", inter_threads=settings.cores, intra_threads=1
            )
        self._eos_id = bundle.manifest.eos_id
        self._entries: deque[Any] = deque()
        self._more, self._taking = threading.Semaphore(0), threading.Lock()

    async def start(self) -> None:
        await super().start()
        self._loop = asyncio.get_running_loop()
        for _ in range(self._translator.num_translators):
            threading.Thread(target=self._work, daemon=True).start()

    def submit(
        self, entries: Sequence[Entry], on_progress: object = None
    ) -> list["asyncio.Future[Answer]"]:
        del on_progress  # it does not stream
        futures = [self._loop.create_future() for _ in entries]
        self._entries.extend(zip(entries, futures, strict=True))
        self._more.release()
        return futures

    def _work(self) -> None:
        while True:
            self._more.acquire()
            with self._taking:
                count = min(len(self._entries), MOST_TOGETHER)
                together = [self._entries.popleft() for _ in range(count)]
            if together:
                self._translate(together)

    def _translate(self, together: list[Any]) -> None:
        entries = [entry for entry, _ in together]
        results = self._translator.translate_batch(
            [[str(token) for token in entry.source_ids] for entry in entries],
            beam_size=1,
            max_decoding_length=max(
                entry.search.max_new_tokens for entry in entries if entry.search
            ),
            return_end_token=True,
        )
        for entry, result in zip(entries, results, strict=True):
            ids = [int(token) for token in result.hypotheses[0]]
            entry.answer.hypotheses = [Hypothesis(ids, [0.0] * len(ids), "eos")]
        self._loop.call_soon_threadsafe(deliver, together)


def deliver(together: list[Any]) -> None:
    for entry, future in together:
        if not future.done():
            future.set_result(entry.answer)


def serve(name: str) -> None:
    if name == "CTranslate2":
        app.EngineProcess = Translating
    settings = Settings(provider=Provider.cpu, self_check=False, port=PORTS[name])
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        asyncio.run(server.serve(settings))  # its access log goes to stdout


class Client:
    """Connections to one server, each of which carries one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def decode(self, word: str) -> None:
        """Raises ConnectionError unless the answer is 200."""
        reader, writer, headers = await self._ask({"source": word})
        (length,) = (line for line in headers if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        self._idle.append((reader, writer))

    async def stream(self, word: str) -> list[float]:
        """-> when each token came. Raises ConnectionError unless the answer is 200."""
        reader, writer, _ = await self._ask({"source": word, "stream": True})
        moments: list[float] = []
        while (line := await reader.readline()) != b"0\r\n":  # the last of the chunks
            if line.startswith(b"event: token"):
                moments.append(time.perf_counter())
        await reader.readline()
        self._idle.append((reader, writer))
        return moments

    async def _ask(
        self, wanted: dict[str, Any]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, list[bytes]]:
        body = json.dumps(wanted).encode()
        head = (
            "POST /v1/decode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        while self._idle and self._idle[-1][0].at_eof():  # the server closes what idles for long
            self._idle.pop()
        connection = self._idle.pop() if self._idle else None
        reader, writer = connection or await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(head.encode() + body)
        status, *headers = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        if b" 200 " not in status:
            raise ConnectionError(status.decode())
        return reader, writer, headers


async def closed_loop(
    client: Client, seconds: float, connections: int, way: Way | None = None
) -> list[float]:
    """Seconds of each answer, when each connection asks again at once."""
    random_, until = random.Random(0), time.perf_counter() + seconds
    latencies: list[float] = []

    async def ask() -> None:
        while (started := time.perf_counter()) < until:
            await (way or client.decode)(random_.choice(WORDS))
            latencies.append(time.perf_counter() - started)

    await asyncio.gather(*(ask() for _ in range(connections)))
    return latencies


async def arrive(ask: Callable[[str, float], Awaitable[None]], seconds: float, rate: float) -> None:
    """`rate` requests a second, each of which is told when it arrived."""
    random_, arrival = random.Random(1), 0.0
    tasks: list[asyncio.Future[None]] = []
    started = time.perf_counter()
    while (arrival := arrival + random_.expovariate(rate)) < seconds:
        await asyncio.sleep(max(0.0, started + arrival - time.perf_counter()))
        tasks.append(asyncio.ensure_future(ask(random_.choice(WORDS), started + arrival)))
    await asyncio.gather(*tasks)


def percentiles(times: Sequence[float]) -> dict[str, float]:
    return {
        "p50_ms": 1000 * statistics.median(times),
        "p99_ms": 1000 * statistics.quantiles(times, n=100)[98],
    }


async def open_loop(client: Client, seconds: float, rate: float) -> dict[str, float]:
    """Answers to `rate` arrivals a second."""
    latencies: list[float] = []

    async def ask(word: str, arrived: float) -> None:
        await client.decode(word)
        latencies.append(time.perf_counter() - arrived)

    started = time.perf_counter()
    await arrive(ask, seconds, rate)
    throughput = len(latencies) / (time.perf_counter() - started)
    return {"rate": rate, **percentiles(latencies), "throughput": throughput}


async def open_streams(client: Client, seconds: float, rate: float) -> dict[str, Any]:
    """How long until the first token of a stream, and then from one token to the next."""
    first: list[float] = []
    gaps: list[float] = []

    async def ask(word: str, arrived: float) -> None:
        moments = await client.stream(word)
        first.append(moments[0] - arrived)
        gaps.extend(later - sooner for sooner, later in pairwise(moments))

    await arrive(ask, seconds, rate)
    return {"rate": rate, "first": percentiles(first), "next": percentiles(gaps)}


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Without pauses of the client's own."""
    gc.collect()
    gc.disable()
    try:
        return asyncio.run(coroutine)
    finally:
        gc.enable()


async def wait_for(port: int) -> None:
    """Raises TimeoutError if no server answers there."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await Client(port).decode("ready")
            except OSError:
                await asyncio.sleep(0.2)


def load(seconds: float) -> dict[str, Any]:
    """Each load for so long on each server, in turns."""
    context = get_context("spawn")
    servers = [context.Process(target=serve, args=(name,), daemon=True) for name in PORTS]
    for each in servers:
        each.start()
    results: dict[str, Any] = {"saturation": {}, "loads": []}
    for name, port in PORTS.items():
        run(wait_for(port))
        run(closed_loop(Client(port), 1, CONNECTIONS))
        latencies = run(closed_loop(Client(port), seconds, CONNECTIONS))
        results["saturation"][name] = len(latencies) / seconds
    for share in SHARES:
        rate = share * min(results["saturation"].values())
        row = {name: run(open_loop(Client(port), seconds, rate)) for name, port in PORTS.items()}
        results["loads"].append({"share": share, **row})
    client = Client(PORTS["Heed"])
    streams = len(run(closed_loop(client, seconds, CONNECTIONS, client.stream))) / seconds
    results["streams"] = {
        "saturation": streams,
        **run(open_streams(Client(PORTS["Heed"]), seconds, STREAMED * streams)),
    }
    results["one_connection_ms"] = {
        name: 1000 * statistics.median(run(closed_loop(Client(port), seconds / 2, 1)))
        for name, port in PORTS.items()
    }
    for each in servers:
        each.terminate()
        each.join()
    results["engine_ms"] = engine_alone(seconds / 2)
    return results


def engine_alone(seconds: float) -> float:
    """Median milliseconds of one word without HTTP."""
    tokenizer, _ = open_tokenizers(load_bundle(DEFAULT_BUNDLE))
    sources = [tokenizer.encode(word, "/").ids for word in WORDS]
    random_, times = random.Random(0), []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "heed").symlink_to(DEFAULT_BUNDLE)
        engine = Running(System("engine", heed, ("int8",)), Path(folder))
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            times.append(engine(Call([random_.choice(sources)], 1, 63))[0])
        engine.close()
    return 1000 * statistics.median(times)
