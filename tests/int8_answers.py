"""python -m tests.saturation: print a u8 x s8 product that saturates in sums of 16 bits."""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from service.runtime.providers import open_graph

DEPTH = 256
EXACT = 255 * 127 * DEPTH


def largest_product() -> int:
    weight = numpy_helper.from_array(np.full((DEPTH, 8), 127, np.int8), "weight")
    rows = helper.make_tensor_value_info("rows", TensorProto.UINT8, [1, DEPTH])
    product = helper.make_tensor_value_info("product", TensorProto.INT32, [1, 8])
    node = helper.make_node("MatMulInteger", ["rows", "weight"], ["product"])
    graph = helper.make_graph([node], "product", [rows], [product], [weight])
    opset = [helper.make_opsetid("", 20)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "product.onnx"
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
        session = open_graph(path, "CPUExecutionProvider")
    (found,) = session.run(None, {"rows": np.full((1, DEPTH), 255, np.uint8)})
    return int(found[0, 0])


if __name__ == "__main__":
    sys.stdout.write(f"{largest_product()}\n")
