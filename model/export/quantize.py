"""int8 as a pass over exported graphs: 8-bit products. No row's result depends on another row.

Weights have a scale for each output channel. Activations have one for each row, taken from the row
itself, or a constant where calibration finds that rows hardly differ in size, as after a layer
norm. Either way a row's numbers are the same alone and in any batch. Dynamic quantisation of a
whole tensor (`DynamicQuantizeMatMul`) would let one row change the answer of another.
"""

from collections import Counter
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from model.export.rewrite import MICROSOFT

FloatArray = NDArray[np.float32]
LARGE_EMBEDDING = 1 << 20  # bytes from which int8 is worth two more operators per look-up
Scales = dict[str, float]  # largest activation that a linear layer receives, by the layer's name


class Quantizer:
    """Rewrite one graph to int8. Rows that several products read are quantised once."""

    def __init__(self, graph: onnx.GraphProto, scales: Scales) -> None:
        self._graph = graph
        self._scales = scales
        self._arrays = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        self._producers = {name: node for node in graph.node for name in node.output}
        self._nodes: list[onnx.NodeProto] = []
        self._seen: set[str] = set()  # rows that are quantised already

    def run(self) -> None:
        merge_biases(self._graph, self._arrays)
        for node in self._graph.node:
            weight = self._arrays.get(node.input[1]) if len(node.input) > 1 else None
            if node.op_type == "Concat" and all(name in self._arrays for name in node.input):
                self._fold(node)
            elif node.op_type in ("Gemm", "MatMul") and weight is not None and weight.ndim == 2:
                transposed = node.op_type == "Gemm"
                self._product(node, weight.T if transposed else weight)
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

    def _fold(self, node: onnx.NodeProto) -> None:
        """Replace a concatenation of constants, as of merged products' weights, by one constant."""
        parts = [self._arrays[name] for name in node.input]
        self._arrays[node.output[0]] = np.concatenate(parts, node.attribute[0].i)

    def _product(self, node: onnx.NodeProto, weight: FloatArray) -> None:
        """Multiply rows as u8 with weight (K, N) as int8, undo both scales and add the bias."""
        rows, name, *bias = node.input
        output = node.output[0]
        self._arrays |= quantized(f"{name}_int8", weight, axis=0)
        producer = self._producers.get(rows)
        positive = producer is not None and producer.op_type == "Relu"
        levels, zero = (255, 0) if positive else (127, 128)
        zero_point = f"zero_{zero}"
        self._arrays[zero_point] = np.array(zero, np.uint8)
        largest = self._scales.get(node.name)  # also of merged products, which read the same rows
        if largest is not None:
            scale, units = f"{rows}_scale", rows
            self._arrays[scale] = np.array(largest / levels, np.float32)
        else:
            scale, units = f"scale_{levels}", self._divided(rows, positive)
            self._arrays[scale] = np.array(1 / levels, np.float32)
        if f"{units}_u8" not in self._seen:
            self._add("QuantizeLinear", [units, scale, zero_point], f"{units}_u8")
        inputs = [f"{units}_u8", f"{name}_int8", scale, f"{name}_int8_scale", zero_point]
        product = {"domain": MICROSOFT, "name": node.name}
        if largest is not None:
            self._add("MatMulIntegerToFloat", [*inputs, "", *bias], output, **product)
            return
        self._add("MatMulIntegerToFloat", inputs, f"{output}_units", **product)
        scaled = f"{output}_scaled" if bias else output
        self._add("Mul", [f"{output}_units", f"{rows}_largest"], scaled)
        if bias:
            self._add("Add", [scaled, *bias], output)

    def _divided(self, rows: str, positive: bool) -> str:
        """Divide each row by its largest absolute value and return the name of the result.

        A row of zeros is divided by zero, which may give any integers: they are multiplied by zero
        again.
        """
        if f"{rows}_units" not in self._seen:
            self._arrays["last_axis"] = np.array([-1])
            if not positive:
                self._add("Abs", [rows], f"{rows}_sizes")
            sizes = rows if positive else f"{rows}_sizes"
            self._add("ReduceMax", [sizes, "last_axis"], f"{rows}_largest", keepdims=1)
            self._add("Div", [rows, f"{rows}_largest"], f"{rows}_units")
        return f"{rows}_units"

    def _is_large(self, name: str) -> bool:
        return name in self._arrays and self._arrays[name].nbytes >= LARGE_EMBEDDING

    def _look_up(self, node: onnx.NodeProto) -> None:
        """Store an embedding as int8 with a scale for each row."""
        (name, ids), output = node.input, node.output[0]
        self._arrays |= quantized(f"{name}_int8", self._arrays[name], axis=1)
        self._add("Gather", [f"{name}_int8", ids], f"{output}_int8")
        self._add("Cast", [f"{output}_int8"], f"{output}_unit", to=onnx.TensorProto.FLOAT)
        self._add("Gather", [f"{name}_int8_scale", ids], f"{output}_scale")
        self._add("Mul", [f"{output}_unit", f"{output}_scale"], output)

    def _add(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> None:
        self._seen.add(output)
        self._nodes.append(helper.make_node(op_type, inputs, [output], **attributes))


def merge_biases(graph: onnx.GraphProto, constants: dict[str, NDArray[Any]]) -> None:
    """Make the bias a third input of MatMul, where the exporter wrote MatMul and Add.

    It does so for inputs of three axes. Such a MatMul is no longer valid ONNX: only `Quantizer`
    reads it.
    """
    uses = Counter(name for node in graph.node for name in node.input)
    products = {
        node.output[0]: node
        for node in graph.node
        if node.op_type == "MatMul" and uses[node.output[0]] == 1
    }
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        product = products.get(node.input[0]) if node.op_type == "Add" else None
        bias = constants.get(node.input[1]) if product else None
        if product is None or bias is None or bias.ndim != 1 or product.input[1] not in constants:
            kept.append(node)
            continue
        product.input.append(node.input[1])
        product.output[0] = node.output[0]
    del graph.node[:]
    graph.node.extend(kept)


def quantized(name: str, weight: FloatArray, axis: int) -> dict[str, NDArray[np.generic]]:
    """Return `weight` as int8 and its scales, one for each slice along `axis`.

    Their names are {name} and {name}_scale. A slice of zeros has a scale of 0.
    """
    scale = np.abs(weight).max(axis, keepdims=True) / np.float32(127)
    unit = np.divide(weight, scale, out=np.zeros_like(weight), where=scale > 0)
    scale = scale.ravel() if axis == 0 else scale
    return {name: np.rint(unit).astype(np.int8), f"{name}_scale": scale.astype(np.float32)}


def quantize(proto: onnx.ModelProto, scales: Scales) -> None:
    """Turn products with constant matrices, and large embeddings, into int8.

    `scales` are by node name, as `name_products` gives them; other products scale each row.
    """
    Quantizer(proto.graph, scales).run()
    if MICROSOFT not in (opset.domain for opset in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
