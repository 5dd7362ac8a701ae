"""Write tensors to a safetensors file piece by piece, and refer to them from ONNX graphs.

The safetensors library copies all tensors before it writes the first one. A large checkpoint leaves
no memory for that.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor

from model.export.graphs.rewrite import rename_inputs, replace_nodes

DTYPES = {  # of torch -> safetensors' name, ONNX's type
    torch.float16: ("F16", TensorProto.FLOAT16),
    torch.bfloat16: ("BF16", TensorProto.BFLOAT16),
    torch.float32: ("F32", TensorProto.FLOAT),
    torch.int8: ("I8", TensorProto.INT8),
    torch.int64: ("I64", TensorProto.INT64),
}
PIECE = 1 << 22  # numbers of a tensor that are converted at once


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor to be written: its type, its shape, and its consecutive rows, made when needed."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[Tensor]]

    @property
    def size(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Stored:
    """The place of a tensor in a file, in bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    length: int


def converted(tensor: Tensor, dtype: torch.dtype) -> Source:
    """Return `tensor` with floating-point numbers as `dtype`; integers stay as they are."""
    wanted = dtype if tensor.is_floating_point() else tensor.dtype
    return Source(
        wanted, tuple(tensor.shape), lambda: (each.to(wanted) for each in pieces_of(tensor))
    )


def pieces_of(tensor: Tensor) -> Iterator[Tensor]:
    """Yield consecutive rows of at most PIECE numbers, which share the memory of `tensor`."""
    if not tensor.dim():
        yield tensor
        return
    rows = max(1, PIECE // max(1, tensor[:1].numel()))
    yield from tensor.split(rows)


def write_tensors(path: Path, sources: Mapping[str, Source]) -> dict[str, Stored]:
    """Write a safetensors file and return where each tensor lies in it, wide types first."""
    ordered = sorted(sources.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header: dict[str, object] = {}
    end = 0
    for name, source in ordered:
        begin, end = end, end + source.size
        dtype, _ = DTYPES[source.dtype]
        header[name] = {"dtype": dtype, "shape": source.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers begin at a multiple of 8
    stored: dict[str, Stored] = {}
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, source in ordered:
            stored[name] = Stored(source.dtype, source.shape, file.tell(), source.size)
            for piece in source.pieces():
                file.write(piece.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return stored


def refer_to(
    graph: onnx.GraphProto, location: str, stored: Mapping[str, Stored], *, cast: bool = True
) -> None:
    """Let the graph read its weights from the file `location` in its folder.

    If `cast`, numbers that are stored in half precision are cast to float32; the runtime does so
    when it opens the graph.
    """
    read = {name for node in graph.node for name in node.input if name in stored}
    types = (torch.float16, torch.bfloat16) if cast else ()
    halves = {name for name in read if stored[name].dtype in types}
    rename_inputs(graph, {name: f"{name}_fp32" for name in halves})
    casts = [
        helper.make_node("Cast", [name], [f"{name}_fp32"], to=TensorProto.FLOAT)
        for name in sorted(halves)
    ]
    replace_nodes(graph, [*casts, *graph.node])
    graph.initializer.extend(external_tensor(name, location, stored[name]) for name in sorted(read))


def external_tensor(name: str, location: str, stored: Stored) -> TensorProto:
    """Return an initializer whose bytes stay in the file."""
    _, data_type = DTYPES[stored.dtype]
    tensor = TensorProto(name=name, dims=stored.shape, data_type=data_type)
    tensor.data_location = TensorProto.EXTERNAL
    place = {"location": location, "offset": stored.offset, "length": stored.length}
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor
