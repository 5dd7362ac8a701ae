"""Rewrite exported graphs before they are saved."""

from collections import Counter
from collections.abc import Collection, Mapping

import onnx
from onnx import helper
from torch import Tensor

MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators
ACCUMULATE = "heed::Accumulate"  # stands for a Scan until `write_scans`


def write_scans(proto: onnx.ModelProto) -> None:
    """Replace each ACCUMULATE of c_0 (B, M), forget and update (T, B, M) by the Scan that returns
    c_t = forget_t c_(t-1) + update_t (T, B, M)."""
    domain, operator = ACCUMULATE.split("::")
    names = "state", "forget", "update", "new_state", "states"
    state, forget, update, new_state, states = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names
    )
    nodes = [
        helper.make_node("Mul", ["forget", "state"], ["kept"]),
        helper.make_node("Add", ["kept", "update"], ["new_state"]),
        helper.make_node("Identity", ["new_state"], ["states"]),
    ]
    body = helper.make_graph(nodes, "accumulate", [state, forget, update], [new_state, states])
    for node in proto.graph.node:
        if (node.domain, node.op_type) == (domain, operator):
            last = f"{node.output[0]}_last"
            outputs = [last, *node.output]
            node.CopyFrom(
                helper.make_node("Scan", node.input, outputs, body=body, num_scan_inputs=2)
            )
    kept = [each for each in proto.opset_import if each.domain != domain]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)


def merge_products(graph: onnx.GraphProto) -> None:
    """Merge matrix products that read the same rows and whose results only one Concat reads.

    One product of concatenated weights is faster than several small ones.
    """
    producers = {name: node for node in graph.node for name in node.output}
    uses = count_uses(graph)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        parts = [producers[name] for name in node.input if name in producers]
        if is_mergeable(node, parts, uses):
            nodes = [other for other in nodes if other not in parts]
            nodes += merged(parts, node.output[0])
        else:
            nodes.append(node)
    replace_nodes(graph, nodes)


def is_mergeable(node: onnx.NodeProto, parts: list[onnx.NodeProto], uses: Counter[str]) -> bool:
    """Return whether `node` concatenates products of the same rows, which nothing else reads.

    All of them have a bias, or none.
    """
    return (
        node.op_type == "Concat"
        and len(parts) == len(node.input)
        and all(part.op_type == "Gemm" and uses[part.output[0]] == 1 for part in parts)
        and len({(part.input[0], len(part.input)) for part in parts}) == 1
    )


def merged(parts: list[onnx.NodeProto], output: str) -> list[onnx.NodeProto]:
    """Return one product, named by its first part, of weights and biases that are concatenated.

    The runtime folds the concatenations when it opens the graph.
    """
    rows, *constants = parts[0].input
    names = [f"{output}_weight", f"{output}_bias"][: len(constants)]
    return [
        *(
            helper.make_node("Concat", [part.input[place] for part in parts], [name], axis=0)
            for place, name in enumerate(names, 1)
        ),
        helper.make_node("Gemm", [rows, *names], [output], name=parts[0].name, transB=1),
    ]


def drop_zero_biases(graph: onnx.GraphProto, biases: Mapping[str, Tensor]) -> None:
    """Remove biases that are all zeros, as they are in layers of models without biases.

    For inputs of three axes the exporter writes MatMul and Add, else Gemm.
    """
    zeros = {name for name, bias in biases.items() if not bias.any()}
    for node in graph.node:
        if node.op_type == "Gemm" and node.input[2:] and node.input[2] in zeros:
            del node.input[2]
    for product, add in biased_products(graph, zeros):
        product.output[0] = add.output[0]
        graph.node.remove(add)


def biased_products(
    graph: onnx.GraphProto, biases: Collection[str]
) -> list[tuple[onnx.NodeProto, onnx.NodeProto]]:
    """Return each MatMul whose result only an Add of one of `biases` reads, with that Add."""
    uses = count_uses(graph)
    products = {
        node.output[0]: node
        for node in graph.node
        if node.op_type == "MatMul" and uses[node.output[0]] == 1
    }
    return [
        (products[node.input[0]], node)
        for node in graph.node
        if node.op_type == "Add" and node.input[0] in products and node.input[1] in biases
    ]


def rename_inputs(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)


def count_uses(graph: onnx.GraphProto) -> Counter[str]:
    return Counter(name for node in graph.node for name in node.input)


def replace_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    del graph.node[:]
    graph.node.extend(nodes)
