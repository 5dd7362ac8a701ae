"""Export a torch module to an ONNX graph that holds its constants."""

import logging
import warnings
from ast import literal_eval
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import onnx
import torch
from torch import Tensor, nn
from torch.export import Dim

from model.export.kernel import OPSET
from model.export.rewrite import merge_products

Axes = dict[str, dict[int, Dim] | None]


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """A wrapper module, example inputs, and the names of inputs (with free axes) and outputs."""

    module: nn.Module
    example: tuple[Tensor, ...]
    inputs: Axes
    outputs: list[str]


def export_graph(spec: GraphSpec) -> onnx.ModelProto:
    """Trace `spec.module`; its free axes take any size, whatever the example's."""
    axes = tuple(spec.inputs.values())
    fixed = len([name for name in spec.inputs if not name.startswith(("self_", "cross_"))])
    dynamic_shapes = (*axes[:fixed], axes[fixed:]) if axes[fixed:] else axes  # *caches are a tuple
    with quiet():
        program = torch.onnx.export(
            spec.module.eval(),
            spec.example,
            input_names=list(spec.inputs),
            output_names=spec.outputs,
            dynamic_shapes=dynamic_shapes,
            dynamo=True,
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None  # None is returned only by an exporter that writes files itself
    proto = program.model_proto
    name_products(proto.graph)
    for traced in (*proto.graph.node, *proto.graph.value_info, proto.graph, proto):
        del traced.metadata_props[:]  # stack traces of the machine that exported
    merge_products(proto.graph)
    return proto


def name_products(graph: onnx.GraphProto) -> None:
    """Name the product of every linear layer by its module: "decoder.layers.0.feed_forward.up".

    The names of weights cannot identify layers: equal weights of two layers become one initializer,
    and a folded Transpose has a number for a name. The exporter's metadata lists the modules around
    each node; the last is the operation itself, and the one before it the innermost module.
    """
    for node in graph.node:
        for entry in node.metadata_props:
            if node.op_type in ("Gemm", "MatMul") and entry.key == "pkg.torch.onnx.name_scopes":
                *_, module, _ = ["", *literal_eval(entry.value)]
                node.name = module.removeprefix("model.")  # the attribute of the wrapper


@contextmanager
def quiet() -> Generator[None]:
    """Silence two warnings of the exporter.

    Several axes share a name on purpose, and torchvision, which it misses, is not needed.
    """
    logger = logging.getLogger("torch.onnx._internal.exporter")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="# The axis name")
            warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")
            yield
    finally:
        logger.setLevel(level)
