"""python -m tests.write_product: write service/runtime/product.onnx.

It is a product of u8 rows and s8 weights whose sums saturate where ONNX Runtime adds pairs in 16
bits; the service runs it once to find out. tests/service/runtime/test_int8.py reads it.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from service.runtime.providers import LARGEST_ROWS, PRODUCT


def product_graph():
    depth = LARGEST_ROWS.size
    weight = numpy_helper.from_array(np.full((depth, 8), 127, np.int8), "weight")
    rows = helper.make_tensor_value_info("rows", TensorProto.UINT8, [1, depth])
    product = helper.make_tensor_value_info("product", TensorProto.INT32, [1, 8])
    node = helper.make_node("MatMulInteger", ["rows", "weight"], ["product"])
    graph = helper.make_graph([node], "product", [rows], [product], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


if __name__ == "__main__":
    onnx.save(product_graph(), PRODUCT)
