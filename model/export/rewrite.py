"""What is done to exported graphs before they are written."""

from collections import Counter

import onnx
from onnx import helper

MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators


def merge_products(graph: onnx.GraphProto) -> None:
    """Products of the same rows that are only concatenated become one, of concatenated weights."""
    producers = {name: node for node in graph.node for name in node.output}
    uses = Counter(name for node in graph.node for name in node.input)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        parts = [producers[name] for name in node.input if name in producers]
        rows = {part.input[0] for part in parts if part.op_type == "Gemm"}
        mergeable = node.op_type == "Concat" and len(parts) == len(node.input) and len(rows) == 1
        if mergeable and all(
            part.op_type == "Gemm" and uses[part.output[0]] == 1 for part in parts
        ):
            nodes = [other for other in nodes if other not in parts]
            nodes += merged(rows.pop(), parts, node.output[0])
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def merged(rows: str, parts: list[onnx.NodeProto], output: str) -> list[onnx.NodeProto]:
    """The runtime folds the concatenations when it opens the graph."""
    weights, biases = ([part.input[place] for part in parts] for place in (1, 2))
    inputs = [rows, f"{output}_weight", f"{output}_bias"]
    return [
        helper.make_node("Concat", weights, [inputs[1]], axis=0),
        helper.make_node("Concat", biases, [inputs[2]], axis=0),
        helper.make_node("Gemm", inputs, [output], transB=1),
    ]
