"""python -m benchmarks.attention: what it costs to show attention.

Serialisation of 6 x 8 x 128 x 128 weights; 512 x 512 tokens in all layers and heads of the base
model; the gaps between the tokens of streams, alone and beside answers of 50 MB; and a word typed
on the page until its heatmap is there.
"""

import asyncio
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import orjson

from benchmarks.models import write_models
from benchmarks.report import machine, table
from service.formats.writers import FORMS
from service.settings import DEFAULT_BUNDLE
from service.tokenizer import Token

DOCUMENT = Path(__file__).parents[1] / "docs" / "attention-performance.md"
HEAD = """# What it costs to show attention

Written by `python -m benchmarks.attention`; do not edit. Times are medians; the default model runs
at int8, client, browser and service share the cores.

"""
WORD = "pneumonoultramicroscopicsilicovolcanoconiosis"
ROUNDS = 9
SECONDS = 8.0  # of streams, alone and then beside
TYPE = """(word) => new Promise((resolve) => {
  const source = document.querySelector("#source");
  const began = performance.now();
  const canvas = () => document.querySelector("#heatmap canvas");
  const before = canvas();
  new MutationObserver((_, observer) => {
    if (canvas() && canvas() !== before) {
      observer.disconnect();
      requestAnimationFrame(() => resolve(performance.now() - began));
    }
  }).observe(document.querySelector("#weights"), { childList: true, subtree: true });
  source.value = word;
  source.dispatchEvent(new Event("input", { bubbles: true }));
})"""


@contextmanager
def serving(bundle: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "service", "--port", port, "--bundles", str(bundle)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                httpx2.get(f"{address}/readyz").raise_for_status()
                break
            except httpx2.HTTPError:
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


def milliseconds(write: Callable[[Any], Any], document: dict[str, Any]) -> float:
    """The median of some rounds."""
    times: list[float] = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        write(document)
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def serialisation() -> list[list[str]]:
    weights = np.random.default_rng(0).random((6, 8, 128, 128)).astype(np.float32)
    tokens = [Token(f"t{i}", i, i, i + 1) for i in range(128)]
    block = {
        "kind": "cross",
        "layers": [*range(6)],
        "heads": [*range(8)],
        "axes": ["layer", "head", "target", "source"],
        "shape": weights.shape,
        "rows": tokens,
        "columns": tokens,
        "data": weights / weights.sum(-1, keepdims=True),
    }
    results = [{"source": "source", "target": "target", "attention": [block]}]
    document = {"model": "base", "results": results}
    return [
        [f"6 x 8 x 128 x 128 weights as {form}", f"{milliseconds(write, document):.2f} ms"]
        for form, write in FORMS.items()
    ]


def large(folder: Path) -> list[list[str]]:
    write_models("base", folder)
    ids = np.random.default_rng(0).integers(4, 30, (2, 512)).tolist()  # letters
    rows: list[list[str]] = []
    with serving(folder / "heed") as address, httpx2.Client(timeout=60) as client:
        for form in ("application/safetensors", "image/png", "image/svg+xml"):
            started = time.monotonic()
            answer = client.post(
                f"{address}/v1/attention",
                json={"source": ids[:1], "target": ids[1:]},
                headers={"accept": form},
            ).raise_for_status()
            took = time.monotonic() - started
            size = f"{len(answer.content) / 1e6:.1f} MB after {took:.1f} s"
            rows.append([f"512 x 512 tokens, 6 layers, 8 heads, base model, as {form}", size])
    return rows


async def stream(client: httpx2.AsyncClient, gaps: list[float], until: float) -> None:
    """Gaps between reads that bring tokens: those that come together have none between them."""
    while time.monotonic() < until:
        last = None
        async with client.stream("POST", "/v1/decode", json={"source": WORD, "stream": True}) as r:
            async for read in r.aiter_raw():
                if b"event: token" in read:
                    now = time.monotonic()
                    gaps.extend([] if last is None else [now - last])
                    last = now


async def large_answers(address: str, form: str, until: float) -> tuple[int, int]:
    """One a second at most, by curl, so that it is no work of the process that measures. Their
    size and number."""
    count = 110
    asked = {"source": [WORD] * count, "target": ["T " * 63] * count}
    body = orjson.dumps({**asked, "attention": {"kinds": ["encoder", "decoder", "cross"]}})
    headers = ["-H", f"accept: {form}", "-H", "content-type: application/json"]
    size = number = 0
    while time.monotonic() < until:
        began = time.monotonic()
        command = ["curl", "-sf", "-o", "/dev/null", "-w", "%{size_download}", *headers]
        curl = await asyncio.create_subprocess_exec(
            *command, "--data-binary", "@-", f"{address}/v1/attention", stdin=-1, stdout=-1
        )
        told, _ = await curl.communicate(body)
        size, number = int(told), number + 1
        await asyncio.sleep(max(0.0, began + 1 - time.monotonic()))
    return size, number


async def gaps_beside(address: str, form: str) -> list[str]:
    """The two phases in turns."""
    gaps: dict[bool, list[float]] = {False: [], True: []}
    size = number = 0
    async with httpx2.AsyncClient(base_url=address, timeout=60) as client:
        for beside in (False, True) * 3:
            until = time.monotonic() + SECONDS
            streams = asyncio.gather(*(stream(client, gaps[beside], until) for _ in range(2)))
            if beside:
                size, more = await large_answers(address, form, until)
                number += more
            await streams
    alone, together = (1000 * np.percentile(each, (50, 99, 100)) for each in gaps.values())
    rate = number / (3 * SECONDS)
    what = f"Gaps between reads of a stream (p50, p99, most), beside {rate:.1f} answers a second of"
    told = " / ".join(f"{ms:.1f}" for ms in together)
    before = " / ".join(f"{ms:.1f}" for ms in alone)
    return [f"{what} {size / 1e6:.0f} MB, {form}", f"{told} ms; alone {before} ms"]


def typed(address: str) -> list[list[str]]:
    """Nothing where there is no Chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return []
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector("#heatmap canvas")
        times = [page.evaluate(TYPE, word) for word in ("heed", "thought", WORD) * 3]
        browser.close()
    told = f"{statistics.median(times):.0f} ms ({max(times):.0f} at most)"
    return [["A word typed on the page until its heatmap is drawn", told]]


def main() -> None:
    rows = serialisation()
    with serving(DEFAULT_BUNDLE) as address:
        rows += typed(address)
        for form in ("application/json", "application/safetensors"):
            rows.append(asyncio.run(gaps_beside(address, form)))
    with tempfile.TemporaryDirectory() as folder:
        rows += large(Path(folder))
    on = ", ".join(f"{name} {value}" for name, value in machine().items())
    DOCUMENT.write_text(f"{HEAD}{on}\n\n{table(['what', 'took'], rows)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
