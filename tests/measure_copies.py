"""python -m tests.measure_copies BUNDLE: bytes of a cache; by how much a process grows when a step
is bound to that cache, and when it is not. A process of its own has no freed memory to use."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

from service.bundle import load_bundle
from service.runtime.session import Session
from service.settings import Precision, Provider, Settings


def resident():
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def unbound(session, cache, bundle):
    """One step of the graph whose cache goes in as one array and comes out as another."""
    layers = range(bundle.manifest.config.num_decoder_layers)
    names = [f"{part}_{layer}" for layer in layers for part in ("key", "value")]
    memory = zip(names, cache.self_keys_values, cache.cross_keys_values, strict=True)
    feeds = {
        "token": np.full(4, 4),
        "position": cache.position,
        "source_length": cache.source_length,
        "k": np.array([1]),
    }
    for name, own, cross in memory:
        feeds |= {f"self_{name}": own, f"cross_{name}": cross}
    path = bundle.path(bundle.manifest.precisions["fp32"]["step"])
    options = ort.SessionOptions()
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feeds)


def main(root: Path) -> None:
    bundle = load_bundle(root)
    session = Session(bundle, Settings(precision=Precision.fp32, provider=Provider.cpu))
    cache = session.new_cache(rows_per_source=2)
    cache.insert(session.encode([np.array([4, 5, 6]), np.array([4, 5, 6, 7, 8])])[1])
    cache.grow(5000)
    size = sum(array.nbytes for array in cache.self_keys_values)
    session.step(cache, np.full(4, 4), 2)
    before = resident()
    for _ in range(5):
        session.step(cache, np.full(4, 4), 2)
    bound = resident() - before
    copies = unbound(session, cache, bundle)
    sys.stdout.write(json.dumps([size, bound, resident() - before]))
    del copies


if __name__ == "__main__":
    main(Path(sys.argv[1]))
