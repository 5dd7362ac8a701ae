"""Damaged and hostile graphs."""

from functools import partial

import onnx
from onnx import TensorProto, helper

from tests.service.mutations.edit import cut, write

GRAPHS = ("encoder", "step", "attention", "encoder_attention", "score")


def edit_graph(graph, change, folder):
    path = folder / "fp32" / f"{graph}.onnx"
    model = onnx.load(str(path), load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())


def set_external(key, value):
    def change(model):
        initializer = next(each for each in model.graph.initializer if each.external_data)
        for entry in initializer.external_data:
            if entry.key == key:
                entry.value = value

    return change


def set_domain(domain, imported):
    def change(model):
        model.graph.node[0].domain = domain
        if imported:
            model.opset_import.append(helper.make_opsetid(domain, 1))

    return change


def set_opset(version):
    def change(model):
        model.opset_import[0].version = version

    return change


def add_to_output(nodes, *initializers):
    """A change that adds what `nodes` compute, a number named "more", to the first output."""

    def change(model):
        name = model.graph.output[0].name
        for node in model.graph.node:
            node.output[:] = ["before" if each == name else each for each in node.output]
            node.input[:] = ["before" if each == name else each for each in node.input]
        model.graph.initializer.extend(initializers)
        model.graph.node.extend([*nodes, helper.make_node("Add", ["before", "more"], [name])])

    return change


def numbers(name, kind, values):
    return helper.make_tensor(name, kind, [len(values)], values)


def large_tensor(count):
    """A change that adds the sum of `count` zeros, which are as many as floats in memory."""
    nodes = [
        helper.make_node("ConstantOfShape", ["many"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["more"], keepdims=0),
    ]
    return add_to_output(nodes, numbers("many", TensorProto.INT64, [count]))


def endless_loop(turns):
    """A change that adds the result of a Loop of so many turns."""
    state = [
        helper.make_tensor_value_info("turn", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("in", TensorProto.FLOAT, [1]),
    ]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Identity", ["in"], ["out"]),
        ],
        "body",
        state,
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("out", TensorProto.FLOAT, [1]),
        ],
    )
    return add_to_output(
        [helper.make_node("Loop", ["turns", "", "zero"], ["more"], body=body)],
        helper.make_tensor("turns", TensorProto.INT64, [], [turns]),
        numbers("zero", TensorProto.FLOAT, [0.0]),
    )


def other_type(model):
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT32


def other_input(model):
    name = model.graph.input[0].name
    for node in model.graph.node:
        node.input[:] = ["renamed" if each == name else each for each in node.input]
    model.graph.input[0].name = "renamed"


def fewer_outputs(model):
    del model.graph.output[-1]


def nan_in_graph(model):
    add_to_output(
        [helper.make_node("Identity", ["damaged"], ["more"])],
        numbers("damaged", TensorProto.FLOAT, [float("nan")]),
    )(model)


def next_ids(model):
    """Let the step graph name the token after each best one."""
    for node in model.graph.node:
        node.output[:] = ["before" if each == "top_ids" else each for each in node.output]
    model.graph.initializer.append(numbers("one", TensorProto.INT64, [1]))
    model.graph.node.append(helper.make_node("Add", ["before", "one"], ["top_ids"]))


LOCATIONS = ("/etc/passwd", "../model.safetensors", "none", "", "*/_ORT_MEM_ADDR_/*", "step.onnx/x")
GRAPH_FILES = {
    **{f"{graph} cut": partial(cut, f"fp32/{graph}.onnx", 0.5) for graph in GRAPHS},
    **{f"{graph} empty": partial(write, f"fp32/{graph}.onnx", b"") for graph in GRAPHS},
    **{f"{graph} random": partial(write, f"fp32/{graph}.onnx", b"\xb7" * 9999) for graph in GRAPHS},
    **{f"{graph} int32": partial(edit_graph, graph, other_type) for graph in GRAPHS},
    **{f"{graph} renamed": partial(edit_graph, graph, other_input) for graph in GRAPHS},
    **{f"{graph} lacks an output": partial(edit_graph, graph, fewer_outputs) for graph in GRAPHS},
    **{
        f"{graph} of a foreign domain": partial(edit_graph, graph, set_domain("evil.example", True))
        for graph in GRAPHS
    },
    "domain not imported": partial(edit_graph, "step", set_domain("evil.example", False)),
    "opset 99": partial(edit_graph, "encoder", set_opset(99)),
    "opset 1": partial(edit_graph, "encoder", set_opset(1)),
    **{
        f"external data {location!r}": partial(
            edit_graph, "encoder", set_external("location", location)
        )
        for location in LOCATIONS
    },
    "score's external data out": partial(
        edit_graph, "score", set_external("location", "../source.tokenizer.json")
    ),
    "external offset 10^12": partial(edit_graph, "step", set_external("offset", str(10**12))),
    "external offset -5": partial(edit_graph, "step", set_external("offset", "-5")),
    "external length 3": partial(edit_graph, "step", set_external("length", "3")),
    "512 GB tensor": partial(edit_graph, "encoder", large_tensor(1 << 37)),
    "NaN in the encoder": partial(edit_graph, "encoder", nan_in_graph),
    "NaN in the step": partial(edit_graph, "step", nan_in_graph),
    "NaN in the scores": partial(edit_graph, "score", nan_in_graph),
    "NaN in the attention": partial(edit_graph, "attention", nan_in_graph),
    "another best token": partial(edit_graph, "step", next_ids),
    "a short Loop": partial(edit_graph, "encoder", endless_loop(3)),
}
