"""fp16 as a pass over exported graphs: half precision, except where it would spoil results.

Softmaxes over the vocabulary, sums of squares and means are computed in float32. So are the
operators of FOLLOWING that read their results; all others get a Cast. Norms that are one operator
add up in float32 themselves (their `stash_type`), and attention operators weigh in float32.
"""

import re
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from model.export.graphs.rewrite import replace_nodes

HALF, FULL = int(TensorProto.FLOAT16), int(TensorProto.FLOAT)
SUFFIXES = {HALF: "_fp16", FULL: "_fp32"}
# Computed in float32: half precision would overflow at 65,504, or lose small summands.
# A Scan, whose body is of float32, adds up over the positions of a target.
WIDE = {"Scan", "LogSoftmax", "Pow", "ReduceL2", "ReduceLogSumExp", "ReduceMean", "ReduceSum"}
# Computed in float32 if they read a result of float32.
FOLLOWING = {
    *("Add", "Div", "Mul", "Softmax", "Sub", "Where"),
    *("Concat", "GatherElements", "Reshape", "Split", "Squeeze", "TopK", "Transpose", "Unsqueeze"),
}
# Inputs and outputs that stay on the device between two runs. The service reads all others.
CACHES = re.compile(r"(self|cross)_(key|value|state)_\d+(_out)?")
MASK = "mask_filter_value"  # attribute of an attention operator: the score of a masked key
LEAST = float(np.finfo(np.float16).min)


class Halver:
    """Rewrite one graph to half precision, `weights` included, which are stored as float16.

    Keys and values of the caches are float16; everything else that goes in and out is float32.
    """

    def __init__(self, graph: onnx.GraphProto, weights: set[str]) -> None:
        self._graph = graph
        self._types = dict.fromkeys(weights, HALF)  # of every floating-point value
        self._declared: dict[str, int] = {
            value.name: value.type.tensor_type.elem_type
            for value in (*graph.value_info, *graph.output)
        }
        self._constants = {
            each.name: numpy_helper.to_array(each)
            for each in graph.initializer
            if each.data_type == FULL
        }
        self._written: set[str] = set()  # casts and constants of this pass
        self._renamed: dict[str, str] = {}  # outputs whose own name belongs to a cast
        self._nodes: list[onnx.NodeProto] = []

    def run(self) -> None:
        for value in self._graph.input:
            if value.type.tensor_type.elem_type == FULL:
                self._types[value.name] = self._boundary(value)
        outputs = {value.name: value for value in self._graph.output}
        for node in self._graph.node:
            self._rewrite(node, outputs)
        replace_nodes(self._graph, self._nodes)
        kept = [each for each in self._graph.initializer if each.name not in self._constants]
        del self._graph.initializer[:]
        self._graph.initializer.extend(kept + self._used_constants())
        for value in self._graph.value_info:
            if value.name in self._types:
                value.type.tensor_type.elem_type = self._types[value.name]

    def _rewrite(self, node: onnx.NodeProto, outputs: dict[str, onnx.ValueInfoProto]) -> None:
        read = [self._renamed.get(name, name) for name in node.input]
        floats = [name for name in read if name in self._types or name in self._constants]
        wanted = self._type_of(node, floats)
        node.input[:] = [self._as(name, wanted) if name in floats else name for name in read]
        for attribute in node.attribute:
            if attribute.name == MASK:
                attribute.f = max(attribute.f, LEAST)
        self._nodes.append(node)
        for place, name in enumerate(node.output):
            if self._declared.get(name, FULL if floats else None) != FULL:
                continue
            self._types[name] = wanted
            if name in outputs and (outside := self._boundary(outputs[name])) != wanted:
                inside = node.output[place] = name + SUFFIXES[wanted]
                self._renamed[name], self._types[inside] = inside, wanted
                self._types[name] = outside
                self._nodes.append(helper.make_node("Cast", [inside], [name], to=outside))

    def _type_of(self, node: onnx.NodeProto, floats: list[str]) -> int:
        """Return the type that a node computes in: float32 for a node that reads integers."""
        follows = node.op_type in FOLLOWING
        wide = not floats or (follows and any(self._types.get(name) == FULL for name in floats))
        return FULL if wide or node.op_type in WIDE else HALF

    def _as(self, name: str, wanted: int) -> str:
        """Return the name of a value or constant in the wanted type."""
        if self._types.get(name) == wanted:
            return name
        other = name + SUFFIXES[wanted]
        if other not in self._written and name not in self._constants:
            self._nodes.append(helper.make_node("Cast", [name], [other], to=wanted))
        self._written.add(other)
        return other

    def _used_constants(self) -> list[TensorProto]:
        """Return the constants in each type that nodes read; numbers beyond float16 are clipped."""
        found: list[TensorProto] = []
        for name, array in self._constants.items():
            both: dict[int, NDArray[Any]] = {
                HALF: array.clip(LEAST, -LEAST).astype(np.float16),
                FULL: array,
            }
            names = {name + SUFFIXES[each]: value for each, value in both.items()}
            found += [
                numpy_helper.from_array(value, other)
                for other, value in names.items()
                if other in self._written
            ]
        return found

    def _boundary(self, value: onnx.ValueInfoProto) -> int:
        """Set and return the type of an input or output of the graph."""
        wanted = HALF if CACHES.fullmatch(value.name) else FULL
        value.type.tensor_type.elem_type = wanted
        return wanted


def halve(proto: onnx.ModelProto, weights: set[str]) -> None:
    """Let a graph compute in half precision. `weights` are the names of those stored as float16."""
    Halver(proto.graph, weights).run()
