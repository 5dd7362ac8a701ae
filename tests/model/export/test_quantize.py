"""int8 products equal integer arithmetic in NumPy."""

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from safetensors.numpy import load_file

from model.checkpoint import load_model
from model.export.checks.answers import answer
from model.export.checks.compare import compare, open_graph
from model.export.checks.samples import samples
from model.export.files.tensor_file import refer_to, write_tensors
from model.export.files.weights import int8_names, int8_sources
from model.export.graphs.kernel import OPSET
from model.export.precision.quantize import quantize
from model.network.config import TransformerConfig
from model.network.transformer import Transformer


def graph_of(kind):
    """Products of rows x (R, 16): Gemm, MatMul and Add, or Gemm of the rows' positive parts.

    As the exporter writes them: the weight "w" (24, 16) and the bias "b" are named only.
    """
    nodes = {
        "gemm": [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "product", transB=1)],
        "matmul": [
            helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "wt"], ["xw"], "product"),
            helper.make_node("Add", ["xw", "b"], ["y"]),
        ],
        "relu": [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("Gemm", ["r", "w", "b"], ["y"], "product", transB=1),
        ],
    }[kind]
    x, y = tensor_info("x", 16), tensor_info("y", 24)
    return model_of(helper.make_graph(nodes, "product", [x], [y]))


def tensor_info(name, *sizes, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, ["rows", *sizes])


def model_of(graph):
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=11)


def save(proto, tensors, int8, folder, scales=None, wide=()):
    """Quantise the graph and write it next to its weights, as `write_bundle` does."""
    tensors = {name: torch.from_numpy(array) for name, array in tensors.items()}
    biases = {name for name, tensor in tensors.items() if tensor.dim() == 1}
    quantize(proto, scales or {}, int8, biases, wide)
    stored = write_tensors(folder / "weights.safetensors", int8_sources(tensors, int8, {}))
    refer_to(proto.graph, "weights.safetensors", stored)
    onnx.save(proto, folder / "graph.onnx")
    onnx.checker.check_model(folder / "graph.onnx")
    return load_file(folder / "weights.safetensors")


def run(folder, x):
    return open_graph(folder / "graph.onnx").run(None, {"x": x})[0]


def numpy_product(kind, x, weight, bias, largest, wide):
    """Multiply as 8-bit integers: rows by a scale of their own, or all by one. A wide product also
    multiplies what rounding the rows has left, in units 254 times as small."""
    rows = np.maximum(x, 0) if kind == "relu" else x
    levels, low, high = (255, 0, 255) if kind == "relu" and not wide else (127, -128, 127)
    sizes = np.abs(rows).max(1, keepdims=True) if largest is None else np.array(largest)
    units = np.divide(rows, sizes, out=np.zeros_like(rows), where=sizes > 0)
    integers = np.clip(np.rint(units * levels), low, high)
    if wide:
        integers += np.clip(np.rint((units * levels - integers) * 254), -128, 127) / 254
    scale = np.abs(weight).max(0) / 127
    return integers @ np.rint(weight / scale) * (sizes / levels) * scale + bias


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["gemm", "matmul", "relu"]),
    constant=st.booleans(),
    wide=st.booleans(),
    seed=st.integers(0, 999),
)
def test_a_product_is_integer_arithmetic_and_no_row_changes_another(
    kind, constant, wide, seed, tmp_path_factory
):
    random = np.random.default_rng(seed)
    weight = random.standard_normal((16, 24)).astype(np.float32)
    bias = random.standard_normal(24).astype(np.float32)
    x = random.standard_normal((5, 16)).astype(np.float32) * 10 ** random.uniform(-2, 2, (5, 1))
    x = x.astype(np.float32)
    x[2] = 0
    largest = float(np.abs(x).max()) / 2 if constant else None
    proto, folder = graph_of(kind), tmp_path_factory.mktemp("product")
    scales = {"product": largest} if constant else {}
    products = ["product"] if wide else []
    save(proto, {"w": weight.T.copy(), "b": bias}, {"w"}, folder, scales, products)
    assert "MatMulIntegerToFloat" in {node.op_type for node in proto.graph.node}
    y = run(folder, x)
    expected = numpy_product(kind, x, weight, bias, largest, wide)
    # A number halfway between two integers may be rounded either way: by one, in sixteen sums.
    one = np.abs(weight).max() * (np.abs(x).max(1, keepdims=True) if not constant else largest)
    one = one / 127 / 254 if wide else one / 127
    assert (np.abs(y - expected) <= 1e-4 * np.abs(expected) + 2.01 * one).all()
    assert np.mean(np.abs(y - expected) <= 1e-4 * np.abs(expected) + 1e-4) > 0.8
    np.testing.assert_allclose(y[2], bias, rtol=1e-6, atol=1e-6)
    for i, row in enumerate(x):
        assert np.array_equal(run(folder, row[None])[0], y[i])


def test_a_weight_of_product_and_look_up_is_stored_once(tmp_path):
    """A tied embedding: a row of it is a token, and an output channel of the projection."""
    table = np.random.default_rng(0).standard_normal((100, 16)).astype(np.float32)
    table[3] = 0
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["rows"]),
        helper.make_node("Gemm", ["rows", "table"], ["y"], "product", transB=1),
    ]
    x, y = tensor_info("x", kind=TensorProto.INT64), tensor_info("y", 100)
    proto = model_of(helper.make_graph(nodes, "tied", [x], [y]))
    stored = save(proto, {"table": table}, {"table"}, tmp_path)
    assert {name: array.dtype for name, array in stored.items()} == {
        "table": np.int8,
        "table_scale": np.float32,
    }
    scale = np.abs(table).max(1, keepdims=True) / 127
    rounded = np.rint(np.divide(table, scale, out=np.zeros_like(table), where=scale > 0)) * scale
    np.testing.assert_allclose(stored["table"] * stored["table_scale"][:, None], rounded, rtol=1e-6)
    ids = np.array([0, 7, 99, 3])
    expected = rounded[ids] @ rounded.T
    error = np.abs(run(tmp_path, ids) - expected)
    assert error.max() < 16 * np.abs(rounded).max() ** 2 / 254  # rows are rounded to 8 bits, too


def test_only_large_embeddings_become_int8():
    sizes = {"d_model": 128, "d_ff": 8, "num_heads": 2, "num_encoder_layers": 1}
    vocabularies = {"source_vocab_size": 100, "target_vocab_size": 4000}
    config = TransformerConfig(**sizes, **vocabularies, num_decoder_layers=1)
    names = int8_names(Transformer(config))
    assert "decoder.embedding.tokens.weight" in names
    assert "encoder.embedding.tokens.weight" not in names
    assert "encoder.layers.0.feed_forward.down.weight" in names


def test_a_use_of_an_int8_weight_that_is_not_a_product_is_an_error(tmp_path):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])  # not transposed: no linear layer
    graph = helper.make_graph([node], "odd", [tensor_info("x", 16)], [tensor_info("y", 16)])
    with pytest.raises(ValueError, match="MatMul reads w, which is stored as int8"):
        quantize(model_of(graph), {}, {"w"}, set())


def test_compare_measures_the_error_against_torch(g2p):
    """The fp32 graphs have no error; the default model's int8 graphs have a small one."""
    model = load_model(g2p).transformer
    answers = answer(model, samples(model, seed=1))
    exact = compare(g2p / "fp32", answers)
    assert exact.largest < 1e-3
    assert exact.same_best == 1
    found = compare(g2p / "int8", answers)
    assert 0.001 < found.mean < 0.05
    assert found.same_best > 0.97
