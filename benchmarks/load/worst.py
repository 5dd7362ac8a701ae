"""Send the worst bodies of each endpoint from 40 clients: python -m benchmarks.load.worst

They are the largest that the default limits allow, and large ones that are refused. Meanwhile
others send a word and ask /livez, as with no load in the first row. The limits are for two cores
that nothing else uses.
"""

import json
import socket
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks.kit.memory import cpu_seconds_of, family
from benchmarks.kit.raw_client import status_of, write_request
from benchmarks.kit.serving import serving
from service.settings.settings import DEFAULT_BUNDLE

CLIENTS = 40
PAUSE = 0.1  # seconds between two probes, between two looks at the memory, and after a 429
PATIENCE = 90.0  # seconds for an answer
OVERLOADED = 429
MOST_MEMORY, MOST_WORD, MOST_LIVEZ = 700, 1.0, 0.2  # MB and seconds
SOURCES = ["a" * 63] * 256
TARGETS = ["AH0 " * 60] * 256
TEXTS = ["ab " * 1300] * 250  # 1 MB
NUMBERS = [0.5] * 1200
PHONES = ["AH0", "B", "CH", "D", "EY1", "F", "G", "HH", "IY1", "K", "L", "M", "N", "OW1", "P"]
PHRASES = [[f"{a} {b}" for b in PHONES[:8]] for a in PHONES]
PARAGRAPHS = "".join(f"<p>{'<b>abcdef</b>' * 9}</p>" for _ in range(250))
HEADS = [{"kind": "cross", "layer": layer, "heads": [0]} for layer in range(3)]
WRONG_HEADS = {"kind": "cross", "layer": 0, "heads": [9] * 310}
TRIPLES = [f"{a} {b} {c}" for a in PHONES for b in PHONES for c in PHONES]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "decode": ("/v1/decode", {"source": SOURCES}),
    "decode ids": ("/v1/decode", {"source": [[5] * 64] * 256}),
    "16 beams": ("/v1/decode", {"source": SOURCES, "beam_size": 16}),
    "20 alternatives": ("/v1/decode", {"source": SOURCES[:200], "top_log_probs": 20}),
    "stream": ("/v1/decode", {"source": SOURCES[:200], "top_log_probs": 20, "stream": True}),
    "allowed targets": ("/v1/decode", {"source": "a", "allowed_targets": TRIPLES}),
    "sentences refused": ("/v1/decode", {"source": TEXTS, "split": "sentences"}),
    "all texts refused": ("/v1/decode", {"source": TEXTS, "partial": True}),
    "wrong token ids": ("/v1/decode", {"source": "a", "suppress_tokens": [10**6] * 65536}),
    "unknown fields": ("/v1/decode", {"source": "a", **{f"x{i}": 1 for i in range(80_000)}}),
    "markup": ("/v1/decode", {"source": PARAGRAPHS, "markup": "html"}),
    "required phrases": ("/v1/decode", {"source": SOURCES, "required": PHRASES}),
    "wrong heads": ("/v1/decode", {"source": "a", "ablate": [WRONG_HEADS] * 1024}),
    "heads off": ("/v1/decode", {"source": SOURCES, "ablate": HEADS, "words": True}),
    "encode": ("/v1/encode", {"source": SOURCES}),
    "score": ("/v1/score", {"source": SOURCES, "target": TARGETS}),
    "attention": ("/v1/attention", {"source": SOURCES[:128], "target": TARGETS[:128]}),
    "attribution": ("/v1/attribution", {"source": SOURCES[:60], "target": TARGETS[:60]}),
    "tokenize": ("/v1/tokenize", {"text": SOURCES}),
    "detokenize": ("/v1/detokenize", {"token_ids": [[5] * 64] * 256}),
    "attend": (
        "/v1/attend",
        {"mechanism": "average", "queries": NUMBERS, "keys": NUMBERS, "values": NUMBERS},
    ),
    "embeddings": ("/v1/embeddings", {"model": "g2p-en", "input": SOURCES}),
    "infer": (
        "/v2/models/g2p-en/infer",
        {"inputs": [{"name": "source", "shape": [256], "datatype": "BYTES", "data": SOURCES}]},
    ),
}
WORD = write_request("/v1/decode", b'{"source": "heed"}')
LIVEZ = write_request("/livez", None)


