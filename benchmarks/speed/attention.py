"""Measure the cost of showing attention: python -m benchmarks.speed.attention

Measurements: the time to write each format, one large document, the gaps between the tokens of
streams while large answers are sent, and the time from typing a word to its heatmap on the page.
"""

import asyncio
import itertools
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import orjson

from benchmarks.kit.document import describe_machine, machine_line, table
from benchmarks.kit.models import BASE, lettered, write_models
from benchmarks.kit.serving import serving
from service.formats.writers import WRITERS
from service.settings.settings import DEFAULT_BUNDLE
from service.text.tokens import Token

DOCUMENT = Path(__file__).parents[2] / "docs" / "attention-performance.md"
HEAD = """# What it costs to show attention

After this page you can estimate how long attention weights take, in each format and on the page.

`python -m benchmarks.speed.attention` writes this page; do not edit it. Times are medians. The
default model runs at int8. The client, the browser and the service share the cores.

{machine}

"""
WORD = "pneumonoultramicroscopicsilicovolcanoconiosis"
TYPED = ("heed", "thought", WORD) * 3
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
Measurement = list[str]  # its description and duration


def measure_formats(layers: int, heads: int, tokens: int, rounds: int) -> list[Measurement]:
    """Measure how long each format takes to write cross-attention of this shape."""
    document = random_document(layers, heads, tokens)
    name = f"{layers} x {heads} x {tokens} x {tokens} weights"
    rows: list[Measurement] = []
    for form, write in WRITERS.items():
        ms = median_milliseconds(partial(write, document), rounds)
        rows.append([f"{name} as {form}", f"{ms:.2f} ms"])
    return rows


def random_document(layers: int, heads: int, tokens: int) -> dict[str, Any]:
    """Return an answer of /v1/attention, as the writers of the formats get it."""
    weights = np.random.default_rng(0).random((layers, heads, tokens, tokens)).astype(np.float32)
    labels = [Token(f"t{i}", i, i, i + 1) for i in range(tokens)]
    block = {
        "kind": "cross",
        "layers": [*range(layers)],
        "heads": [*range(heads)],
        "axes": ["layer", "head", "target", "source"],
        "shape": weights.shape,
        "rows": labels,
        "columns": labels,
        "data": weights / weights.sum(-1, keepdims=True),
    }
    results = [{"source": "source", "target": "target", "attention": [block]}]
    return {"model": "base", "results": results}


def median_milliseconds(work: Callable[[], object], rounds: int) -> float:
    times: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def measure_large(address: str, tokens: int, name: str) -> list[Measurement]:
    """Ask for the attention of one source and target of random letters, in each format."""
    ids = np.random.default_rng(0).integers(4, 30, (2, tokens)).tolist()
    rows: list[Measurement] = []
    with httpx2.Client(base_url=address, timeout=60) as client:
        for form in ("application/safetensors", "image/png", "image/svg+xml"):
            started = time.monotonic()
            answer = client.post(
                "/v1/attention",
                json={"source": ids[:1], "target": ids[1:]},
                headers={"accept": form},
            ).raise_for_status()
            took = time.monotonic() - started
            size = f"{len(answer.content) / 1e6:.1f} MB after {took:.1f} s"
            rows.append([f"{tokens} x {tokens} tokens, {name}, as {form}", size])
    return rows


async def measure_gaps(
    address: str, form: str, *, seconds: float, phases: int, targets: int
) -> Measurement:
    """Measure the gaps between the tokens of streams, alone and with large answers.

    Phases of `seconds` alternate: without, then with large answers, each for `targets` targets.
    """
    alone: list[float] = []
    with_large: list[float] = []
    sizes: list[int] = []
    async with httpx2.AsyncClient(base_url=address, timeout=60) as client:
        for _ in range(phases):
            await follow_streams(client, alone, time.monotonic() + seconds)
            until = time.monotonic() + seconds
            streams = asyncio.ensure_future(follow_streams(client, with_large, until))
            sizes += await ask_large_answers(address, form, targets, until)
            await streams
    rate = len(sizes) / (phases * seconds)
    name = (
        "Gaps between reads of a stream (p50, p99, largest), with"
        f" {rate:.1f} answers per second of {max(sizes) / 1e6:.0f} MB, {form}"
    )
    return [name, f"{quantiles(with_large)} ms; alone {quantiles(alone)} ms"]


