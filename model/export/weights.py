"""Let graphs read their weights from a safetensors file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file
from torch import Tensor

DATA_TYPES = {
    "F16": TensorProto.FLOAT16,
    "F32": TensorProto.FLOAT,
    "I8": TensorProto.INT8,
    "I64": TensorProto.INT64,
}
LARGEST_INLINE = 256  # bytes of a constant that may stay inside a graph


def share_weights(graph: onnx.GraphProto, state: dict[str, Tensor], weights: Path) -> None:
    """Replace constants that are tensors of `state` by references to the safetensors file.

    A constant may be the transpose of a tensor, and of any shape. All graphs share the file. Equal
    tensors may be taken for each other, which changes no number. Raises ValueError if a large
    constant is no tensor of the model.
    """
    named: dict[bytes, tuple[str, bool]] = {}
    for name, tensor in state.items():
        for transposed in (True, False) if tensor.dim() == 2 else (False,):
            array = (tensor.T if transposed else tensor).float().contiguous().numpy()
            named[array.tobytes()] = name, transposed
    kept: list[TensorProto] = []
    used: set[str] = set()
    nodes: list[onnx.NodeProto] = []
    for constant in graph.initializer:
        array = numpy_helper.to_array(constant)
        if found := named.get(array.tobytes()):
            name, transposed = found
            used.add(name)
            stored = state[name].T.shape if transposed else state[name].shape
            shape = None if stored == array.shape else array.shape
            nodes += read_weight(name, transposed, shape, constant.name)
        elif array.nbytes <= LARGEST_INLINE:
            kept.append(constant)
        else:
            raise ValueError(
                f"constant {constant.name} {array.shape} is larger than {LARGEST_INLINE} bytes and"
                " equals no tensor of the model: store it as a parameter or buffer"
            )
    nodes += graph.node
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend([*kept, *external_tensors(weights, {name: name for name in used})])
    graph.node.extend(nodes)


def store_constants(graphs: Sequence[onnx.GraphProto], weights: Path) -> None:
    """Move the large constants of all graphs into one safetensors file, equal ones once."""
    stored: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    arrays: dict[str, NDArray[Any]] = {}
    places: list[dict[str, str]] = []
    for graph in graphs:
        places.append({})
        for constant in graph.initializer:
            array = numpy_helper.to_array(constant)
            if array.nbytes > LARGEST_INLINE:
                key = array.dtype.str, array.shape, array.tobytes()
                name = stored.setdefault(key, f"tensor_{len(stored)}")
                arrays[name], places[-1][constant.name] = array, name
    save_file(arrays, weights)
    for graph, names in zip(graphs, places, strict=True):
        kept = [constant for constant in graph.initializer if constant.name not in names]
        del graph.initializer[:]
        graph.initializer.extend([*kept, *external_tensors(weights, names)])


def read_weight(
    name: str, transposed: bool, shape: tuple[int, ...] | None, output: str
) -> list[onnx.NodeProto]:
    """Return nodes that turn the stored tensor into the constant `output`.

    The runtime folds them when it opens the graph.
    """
    last, nodes = f"{output}_fp32", list[onnx.NodeProto]()
    nodes.append(helper.make_node("Cast", [name], [last], to=TensorProto.FLOAT))
    if transposed:
        nodes.append(helper.make_node("Transpose", [last], [f"{output}_transposed"], perm=[1, 0]))
        last = f"{output}_transposed"
    if shape:
        nodes.append(helper.make_node("Constant", [], [f"{output}_shape"], value_ints=shape))
        nodes.append(helper.make_node("Reshape", [last, f"{output}_shape"], [output]))
    nodes[-1].output[0] = output
    return nodes


def external_tensors(weights: Path, names: dict[str, str]) -> list[TensorProto]:
    """Return initializers whose bytes stay in the safetensors file.

    `names` maps names in the graph to names in the file, whose header gives offsets and lengths.
    """
    with weights.open("rb") as file:
        header_length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_length))
    tensors: list[TensorProto] = []
    for name, stored in sorted(names.items()):
        begin, end = header[stored]["data_offsets"]
        data_type = DATA_TYPES[header[stored]["dtype"]]
        tensor = TensorProto(name=name, dims=header[stored]["shape"], data_type=data_type)
        tensor.data_location = TensorProto.EXTERNAL
        place = {
            "location": weights.name,
            "offset": 8 + header_length + begin,
            "length": end - begin,
        }
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
    return tensors
