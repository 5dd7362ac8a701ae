"""python -m tests.write_move: write service/runtime/device/{move_float16,move_float32,finite}.onnx.

The first two move the rows of a KV cache in the memory of a device, and the last tells whether
numbers there are finite. service/runtime/device/cache.py and encoder.py run them, and
tests/service/runtime/test_caches.py compares them with NumPy.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from service.runtime.device.cache import MOVE
from service.runtime.device.encoder import FINITE

ROWS, LENGTH = 1, 3  # axes of (L, R, H, T, D)


def fit(name):
    """Return nodes that cut the input `name` at `length`, or pad it with zeros; and the result."""
    kept, held, missing, fitted = (f"{name}_{part}" for part in ("kept", "held", "missing", "fit"))
    nodes = [
        helper.make_node("Slice", [name, "zero", "length", "length_axis"], [kept]),
        helper.make_node("Shape", [kept], [held], start=LENGTH, end=LENGTH + 1),
        helper.make_node("Sub", ["length", held], [missing]),
        helper.make_node("Concat", ["zero", missing], [f"{name}_pads"], axis=0),
        helper.make_node("Pad", [kept, f"{name}_pads", "", "length_axis"], [fitted]),
    ]
    return nodes, fitted


def branch(name, nodes, output, element):
    outputs = [helper.make_tensor_value_info(output, element, [None] * 5)]
    return helper.make_graph(nodes, name, [], outputs)


def move_graph(element):
    """Return If(join, Gather(Concat(fit(old), fit(new)), order), Gather(old, order))."""
    old, fit_old = fit("old")
    new, fit_new = fit("new")
    join = [
        *(old + new),
        helper.make_node("Concat", [fit_old, fit_new], ["rows"], axis=ROWS),
        helper.make_node("Gather", ["rows", "order"], ["joined"], axis=ROWS),
    ]
    pick = [helper.make_node("Gather", ["old", "order"], ["picked"], axis=ROWS)]
    node = helper.make_node(
        "If",
        ["join"],
        ["moved"],
        then_branch=branch("join", join, "joined", element),
        else_branch=branch("pick", pick, "picked", element),
    )
    inputs = [
        helper.make_tensor_value_info("join", TensorProto.BOOL, []),
        helper.make_tensor_value_info("old", element, ["L", "R", "H", "T", "D"]),
        helper.make_tensor_value_info("new", element, ["L", "N", "H", "T2", "D"]),
        helper.make_tensor_value_info("order", TensorProto.INT64, ["M"]),
        helper.make_tensor_value_info("length", TensorProto.INT64, [1]),
    ]
    outputs = [helper.make_tensor_value_info("moved", element, ["L", "M", "H", "length", "D"])]
    constants = {"zero": [0], "length_axis": [LENGTH]}
    initializers = [
        numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in constants.items()
    ]
    return checked(helper.make_graph([node], "move", inputs, outputs, initializers))


def finite_graph():
    """Return the sum of each number minus itself: 0 if all are finite, else NaN."""
    numbers = helper.make_tensor_value_info("numbers", TensorProto.FLOAT, ["B", "S", "M"])
    zero = helper.make_tensor_value_info("zero", TensorProto.FLOAT, [])
    nodes = [
        helper.make_node("Sub", ["numbers", "numbers"], ["differences"]),
        helper.make_node("ReduceSum", ["differences"], ["zero"], keepdims=0),
    ]
    return checked(helper.make_graph(nodes, "finite", [numbers], [zero]))


def checked(graph):
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


if __name__ == "__main__":
    for dtype, path in MOVE.items():
        onnx.save(move_graph(helper.np_dtype_to_tensor_dtype(np.dtype(dtype))), path)
    onnx.save(finite_graph(), FINITE)
