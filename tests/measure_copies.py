"""Print the bytes of a KV cache, and by how much steps make this process grow.

Run as python -m tests.measure_copies BUNDLE. It prints three numbers as JSON: the bytes of the
cache, the growth after steps that are bound to the cache, and the growth after one more step that
is not bound and copies the cache. A process of its own has no freed memory that would hide growth.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

from service.bundle.manifest import load_bundle
from service.runtime.session import Session
from service.settings.settings import Precision, Provider, Settings


def resident():
    """Return the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def step_unbound(cache, bundle):
    """Run a step whose cache goes in as arrays and comes out as others. Return its outputs."""
    layers = range(bundle.manifest.config.num_decoder_layers)
    names = [f"{part}_{layer}" for layer in layers for part in ("key", "value")]
    memory = zip(names, cache.self_keys_values, cache.cross_keys_values, strict=True)
    feeds = {
        "token": np.full((4, 1), 4),
        "position": cache.position[:, None],
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
    copies = step_unbound(cache, bundle)
    sys.stdout.write(json.dumps([size, bound, resident() - before]))
    del copies  # until here the copies had to stay in memory


if __name__ == "__main__":
    main(Path(sys.argv[1]))
