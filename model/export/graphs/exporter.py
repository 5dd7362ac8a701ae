"""Export a torch module to an ONNX graph that names its weights and holds none of them."""

import logging
import warnings
from ast import literal_eval
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir
import torch
from onnx_ir.convenience import replace_all_uses_with
from onnxscript.optimizer import optimize_ir
from torch import Tensor, nn
from torch.export import Dim

from model.export.graphs.kernel import OPSET
from model.export.graphs.rewrite import write_scans

Axes = dict[str, dict[int, Dim] | None]
LARGEST_INLINE = 256  # bytes of a constant that may stay inside a graph


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """A wrapper module, example inputs, and the names of inputs (with free axes) and outputs."""

    module: nn.Module
    example: tuple[Tensor, ...]
    inputs: Axes
    outputs: list[str]


def export_graph(spec: GraphSpec, weights: Mapping[str, str]) -> onnx.ModelProto:
    """Trace `spec.module`; its free axes take any size, whatever the example's.

    `weights` maps names of the module's state dict to names in the graph. Nodes read weights by
    these names, which no initializer defines: the graph stays small whatever the model's size.
    Raise ValueError if a large constant is not a tensor of the state dict.
    """
    from torch._dynamo import config as tracing  # here, since other commands start 0.8 s faster

    axes = tuple(spec.inputs.values())
    fixed = len([name for name in spec.inputs if not name.startswith(("self_", "cross_"))])
    dynamic_shapes = (*axes[:fixed], axes[fixed:]) if axes[fixed:] else axes  # *caches are a tuple
    # Without this cache, which compares symbolic sizes, tracing takes a quarter less time.
    with quiet(), tracing.patch(fake_tensor_cache_enabled=False):
        program = torch.onnx.export(
            spec.module.eval(),
            spec.example,
            input_names=list(spec.inputs),
            output_names=spec.outputs,
            dynamic_shapes=dynamic_shapes,
            dynamo=True,
            opset_version=OPSET,
            verbose=False,
            optimize=False,  # it would fold transposed weights into constants of their own
        )
    assert program is not None  # None is returned only by an exporter that writes files itself
    proto = without_weights(program.model, weights)
    name_products(proto.graph)
    write_scans(proto)
    for traced in (*proto.graph.node, *proto.graph.value_info, proto.graph, proto):
        del traced.metadata_props[:]  # stack traces of the machine that exported
    return proto


def without_weights(model: onnx_ir.Model, weights: Mapping[str, str]) -> onnx.ModelProto:
    """Optimise `model` and return it with weights that are only named.

    The weights are removed first, because the optimiser would fold and compare them. The names of a
    tied weight become one value.
    """
    initializers = model.graph.initializers
    values: dict[str, onnx_ir.Value] = {}
    for name in sorted(initializers.keys() & weights.keys()):
        value = initializers.pop(name)
        kept = values.setdefault(weights[name], value)
        if kept is value:
            value.name, value.const_value = weights[name], None
        else:
            replace_all_uses_with(value, kept)
    optimize_ir(model)
    for name, value in initializers.items():
        if value.const_value is not None and value.const_value.nbytes > LARGEST_INLINE:
            raise ValueError(
                f"constant {name} {value.shape} is larger than {LARGEST_INLINE} bytes and is no"
                " tensor of the model: store it as a parameter or buffer"
            )
    return onnx_ir.to_proto(model)


def save_graph(proto: onnx.ModelProto, path: Path) -> None:
    del proto.graph.value_info[:]  # shapes that the runtime infers: a fifth of the file
    onnx.save(proto, path)
    onnx.checker.check_model(path)


def name_products(graph: onnx.GraphProto) -> None:
    """Name the product of every linear layer by its module: "decoder.layers.0.feed_forward.up".

    The names of weights cannot identify layers: two layers may share one weight. The exporter's
    metadata lists the modules around each node; the last is the operation itself, and the one
    before it the innermost module.
    """
    for node in graph.node:
        for entry in node.metadata_props:
            if node.op_type in ("Gemm", "MatMul") and entry.key == "pkg.torch.onnx.name_scopes":
                *_, module, _ = ["", *literal_eval(entry.value)]
                node.name = module.removeprefix("model.")  # the attribute of the wrapper


@contextmanager
def quiet() -> Generator[None]:
    """Silence two warnings of the exporter.

    Several axes share a name on purpose, and torchvision is not needed.
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