def quantiles(gaps: list[float]) -> str:
    return " / ".join(f"{1000 * gap:.1f}" for gap in np.percentile(gaps, (50, 99, 100)))


async def follow_streams(client: httpx2.AsyncClient, gaps: list[float], until: float) -> None:
    """Follow two streams at a time until the moment `until`."""
    await asyncio.gather(*(follow_stream(client, gaps, until) for _ in range(2)))


async def follow_stream(client: httpx2.AsyncClient, gaps: list[float], until: float) -> None:
    """Append the gaps between reads that bring tokens. Tokens that come together have no gap."""
    body = {"source": WORD, "stream": True}
    while time.monotonic() < until:
        async with client.stream("POST", "/v1/decode", json=body) as answer:
            reads = answer.aiter_raw()
            moments = [time.monotonic() async for read in reads if b"event: token" in read]
        gaps.extend(later - sooner for sooner, later in itertools.pairwise(moments))


async def ask_large_answers(address: str, form: str, targets: int, until: float) -> list[int]:
    """Ask for at most one large answer per second. Return the bytes of each.

    curl reads the answers, so that this process is free to time the streams.
    """
    asked = {"source": [WORD] * targets, "target": ["T " * 63] * targets}
    body = orjson.dumps({**asked, "attention": {"kinds": ["encoder", "decoder", "cross"]}})
    headers = ["-H", f"accept: {form}", "-H", "content-type: application/json"]
    sizes: list[int] = []
    while time.monotonic() < until:
        began = time.monotonic()
        command = ["curl", "-sf", "-o", "/dev/null", "-w", "%{size_download}", *headers]
        curl = await asyncio.create_subprocess_exec(
            *command, "--data-binary", "@-", f"{address}/v1/attention", stdin=-1, stdout=-1
        )
        printed, _ = await curl.communicate(body)
        sizes.append(int(printed))
        await asyncio.sleep(max(0.0, began + 1 - time.monotonic()))
    return sizes


def measure_typing(address: str, words: Sequence[str]) -> list[Measurement]:
    """Measure the time from typing a word to its heatmap. Return no row without Chromium."""
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if chromium is None:
        sys.stderr.write("chromium is not on the PATH: install it to measure the page\n")
        return []
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector("#heatmap canvas")
        times = [page.evaluate(TYPE, word) for word in words]
        browser.close()
    took = f"{statistics.median(times):.0f} ms ({max(times):.0f} at most)"
    return [["A word typed on the page until its heatmap is drawn", took]]


def write_document(rows: list[Measurement], document: Path) -> None:
    head = HEAD.format(machine=machine_line(describe_machine()))
    document.write_text(f"{head}{table(['measured', 'result'], rows)}", encoding="utf-8")


def main() -> None:
    rows = measure_formats(layers=6, heads=8, tokens=128, rounds=9)
    with serving(DEFAULT_BUNDLE) as port:
        address = f"http://127.0.0.1:{port}"
        rows += measure_typing(address, TYPED)
        for form in ("application/json", "application/safetensors"):
            gaps = measure_gaps(address, form, seconds=8.0, phases=3, targets=110)
            rows.append(asyncio.run(gaps))
    with tempfile.TemporaryDirectory() as folder:
        write_models(lettered(BASE.config), Path(folder))
        with serving(Path(folder) / "heed") as port:
            address = f"http://127.0.0.1:{port}"
            rows += measure_large(address, tokens=512, name="6 layers, 8 heads, base model")
    write_document(rows, DOCUMENT)


if __name__ == "__main__":
    main()
