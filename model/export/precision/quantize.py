"""int8 as a pass over exported graphs: products of integers. No row changes another's result.

Weights have a scale for each output channel. Activations have one for each row, taken from the row
itself, or a constant where calibration finds that rows hardly differ in size, as after a layer
norm. Either way a row's numbers are the same alone and in any batch. Dynamic quantisation of a
whole tensor (`DynamicQuantizeMatMul`) would let one row change the answer of another.

Where 8 bits of activations would change the output too much, a wide product has 16: what rounding
left over is rounded to 8 bits too, and multiplied with the same weights.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from model.export.files.weights import scale_name
from model.export.graphs.rewrite import MICROSOFT, biased_products, replace_nodes
from model.export.precision.int8_products import FINER, Scales


class Quantizer:
    """Rewrite one graph to int8. Rows that several products read are quantised once.

    A weight W of `names` is stored as int8 (N, K) under its own name, with scales (N,) next to it.
    """

    def __init__(
        self, graph: onnx.GraphProto, scales: Scales, names: Collection[str], wide: Collection[str]
    ) -> None:
        self._graph = graph
        self._scales = scales
        self._names = names
        self._wide = wide
        self._constants: dict[str, NDArray[Any]] = {}
        self._producers = {name: node for node in graph.node for name in node.output}
        self._nodes: list[onnx.NodeProto] = []
        self._seen: set[str] = set()  # what this pass has added already

    def run(self) -> None:
        """Raise ValueError if a node reads one of `names` and is not a product, a look-up, or the
        Reshape that cuts an output projection into the slices of its heads."""
        for node in self._graph.node:
            parts = self._weights(node)
            if node.op_type in ("Gemm", "MatMul") and parts:
                self._product(node, parts)
            elif node.op_type == "Gather" and node.input[0] in self._names:
                self._look_up(node)
            elif node.op_type == "Reshape" and node.input[0] in self._names:
                self._slice(node)
            else:
                self._nodes.append(node)
        self._remove_unread()
        replace_nodes(self._graph, self._nodes)
        self._graph.initializer.extend(
            numpy_helper.from_array(array, name) for name, array in self._constants.items()
        )

    def _weights(self, node: onnx.NodeProto) -> list[str]:
        """Return the weights (N, K) that `node` multiplies with: one, or several concatenated.

        A Gemm reads them as they are; a MatMul reads one that a node before it has transposed.
        """
        name = node.input[1] if len(node.input) > 1 else ""
        producer = self._producers.get(name)
        as_stored = any(each.name == "transB" and each.i for each in node.attribute)
        if producer is None:
            parts = [name] if as_stored else []
        elif producer.op_type == ("Concat" if as_stored else "Transpose"):
            parts = [*producer.input]
        else:
            parts = []
        return parts if all(part in self._names for part in parts) else []

    def _product(self, node: onnx.NodeProto, parts: list[str]) -> None:
        """Multiply rows as u8 with weights as int8, undo both scales and add the bias."""
        rows, _, *bias = node.input
        output, is_wide = node.output[0], node.name in self._wide
        weight, weight_scale = self._int8(parts)
        producer = self._producers.get(rows)
        positive = producer is not None and producer.op_type == "Relu"
        levels, zero = (255, 0) if positive and not is_wide else (127, 128)
        zero_point = self._constant(f"zero_{zero}", np.array(zero, np.uint8))
        largest = self._scales.get(node.name)  # also of merged products, which read the same rows
        if largest is not None:
            units = rows
            scale = self._constant(f"{rows}_scale_{levels}", np.array(largest / levels, np.float32))
        else:
            units = self._divided(rows, positive)
            scale = self._constant(f"scale_{levels}", np.array(1 / levels, np.float32))
        read = f"{units}_u8_{levels}"
        self._add("QuantizeLinear", [units, scale, zero_point], read)
        if is_wide:
            read = self._with_remainder(units, read, scale, zero_point)
        # STEP 1: what follows the product, which itself adds the bias if nothing else does
        steps = [("Add", f"{output}_remainder")] if is_wide else []
        steps += [("Mul", f"{rows}_largest")] if largest is None else []
        if steps:
            steps += [("Add", each) for each in bias]
            bias = []
        # STEP 2: the product and these steps
        inputs = [read, weight, scale, weight_scale, zero_point, *([""] if bias else []), *bias]
        found = f"{output}_raw" if steps else output
        self._add("MatMulIntegerToFloat", inputs, found, domain=MICROSOFT, name=node.name)
        if is_wide:
            found = self._split(found, output)
        for place, (op_type, other) in enumerate(steps, start=1):
            result = output if place == len(steps) else f"{output}_raw_{place}"
            self._add(op_type, [found, other], result)
            found = result

    def _with_remainder(self, units: str, read: str, scale: str, zero_point: str) -> str:
        """Append to the rows that were read, on the first axis, what they lack of `units`, as u8
        too: in units that are FINER times as small. So the product reads its weights once."""
        finer = self._constant(f"{scale}_finer", np.array(self._constants[scale] / FINER))
        self._add("DequantizeLinear", [read, scale, zero_point], f"{read}_coarse")
        self._add("Sub", [units, f"{read}_coarse"], f"{read}_lack")
        self._add("QuantizeLinear", [f"{read}_lack", finer, zero_point], f"{read}_remainder")
        self._add("Concat", [read, f"{read}_remainder"], f"{read}_wide", axis=0)
        return f"{read}_wide"

    def _split(self, product: str, output: str) -> str:
        """Split a wide product into that of the rows, whose name is returned, and that of their
        remainder."""
        halves = [f"{output}_coarse", f"{output}_finer"]
        self._nodes.append(
            helper.make_node("Split", [product], halves, axis=0, num_outputs=len(halves))
        )
        unit = self._constant("finer", np.array(1 / FINER, np.float32))
        self._add("Mul", [halves[1], unit], f"{output}_remainder")
        return halves[0]

    def _int8(self, parts: list[str]) -> tuple[str, str]:
        """Return names of the concatenated weights (K, N) and their scales (N,).

        The runtime folds concatenation and transposition when it opens the graph.
        """
        weight, scale = parts[0], scale_name(parts[0])
        if len(parts) > 1:
            weight, scale = f"{weight}_merged", f"{scale}_merged"
            self._add("Concat", parts, weight, axis=0)
            self._add("Concat", [scale_name(part) for part in parts], scale, axis=0)
        self._add("Transpose", [weight], f"{weight}_transposed", perm=[1, 0])
        return f"{weight}_transposed", scale

    def _divided(self, rows: str, positive: bool) -> str:
        """Divide each row by its largest absolute value and return the name of the result.

        A row of zeros is divided by zero, which may give any integers: they are multiplied by zero
        again.
        """
        last_axis = self._constant("last_axis", np.array([-1]))
        sizes = rows if positive else f"{rows}_sizes"
        if not positive:
            self._add("Abs", [rows], sizes)
        self._add("ReduceMax", [sizes, last_axis], f"{rows}_largest", keepdims=1)
        self._add("Div", [rows, f"{rows}_largest"], f"{rows}_units")
        return f"{rows}_units"

    def _look_up(self, node: onnx.NodeProto) -> None:
        """Look up a row of int8 and its scale."""
        (name, ids), output = node.input, node.output[0]
        last_axis = self._constant("last_axis", np.array([-1]))
        scale = f"{scale_name(name)}_column"  # (V, 1)
        self._add("Gather", [name, ids], f"{output}_int8")
        self._add("Cast", [f"{output}_int8"], f"{output}_unit", to=onnx.TensorProto.FLOAT)
        self._add("Unsqueeze", [scale_name(name), last_axis], scale)
        self._add("Gather", [scale, ids], f"{output}_scale")
        self._add("Mul", [f"{output}_unit", f"{output}_scale"], output)

    def _slice(self, node: onnx.NodeProto) -> None:
        """Cut what the int8 numbers stand for: value norms are those of the weights that are
        multiplied with. The runtime folds all of it when it opens the graph."""
        (name, shape), output = node.input, node.output[0]
        last_axis = self._constant("last_axis", np.array([-1]))
        self._add("Cast", [name], f"{name}_unit", to=onnx.TensorProto.FLOAT)
        self._add("Unsqueeze", [scale_name(name), last_axis], f"{scale_name(name)}_column")
        self._add("Mul", [f"{name}_unit", f"{scale_name(name)}_column"], f"{name}_fp32")
        self._add("Reshape", [f"{name}_fp32", shape], output)

    def _add(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> None:
        """Add a node, unless an earlier product has added it."""
        if output not in self._seen:
            self._seen.add(output)
            self._nodes.append(helper.make_node(op_type, inputs, [output], **attributes))

    def _constant(self, name: str, array: NDArray[Any]) -> str:
        self._constants[name] = array
        return name

    def _remove_unread(self) -> None:
        """Remove the transposed and concatenated weights that products of fp32 read."""
        read = {name for node in self._nodes for name in node.input}
        read |= {output.name for output in self._graph.output}
        self._nodes = [node for node in self._nodes if read & {*node.output}]
        for node in self._nodes:
            if node.output[0] in self._seen:
                continue
            if found := [name for name in node.input if name in self._names]:
                raise ValueError(f"{node.op_type} reads {found[0]}, which is stored as int8")


def merge_biases(graph: onnx.GraphProto, biases: Collection[str]) -> None:
    """Make the bias a third input of MatMul, where the exporter wrote MatMul and Add.

    It does so for inputs of three axes. Such a MatMul is no longer valid ONNX: only `Quantizer`
    reads it.
    """
    for product, add in biased_products(graph, biases):
        product.input.append(add.input[1])
        product.output[0] = add.output[0]
        graph.node.remove(add)


def quantize(
    proto: onnx.ModelProto,
    scales: Scales,
    names: Collection[str],
    biases: Collection[str],
    wide: Collection[str] = (),
) -> None:
    """Turn products with the matrices `names`, and look-ups in them, into int8.

    `scales` are by node name, as `name_products` gives them; other products scale each row.
    `biases` are the weights of one axis, without those of other products; `wide` the names of
    products that read 16 bits of their activations.
    """
    merge_biases(proto.graph, biases)
    Quantizer(proto.graph, scales, names, wide).run()
    if MICROSOFT not in (opset.domain for opset in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
