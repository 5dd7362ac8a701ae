"""python -m benchmarks.operators: attention by standard ONNX and by what the step graph uses.

Over the decoder's own cache and over a source (docs/adr/0005). Microseconds an attention, eight of
them in a graph, on one thread.
"""

import statistics
import time
from typing import Any

import numpy as np
import onnxruntime as ort
import typer
from onnx import NodeProto, TensorProto, helper, numpy_helper

SHAPES = [  # rows, heads, width, capacity or length of the source
    (1, 4, 64, 16),
    (8, 4, 64, 16),
    (32, 4, 64, 16),
    (128, 4, 64, 16),
    (8, 8, 64, 64),
    (32, 8, 64, 64),
]
REPEATED = 8
MICROSOFT = "com.microsoft"
Shape = tuple[int, int, int, int]
node = helper.make_node


def standard(i: int) -> list[NodeProto]:
    """Each part in a head's shape, two scatters, attention, and back."""
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


def grouped(i: int, heads: int) -> list[NodeProto]:
    inputs = [f"packed{i}_one", "", "", f"keys{i}", f"values{i}", "position32", "capacity"]
    outputs = [f"mixed{i}_one", f"keys{i}_out", f"values{i}_out"]
    kind = {"domain": MICROSOFT, "num_heads": heads, "kv_num_heads": heads}
    return [
        node("Unsqueeze", [f"packed{i}", "one"], [f"packed{i}_one"]),
        node("GroupQueryAttention", inputs, outputs, **kind),
        node("Squeeze", [f"mixed{i}_one", "one"], [f"mixed{i}"]),
    ]


def attention(i: int) -> list[NodeProto]:
    """One query a source, heads parted already."""
    inputs = [f"query{i}", f"keys{i}", f"values{i}", "", "", "", "length"]
    return [node("Attention", inputs, [f"mixed{i}"])]


def products(i: int) -> list[NodeProto]:
    """Without scale, which is no part of the comparison."""
    return [
        node("FusedMatMul", [f"query{i}", f"keys{i}"], [f"scores{i}"], domain=MICROSOFT, transB=1),
        node("Add", [f"scores{i}", "mask"], [f"masked{i}"]),
        node("Softmax", [f"masked{i}"], [f"weights{i}"], axis=-1),
        node("MatMul", [f"weights{i}", f"values{i}"], [f"mixed{i}"]),
    ]


def own_cache(shape: Shape, *, fast: bool) -> float:
    rows, heads, width, capacity = shape
    cache = (rows, heads, capacity, width)
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(REPEATED):
        shapes |= {f"packed{i}": (rows, 3 * heads * width), f"keys{i}": cache, f"values{i}": cache}
    constants: dict[str, Any] = {
        "heads": np.array([rows, heads, 1, width]),
        "flat": np.array([rows, heads * width]),
        "one": np.array([1]),
        "capacity": np.array(capacity, np.int32),
        "position": np.full(rows, 7),
        "position32": np.full(rows, 7, np.int32),
        "length": np.full(rows, 8),
    }
    nodes = [each for i in range(REPEATED) for each in (grouped(i, heads) if fast else standard(i))]
    written = {f"{name}_out": name for name in shapes if not name.startswith("packed")}
    return microseconds(nodes, shapes, constants, written)


def source(shape: Shape, *, fast: bool) -> float:
    rows, heads, width, length = shape
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(REPEATED):
        shapes |= {f"query{i}": (rows, heads, 1, width)}
        shapes |= {f"{part}{i}": (rows, heads, length, width) for part in ("keys", "values")}
    constants = {"length": np.full(rows, 8), "mask": np.zeros((rows, 1, 1, length), np.float32)}
    nodes = [each for i in range(REPEATED) for each in (products(i) if fast else attention(i))]
    return microseconds(nodes, shapes, constants, {})


def microseconds(
    nodes: list[NodeProto],
    shapes: dict[str, tuple[int, ...]],
    constants: dict[str, Any],
    written: dict[str, str],
) -> float:
    """Of one attention. `written` are outputs in the memory of an input."""
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
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # it warns of constants that only the other one uses
    providers = ["CPUExecutionProvider"]
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=providers)
    binding, random = session.io_binding(), np.random.default_rng(0)
    for name, shape in shapes.items():
        value = ort.OrtValue.ortvalue_from_numpy(random.standard_normal(shape).astype(np.float32))
        binding.bind_ortvalue_input(name, value)
        if f"{name}_out" in written:
            binding.bind_ortvalue_output(f"{name}_out", value)
    for i in range(REPEATED):
        binding.bind_output(f"mixed{i}", "cpu")
    times: list[float] = []
    for _ in range(100):
        started = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append(time.perf_counter() - started)
    return 1e6 * statistics.median(times) / REPEATED


def main() -> None:
    for name, measure in (("own cache", own_cache), ("source", source)):
        typer.echo(f"{name}, rows x heads x width, capacity: standard ONNX, the step graph's")
        for shape in SHAPES:
            rows, heads, width, capacity = shape
            slow, fast = (measure(shape, fast=fast) for fast in (False, True))
            typer.echo(f"{rows} x {heads} x {width}, {capacity}: {slow:.1f}, {fast:.1f}")


if __name__ == "__main__":
    typer.run(main)
