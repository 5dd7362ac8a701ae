"""int8 as a pass over exported graphs: 8-bit products whose rows do not know each other.

Weights have a scale for each output channel, activations one for each row, taken from the row
itself, so a row's numbers are the same alone and in any batch. Dynamic quantisation of a whole
tensor (`DynamicQuantizeMatMul`) lets one row change the answer of another.
"""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from model.passes import MICROSOFT

FloatArray = NDArray[np.float32]
LARGE_EMBEDDING = 1 << 20  # bytes from which an embedding is worth two more operators a look-up


class Quantizer:
    """Rewrites one graph. Every row that several products read is quantised once."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._arrays = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        self._producers = {name: node for node in graph.node for name in node.output}
        self._nodes: list[onnx.NodeProto] = []
        self._rows: dict[str, tuple[str, str, str, str]] = {}

    def run(self) -> None:
        for node in self._graph.node:
            weight = self._arrays.get(node.input[1]) if len(node.input) > 1 else None
            if node.op_type == "Concat" and all(name in self._arrays for name in node.input):
                axis = node.attribute[0].i
                parts = [self._arrays[name] for name in node.input]
                self._arrays[node.output[0]] = np.concatenate(parts, axis)
            elif node.op_type == "Gemm" and weight is not None:
                self._product(node, weight.T, node.input[2])
            elif node.op_type == "MatMul" and weight is not None and weight.ndim == 2:
                self._product(node, weight, None)
            elif node.op_type == "Gather" and self._is_large(node.input[0]):
                self._look_up(node)
            else:
                self._nodes.append(node)
        used = {name for node in self._nodes for name in node.input}
        del self._graph.node[:], self._graph.initializer[:]
        self._graph.node.extend(self._nodes)
        self._graph.initializer.extend(
            numpy_helper.from_array(array, name)
            for name, array in self._arrays.items()
            if name in used
        )

    def _product(self, node: onnx.NodeProto, weight: FloatArray, bias: str | None) -> None:
        """weight (K, N) -> quantised rows x int8 weight, back to float by both scales, + bias."""
        rows, scale, zero_point, largest = self._quantized_rows(node.input[0])
        name, product, output = node.input[1], f"{node.output[0]}_product", node.output[0]
        self._arrays |= quantized(f"{name}_int8", weight, axis=0)
        inputs = [rows, f"{name}_int8", scale, f"{name}_int8_scale", zero_point]
        self._add("MatMulIntegerToFloat", inputs, product, domain=MICROSOFT)
        if bias is None:
            self._add("Mul", [product, largest], output)
        else:
            self._add("Mul", [product, largest], f"{output}_scaled")
            self._add("Add", [f"{output}_scaled", bias], output)

    def _quantized_rows(self, name: str) -> tuple[str, str, str, str]:
        """Names of the rows as u8, of their scale and zero point, and of each row's largest size.

        A row of zeros is divided by zero; whatever integers come of it are multiplied by that zero.
        """
        if name in self._rows:
            return self._rows[name]
        producer = self._producers.get(name)
        positive = producer is not None and producer.op_type == "Relu"
        levels, zero = (255, 0) if positive else (127, 128)
        scale, zero_point, last = f"scale_{levels}", f"zero_{zero}", "last_axis"
        self._arrays[scale] = np.array(1 / levels, np.float32)
        self._arrays[zero_point] = np.array(zero, np.uint8)
        self._arrays[last] = np.array([-1])
        size = name
        if not positive:
            size = f"{name}_size"
            self._add("Abs", [name], size)
        self._add("ReduceMax", [size, last], f"{name}_largest", keepdims=1)
        self._add("Div", [name, f"{name}_largest"], f"{name}_unit")
        self._add("QuantizeLinear", [f"{name}_unit", scale, zero_point], f"{name}_u8")
        self._rows[name] = f"{name}_u8", scale, zero_point, f"{name}_largest"
        return self._rows[name]

    def _is_large(self, name: str) -> bool:
        return name in self._arrays and self._arrays[name].nbytes >= LARGE_EMBEDDING

    def _look_up(self, node: onnx.NodeProto) -> None:
        """An embedding as int8 with a scale for each row."""
        (name, ids), output = node.input, node.output[0]
        self._arrays |= quantized(f"{name}_int8", self._arrays[name], axis=1)
        self._add("Gather", [f"{name}_int8", ids], f"{output}_int8")
        self._add("Cast", [f"{output}_int8"], f"{output}_unit", to=onnx.TensorProto.FLOAT)
        self._add("Gather", [f"{name}_int8_scale", ids], f"{output}_scale")
        self._add("Mul", [f"{output}_unit", f"{output}_scale"], output)

    def _add(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> None:
        self._nodes.append(helper.make_node(op_type, inputs, [output], **attributes))


def quantized(name: str, weight: FloatArray, axis: int) -> dict[str, NDArray[np.generic]]:
    """int8 and scales, one for each slice along `axis`: {name} and {name}_scale."""
    scale = np.abs(weight).max(axis, keepdims=True) / np.float32(127)
    unit = np.divide(weight, scale, out=np.zeros_like(weight), where=scale > 0)
    scale = scale.ravel() if axis == 0 else scale
    return {name: np.rint(unit).astype(np.int8), f"{name}_scale": scale.astype(np.float32)}


def quantize(proto: onnx.ModelProto) -> None:
    """Products with constant matrices, and large embeddings, become int8."""
    Quantizer(proto.graph).run()
    if MICROSOFT not in (opset.domain for opset in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
