"""The wait of a word among the largest requests: requests take turns in the queue of a model."""

import asyncio
import json
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.kit.document import table
from benchmarks.kit.http_client import ask
from benchmarks.kit.serving import serving
from benchmarks.load.load import WORDS
from service.settings.settings import DEFAULT_BUNDLE

CLIENTS = 4  # each sends the next of the largest requests as soon as one is answered
BATCH = [WORDS[i % len(WORDS)] for i in range(256)]
LARGE_REQUESTS: dict[str, dict[str, Any] | None] = {
    "nothing": None,
    f"{CLIENTS} x 256 words": {"source": BATCH},
    f"{CLIENTS} x 256 words with 16 beams, 4,096 rows": {"source": BATCH, "beam_size": 16},
}
WORD = json.dumps({"source": "heed"}).encode()
PAUSE = 0.02  # seconds between two words
SETTLE = 2.0  # seconds in which the large requests fill the queue


@dataclass(slots=True)
class Waits:
    """Seconds until words were answered, and until the large requests sent with them were."""

    words: list[float] = field(default_factory=list[float])
    large: list[float] = field(default_factory=list[float])
    failed: int = 0  # of either kind: any status but 200


async def measure_waits(port: int, large: dict[str, Any] | None, seconds: float) -> Waits:
    waits, running = Waits(), True

    async def send(body: bytes, into: list[float]) -> None:
        began = time.perf_counter()
        status, *_ = await ask(port, "/v1/decode", body)
        into.append(time.perf_counter() - began)
        waits.failed += status != 200

    async def send_large() -> None:
        while running:
            await send(json.dumps(large).encode(), waits.large)

    clients = [asyncio.create_task(send_large()) for _ in range(CLIENTS if large else 0)]
    await asyncio.sleep(SETTLE)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        await send(WORD, waits.words)
        await asyncio.sleep(PAUSE)
    running = False
    await asyncio.gather(*clients)
    return waits


def measure(seconds: float) -> list[list[str]]:
    """Return the rows of the table, one for each kind of large request."""
    rows: list[list[str]] = []
    with serving(DEFAULT_BUNDLE) as port:
        for name, large in LARGE_REQUESTS.items():
            waits = asyncio.run(measure_waits(port, large, seconds))
            times = statistics.quantiles(waits.words, n=100)
            mean = f"{statistics.mean(waits.large):.2f} s" if waits.large else ""
            columns = [f"{1000 * times[place]:.1f} ms" for place in (49, 98)]
            rows.append([name, *columns, mean, str(waits.failed)])
    return rows


def render(rows: list[list[str]]) -> str:
    """Return the section of the page."""
    columns = ["alongside", "a word, p50", "p99", "a large request, mean", "failed"]
    return (
        "## Fairness\n\nRequests take turns, source by source. One client sends a word again and"
        f" again, alongside {CLIENTS} clients that\nsend the largest requests that the default"
        " limits allow.\n\n" + table(columns, rows)
    )
