"""Compare standard ONNX attention with the operators of the step graph (docs/adr/0005).

Run as python -m benchmarks.speed.operators. It measures attention over the decoder's own KV
cache and over a source, on one thread, eight attentions in a graph.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import typer
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from model.export.graphs.rewrite import MICROSOFT

SHAPES = [  # rows, heads, head_dim, capacity or length of the source
    (1, 4, 64, 16),
    (8, 4, 64, 16),
    (32, 4, 64, 16),
    (128, 4, 64, 16),
    (8, 8, 64, 64),
    (32, 8, 64, 64),
]
REPEATED = 8
AttentionShape = tuple[int, int, int, int]
node = helper.make_node


def standard(i: int) -> list[NodeProto]:
    """Split into heads, write the KV cache with two scatters, attend, and merge the heads."""
    parts = [f"{part}{i}" for part in ("query", "key", "value")]
    return [
        node("Split", [f"packed{i}"], parts, axis=1, num_outputs=3),
        *(node("Reshape", [part, "heads"], [f"{part}_heads"]) for part in parts),
        node("TensorScatter", [f"keys{i}", f"key{i}_heads", "position"], [f"keys{i}_out"], axis=2),
        node(
            "TensorScatter",
            [f"values{i}", f"value{i}_heads", "position"],
            [f"values{i}_out"],
            axis=2,
        ),
        node(
            "Attention",
            [f"query{i}_heads", f"keys{i}_out", f"values{i}_out", "", "", "", "length"],
            [f"mixed{i}_heads"],
        ),
        node("Reshape", [f"mixed{i}_heads", "flat"], [f"mixed{i}"]),
    ]


def grouped_query(i: int, heads: int) -> list[NodeProto]:
    """Attend with one operator, which also writes the KV cache in place."""
    inputs = [f"packed{i}_one", "", "", f"keys{i}", f"values{i}", "position32", "capacity"]
    outputs = [f"mixed{i}_one", f"keys{i}_out", f"values{i}_out"]
    return [
        node("Unsqueeze", [f"packed{i}", "one"], [f"packed{i}_one"]),
        node(
            "GroupQueryAttention",
            inputs,
            outputs,
            domain=MICROSOFT,
            num_heads=heads,
            kv_num_heads=heads,
        ),
        node("Squeeze", [f"mixed{i}_one", "one"], [f"mixed{i}"]),
    ]


def attention(i: int) -> list[NodeProto]:
    """Attend with one query per source, whose heads are already split."""
    inputs = [f"query{i}", f"keys{i}", f"values{i}", "", "", "", "length"]
    return [node("Attention", inputs, [f"mixed{i}"])]


def multi_head(i: int, heads: int) -> list[NodeProto]:
    """Attend with one query per source; the operator splits its heads."""
    inputs = [f"query{i}", f"keys{i}", f"values{i}", "", "length32"]
    return [
        node("MultiHeadAttention", inputs, [f"mixed{i}"], domain=MICROSOFT, num_heads=heads),
    ]


def own_cache(shape: AttentionShape, rounds: int, *, fast: bool) -> float:
    """Return the microseconds that one attention over the decoder's KV cache takes: by the fused
    operator of the step graph if `fast`, else by standard ONNX operators."""
    rows, heads, head_dim, capacity = shape
    cache = (rows, heads, capacity, head_dim)
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(REPEATED):
        packed = (rows, 3 * heads * head_dim)
        shapes |= {f"packed{i}": packed, f"keys{i}": cache, f"values{i}": cache}
    constants: dict[str, Any] = {
        "heads": np.array([rows, heads, 1, head_dim]),
        "flat": np.array([rows, heads * head_dim]),
        "one": np.array([1]),
        "capacity": np.array(capacity, np.int32),
        "position": np.full(rows, 7),
        "position32": np.full(rows, 7, np.int32),
        "length": np.full(rows, 8),
    }
    nodes = [
        each for i in range(REPEATED) for each in (grouped_query(i, heads) if fast else standard(i))
    ]
    written = {f"{name}_out": name for name in shapes if not name.startswith("packed")}
    return microseconds(model_of(nodes, shapes, constants, written), shapes, written, rounds)


def source(shape: AttentionShape, rounds: int, *, fast: bool) -> float:
    """Return the microseconds of an attention over a source."""
    rows, heads, head_dim, length = shape
    query = (rows, 1, heads * head_dim) if fast else (rows, heads, 1, head_dim)
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(REPEATED):
        shapes |= {f"query{i}": query}
        shapes |= {f"{part}{i}": (rows, heads, length, head_dim) for part in ("keys", "values")}
    constants = {"length": np.full(rows, 8), "length32": np.full(rows, 8, np.int32)}
    nodes = [
        each for i in range(REPEATED) for each in (multi_head(i, heads) if fast else attention(i))
    ]
    return microseconds(model_of(nodes, shapes, constants, {}), shapes, {}, rounds)


def model_of(
    nodes: list[NodeProto],
    shapes: dict[str, tuple[int, ...]],
    constants: dict[str, NDArray[Any]],
    written: dict[str, str],
) -> ModelProto:
    """Return a model with inputs of these shapes. The keys of `written` are outputs, too."""
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    ]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in [*written, *(f"mixed{i}" for i in range(REPEATED))]
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid(MICROSOFT, 1)]
    graph = helper.make_graph(nodes, "attention", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def microseconds(
    model: ModelProto, shapes: dict[str, tuple[int, ...]], written: dict[str, str], rounds: int
) -> float:
    """Return the median time of one of the model's attentions.

    `written` maps each output to the input that shares its memory, so that no cache is copied.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # no warnings of constants that only the other model uses
    providers = ["CPUExecutionProvider"]
    session = ort.InferenceSession(model.SerializeToString(), options, providers=providers)
    binding, random = session.io_binding(), np.random.default_rng(0)
    values = {
        name: ort.OrtValue.ortvalue_from_numpy(random.standard_normal(shape).astype(np.float32))
        for name, shape in shapes.items()
    }
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for output, name in written.items():
        binding.bind_ortvalue_output(output, values[name])
    for i in range(REPEATED):
        binding.bind_output(f"mixed{i}", "cpu")
    times: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append(time.perf_counter() - started)
    return 1e6 * statistics.median(times) / REPEATED


def durations(shapes: Sequence[AttentionShape], rounds: int) -> Iterator[str]:
    """Yield one line for each shape, with both times in microseconds per attention."""
    for name, measure in (("own cache", own_cache), ("source", source)):
        yield f"{name}, rows x heads x head_dim, capacity: by standard ONNX, by the step graph"
        for shape in shapes:
            rows, heads, head_dim, capacity = shape
            slow, fast = (measure(shape, rounds, fast=fast) for fast in (False, True))
            yield f"{rows} x {heads} x {head_dim}, {capacity}: {slow:.1f}, {fast:.1f}"


def main() -> None:
    """Print microseconds per attention, by standard ONNX and by the step graph's operators."""
    for line in durations(SHAPES, rounds=100):
        typer.echo(line)


if __name__ == "__main__":
    typer.run(main)
