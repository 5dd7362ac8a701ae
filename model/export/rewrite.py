"""Rewrite exported graphs before they are saved."""

from collections import Counter

import onnx
from onnx import helper

MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators


def merge_products(graph: onnx.GraphProto) -> None:
    """Merge matrix products that read the same rows and whose results only one Concat reads.

    One product of concatenated weights is faster than several small ones.
    """
    producers = {name: node for node in graph.node for name in node.output}
    uses = Counter(name for node in graph.node for name in node.input)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        parts = [producers[name] for name in node.input if name in producers]
        if is_mergeable(node, parts, uses):
            nodes = [other for other in nodes if other not in parts]
            nodes += merged(parts, node.output[0])
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def is_mergeable(node: onnx.NodeProto, parts: list[onnx.NodeProto], uses: Counter[str]) -> bool:
    """Return whether `node` concatenates products of the same rows, which nothing else reads."""
    return (
        node.op_type == "Concat"
        and len(parts) == len(node.input)
        and all(part.op_type == "Gemm" and uses[part.output[0]] == 1 for part in parts)
        and len({part.input[0] for part in parts}) == 1
    )


def merged(parts: list[onnx.NodeProto], output: str) -> list[onnx.NodeProto]:
    """Return one product, named by its first part, of weights and biases that are concatenated.

    The runtime folds the concatenations when it opens the graph.
    """
    weights, biases = ([part.input[place] for part in parts] for place in (1, 2))
    inputs = [parts[0].input[0], f"{output}_weight", f"{output}_bias"]
    return [
        helper.make_node("Concat", weights, [inputs[1]], axis=0),
        helper.make_node("Concat", biases, [inputs[2]], axis=0),
        helper.make_node("Gemm", inputs, [output], name=parts[0].name, transB=1),
    ]
