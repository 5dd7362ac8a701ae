"""int8 products beside integer arithmetic in NumPy."""

import shutil

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from model.checkpoint import load_model
from model.export.compare import Difference, compare
from model.export.kernel import OPSET
from model.export.quantize import quantize


def graph_of(kind, weight, bias):
    """Products of rows x (R, K): Gemm, MatMul and Add, or Gemm of the rows' positive parts."""
    constants = {"w": weight if kind == "matmul" else weight.T.copy(), "b": bias}
    nodes = {
        "gemm": [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "product", transB=1)],
        "matmul": [
            helper.make_node("MatMul", ["x", "w"], ["xw"], "product"),
            helper.make_node("Add", ["xw", "b"], ["y"]),
        ],
        "relu": [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("Gemm", ["r", "w", "b"], ["y"], "product", transB=1),
        ],
    }[kind]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", size])
        for name, size in zip("xy", weight.shape, strict=True)
    )
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "product", [x], [y], initializers)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=11)


def run(proto, x):
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def numpy_product(kind, x, weight, bias, largest):
    """Multiply as 8-bit integers: rows by a scale of their own, or all by one."""
    rows = np.maximum(x, 0) if kind == "relu" else x
    levels, low, high = (255, 0, 255) if kind == "relu" else (127, -128, 127)
    sizes = np.abs(rows).max(1, keepdims=True) if largest is None else np.array(largest)
    units = np.divide(rows, sizes, out=np.zeros_like(rows), where=sizes > 0)
    integers = np.clip(np.rint(units * levels), low, high)
    scale = np.abs(weight).max(0) / 127
    return integers @ np.rint(weight / scale) * (sizes / levels) * scale + bias


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["gemm", "matmul", "relu"]),
    constant=st.booleans(),
    seed=st.integers(0, 999),
)
def test_a_product_is_integer_arithmetic_and_no_row_changes_another(kind, constant, seed):
    random = np.random.default_rng(seed)
    weight = random.standard_normal((16, 24)).astype(np.float32)
    bias = random.standard_normal(24).astype(np.float32)
    x = random.standard_normal((5, 16)).astype(np.float32) * 10 ** random.uniform(-2, 2, (5, 1))
    x = x.astype(np.float32)
    x[2] = 0
    largest = float(np.abs(x).max()) / 2 if constant else None
    proto = graph_of(kind, weight, bias)
    quantize(proto, {"product": largest} if constant else {})
    assert "MatMulIntegerToFloat" in {node.op_type for node in proto.graph.node}
    y = run(proto, x)
    expected = numpy_product(kind, x, weight, bias, largest)
    # A number halfway between two integers may be rounded either way: by one, in sixteen sums.
    one = np.abs(weight).max() * (np.abs(x).max(1, keepdims=True) if not constant else largest)
    assert (np.abs(y - expected) <= 1e-4 * np.abs(expected) + 2.01 * one / 127).all()
    assert np.mean(np.abs(y - expected) <= 1e-4 * np.abs(expected) + 1e-4) > 0.8
    np.testing.assert_allclose(y[2], bias, rtol=1e-6, atol=1e-6)
    for i, row in enumerate(x):
        assert np.array_equal(run(proto, row[None])[0], y[i])


@pytest.mark.parametrize("size", [100, 4000])
def test_only_large_embeddings_become_int8(size):
    table = np.random.default_rng(0).standard_normal((size, 128)).astype(np.float32)
    node = helper.make_node("Gather", ["table", "x"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["rows"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 128])
    graph = helper.make_graph([node], "table", [x], [y], [numpy_helper.from_array(table, "table")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=11)
    quantize(proto, {})
    onnx.checker.check_model(proto)
    ids = np.array([0, 7, 99])
    error = np.abs(run(proto, ids) - table[ids]).max()
    assert error <= np.abs(table[ids]).max() / 254 * 1.01
    assert (error > 0) == (size == 4000)


def test_compare_measures_the_error_of_int8(g2p, tmp_path):
    """Equal graphs have no error; the default model's int8 graphs have a small one."""
    model = load_model(g2p).transformer
    for precision in ("fp32", "int8"):
        shutil.copytree(g2p / "fp32", tmp_path / precision)
    assert compare(tmp_path, model) == Difference(mean=0.0, largest=0.0, same_best=1.0)
    found = compare(g2p, model)
    assert 0 < found.mean < 0.05
    assert found.same_best > 0.97
