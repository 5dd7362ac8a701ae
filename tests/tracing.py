"""Export in less time: what tests share of it, and what they leave out."""

from contextlib import contextmanager
from functools import cache
from hashlib import sha256

import onnx
import pytest
from filelock import FileLock
from torch.onnx._internal.exporter._registration import ONNXRegistry

from model.export.graphs import wrappers


@contextmanager
def only(*names):
    """Write bundles with these graphs alone, and without the alignment, which others find."""
    with pytest.MonkeyPatch.context() as patch:
        share_operators(patch)
        patch.setattr(wrappers, "GRAPHS", {name: wrappers.GRAPHS[name] for name in names})
        patch.setattr("model.export.bundle.write_alignment", lambda *_: None)
        yield


@contextmanager
def without_gates():
    """Write bundles without the gated graphs, whose traces take longest, and without that of
    drafts."""
    later = "gated", "draft"
    plain = {name: spec for name, spec in wrappers.GRAPHS.items() if not name.startswith(later)}
    with pytest.MonkeyPatch.context() as patch:
        share_operators(patch)
        patch.setattr(wrappers, "GRAPHS", plain)
        yield


@contextmanager
def traced_once(folder):
    """Trace each kind of network once: a trace takes seconds, and its graph holds no weights.

    Processes that are given the same folder share their graphs in it."""
    export_graph = wrappers.export_graph

    def export_once(spec, weights):
        state = spec.module.state_dict()
        shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
        key = repr((type(spec.module), spec.module.model.config, shapes, weights))
        path = folder / f"{sha256(key.encode()).hexdigest()}.onnx"
        with FileLock(f"{path}.lock"):
            if not path.exists():
                onnx.save(export_graph(spec, weights), path)
        return onnx.load(path)

    with pytest.MonkeyPatch.context() as patch:
        share_operators(patch)
        patch.setattr(wrappers, "export_graph", export_once)
        yield


def share_operators(patch):
    """Read torch's table of ONNX operators once: each export parses the source of all of them."""
    patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