class Row(NamedTuple):
    """Answers to the worst body by their status; megabytes at the peak, and cores in use, of all
    processes; the longest seconds of a word and of /livez, and their failures."""

    name: str
    statuses: dict[int, int]
    memory: float
    cores: float
    word: float
    livez: float
    failed: int


class Load:
    """Sends requests until `seconds` are over, and keeps their statuses and the longest time."""

    def __init__(self, port: int, seconds: float) -> None:
        self.statuses = Counter[int]()
        self.longest = 0.0  # seconds
        self._port = port
        self._until = time.monotonic() + seconds

    def repeat(self, request: bytes, pause: float = 0.0) -> None:
        while (began := time.monotonic()) < self._until:
            status = ask(self._port, request)
            self.statuses[status] += 1
            self.longest = max(self.longest, time.monotonic() - began)
            time.sleep(PAUSE if status == OVERLOADED else pause)

    def watch(self, pids: list[int], peaks: list[float]) -> None:
        while time.monotonic() < self._until:
            peaks.append(sum(map(megabytes_of, pids)))
            time.sleep(PAUSE)


def ask(port: int, request: bytes) -> int:
    """Return the status of an answer that is read whole, 0 if there is none."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        with suppress(ConnectionError):  # it may be refused before it is sent
            connection.sendall(request)
        first = b""
        with suppress(OSError):
            first = connection.recv(12)
            while connection.recv(1 << 18):
                pass
    return status_of(first)


def megabytes_of(pid: int) -> float:
    """Return the memory of a process, with its share of what it has in common with others."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def measure(port: int, name: str, request: bytes | None, seconds: float) -> Row:
    """Return what happens while CLIENTS send a request, or nobody if it is None."""
    pids = [pid for child in active_children() if child.pid for pid in family(child.pid)]
    began, before = time.monotonic(), sum(map(cpu_seconds_of, pids))
    load, words, lives = Load(port, seconds), Load(port, seconds), Load(port, seconds)
    peaks: list[float] = []
    jobs = [partial(load.watch, pids, peaks), partial(words.repeat, WORD, PAUSE)]
    jobs += [partial(lives.repeat, LIVEZ, PAUSE)]
    jobs += [partial(load.repeat, request)] * CLIENTS if request else []
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    probed = words.statuses + lives.statuses
    return Row(
        name,
        dict(load.statuses),
        max(peaks),
        (sum(map(cpu_seconds_of, pids)) - before) / (time.monotonic() - began),
        words.longest,
        lives.longest,
        probed.total() - probed[200],
    )


def main(
    seconds: Annotated[float, typer.Option(help="Duration of each load")] = 6.0,
    only: Annotated[str, typer.Option(help="Names of loads, separated by commas")] = "",
) -> None:
    """Print a line for each load; exit with 1 if one exceeds the limits."""
    names = only.split(",") if only else [*BODIES]
    with serving(DEFAULT_BUNDLE, protocols=["open-inference", "openai"]) as port:
        rows = [measure(port, "nothing", None, seconds)]
        for name in names:
            typer.echo(describe(rows[-1]))
            path, body = BODIES[name]
            request = write_request(path, json.dumps(body).encode())
            rows.append(measure(port, name, request, seconds))
    typer.echo(describe(rows[-1]))
    limits = {"memory": MOST_MEMORY, "word": MOST_WORD, "livez": MOST_LIVEZ, "failed": 0}
    beyond = [
        f"{row.name}: {field} {getattr(row, field):.2f}, limit {limit}"
        for row in rows
        for field, limit in limits.items()
        if getattr(row, field) > limit
    ]
    if beyond:
        sys.exit("\n".join(beyond))


def describe(row: Row) -> str:
    return (
        f"{row.name:18} {row.memory:4.0f} MB, {row.cores:.2f} cores, word {row.word:.2f} s,"
        f" /livez {row.livez:.2f} s, {row.failed} failed; answers {row.statuses}"
    )


if __name__ == "__main__":
    typer.run(main)
