"""Tensors of the Open Inference Protocol: as JSON, or as bytes behind the JSON (its binary tensor
data extension). Elements are in row-major order, numbers little-endian."""

import re
import struct
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from typing import Annotated, Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from service.api.reading.field_types import Foreign
from service.api.reading.validation_errors import near_fields
from service.errors import Invalid, Unparsable, shorten
from service.formats.arrays import in_pieces
from service.formats.json import Document, Piece, concatenate, to_json, write

Datatype = Literal["BYTES", "INT64", "FP32", "FP64"]
DTYPES: dict[Datatype, np.dtype[Any]] = {
    "BYTES": np.dtype(object),  # of texts
    "INT64": np.dtype("<i8"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
RANKS = {1: "one axis", 2: "two axes"}  # of inputs
LENGTH = struct.Struct("<I")  # before each element of BYTES
INPUT_EXAMPLE = {"name": "source", "shape": [1], "datatype": "BYTES", "data": ["heed"]}
INT64 = range(-(1 << 63), 1 << 63)


class TensorParameters(Foreign):
    @model_validator(mode="before")
    @classmethod
    def refuse_extensions(cls, value: Any) -> Any:
        """Raise for extensions of Triton that would change the answer."""
        names = cast("dict[str, Any]", value) if isinstance(value, dict) else ()
        for name in names:
            if name == "classification" or name.startswith("shared_memory"):
                message = "has {name}, an extension that is not supported: leave it out"
                raise PydanticCustomError("extension", message, {"name": name})
        return value


class InputParameters(TensorParameters):
    binary_data_size: int | None = Field(default=None, ge=0)


class Input(Foreign):
    name: str
    shape: list[Annotated[int, Field(lt=INT64.stop)]] = Field(max_length=8, examples=[[1]])
    datatype: str
    parameters: InputParameters = InputParameters()
    data: list[Any] | None = Field(default=None, examples=[["heed"]])


class OutputParameters(TensorParameters):
    binary_data: bool | None = None


class RequestedOutput(Foreign):
    name: str
    parameters: OutputParameters = OutputParameters()


class InferRequest(Foreign):
    """`model_name` and `model_version`, which KServe's client sends, replace those of the path.
    Other fields are kept: some may be parameters that stand in the wrong place."""

    model_config = ConfigDict(extra="allow")

    model_name: str = ""
    model_version: str = ""
    id: str = Field(default="", max_length=256)
    parameters: dict[str, Any] = Field(default={})
    inputs: list[Input] = Field(min_length=1, max_length=16, examples=[[INPUT_EXAMPLE]])
    outputs: list[RequestedOutput] = Field(default=[], max_length=64, examples=[[{"name": "text"}]])


class Form(NamedTuple):
    """The form of a tensor. `rank` counts the axes, whose sizes depend on the request."""

    datatype: Datatype
    rank: int


class Tensor(NamedTuple):
    datatype: Datatype
    array: NDArray[Any]


def check_name(name: str, known: Sequence[str], kind: str) -> None:
    """Raise Invalid, with the nearest name and all known ones, for an unknown `kind` of name."""
    if name not in known:
        near = near_fields(name, known)
        advice = f"did you mean {' or '.join(near)}? " if near else ""
        raise Invalid.at(
            f"/{shorten(name)}",
            f"is not one of the {kind}s of this model: {advice}give one of {', '.join(known)}",
        )


def read_inputs(
    inputs: Sequence[Input], forms: Mapping[str, Form], binary: bytes
) -> dict[str, list[Any]]:
    """Return the elements of each input, those of two axes in rows. `binary` follows the JSON.

    Raise Invalid for an unknown input, a wrong datatype or rank, or a wrong number of elements.
    """
    sizes = [tensor.parameters.binary_data_size for tensor in inputs]
    if (total := sum(size or 0 for size in sizes)) != len(binary):
        raise Invalid(
            f"{len(binary)} bytes follow the JSON, but the inputs' binary_data_size add up to"
            f" {total}: Inference-Header-Content-Length must be the bytes of the JSON"
        )
    values = dict[str, list[Any]]()
    start = 0
    for tensor, size in zip(inputs, sizes, strict=True):
        check_input(tensor, forms)
        at = f"/{tensor.name}"
        if tensor.name in values:
            raise Invalid.at(at, "is given twice: send each input once")
        if size is None:
            found = read_json(tensor)
        else:
            found = read_binary(forms[tensor.name].datatype, binary[start : start + size], at)
            start += size
        if len(found) != prod(tensor.shape):
            detail = f"has {len(found)} elements, but its shape {tensor.shape} has"
            raise Invalid.at(at, f"{detail} {prod(tensor.shape)}")
        values[tensor.name] = found if len(tensor.shape) < 2 else rows_of(found, tensor.shape[1])
    return values


def rows_of(elements: list[Any], columns: int) -> list[list[Any]]:
    return [elements[start : start + columns] for start in range(0, len(elements), columns)]


def check_input(tensor: Input, forms: Mapping[str, Form]) -> None:
    """Raise Invalid for a tensor of another form, and unless it has exactly one of data and
    binary_data_size."""
    check_name(tensor.name, list(forms), "input")
    at, form = f"/{tensor.name}", forms[tensor.name]
    if tensor.datatype != form.datatype:
        detail = f"has the datatype {shorten(tensor.datatype)}: send {form.datatype}"
        raise Invalid.at(at, detail)
    if any(size < 1 for size in tensor.shape):
        raise Invalid.at(at, f"has the shape {tensor.shape}: send sizes of at least 1")
    if len(tensor.shape) != form.rank:
        such = [*[1] * (form.rank - 1), prod(tensor.shape)]
        detail = f"has the shape {tensor.shape}: send {RANKS[form.rank]}, such as {such}"
        raise Invalid.at(at, detail)
    if (tensor.data is None) == (tensor.parameters.binary_data_size is None):
        raise Invalid.at(at, "needs its elements once: send either data or binary_data_size")


def read_json(tensor: Input) -> list[Any]:
    """Return the elements of `data`, which may be nested as the shape is, or flat."""
    elements: list[Any] = tensor.data or []
    for _ in range(len(tensor.shape) - 1):
        if elements and all(isinstance(each, list) for each in elements):
            elements = list(chain.from_iterable(cast("list[list[Any]]", elements)))
    wanted, words = (str, "a string") if tensor.datatype == "BYTES" else (int, "an integer")
    wrong = (i for i, each in enumerate(elements) if type(each) is not wanted)
    if (place := next(wrong, None)) is not None:
        raise Invalid.at(f"/{tensor.name}/{place}", f"must be {words}, as in all {tensor.datatype}")
    if wanted is int and any(each not in INT64 for each in elements):
        raise Invalid.at(f"/{tensor.name}", "has an integer of more than 64 bits")
    return elements


def read_binary(datatype: Datatype, content: bytes, pointer: str) -> list[Any]:
    """Return the elements in these bytes. Raise Invalid if they are cut off, or not UTF-8."""
    if datatype == "BYTES":
        return list(read_byte_texts(content, pointer))
    dtype = DTYPES[datatype]
    if len(content) % dtype.itemsize:
        detail = (
            f"has {len(content)} bytes, which is not a multiple of {dtype.itemsize}: send whole"
        )
        raise Invalid.at(pointer, f"{detail} elements of {dtype.itemsize} bytes")
    return np.frombuffer(content, dtype).tolist()


def read_byte_texts(content: bytes, pointer: str) -> Iterator[str]:
    place, start = 0, 0
    while start < len(content):
        begin = start + LENGTH.size
        length = LENGTH.unpack_from(content, start)[0] if begin <= len(content) else 0
        end = begin + length
        if end > len(content):
            detail = f"ends within element {place}: send each as 4 bytes of its length and itself"
            raise Invalid.at(pointer, detail)
        try:
            yield content[begin:end].decode()
        except UnicodeDecodeError as error:
            raise Invalid.at(f"{pointer}/{place}", "is not UTF-8: encode it as UTF-8") from error
        place, start = place + 1, end


def split_body(content: bytes, header: str | None) -> tuple[bytes, bytes]:
    """Return the JSON and the bytes behind it, given the header Inference-Header-Content-Length.
    Raise Unparsable unless it is a number of bytes that the body has."""
    if header is None:
        return content, b""
    if not re.fullmatch("[0-9]{1,10}", header) or int(header) > len(content):
        raise Unparsable(
            f"Inference-Header-Content-Length is {shorten(header)}: send how many of the"
            f" {len(content)} bytes of the body are JSON"
        )
    return content[: int(header)], content[int(header) :]


def pad(nested: Any, form: Form) -> NDArray[Any]:
    """Return nested lists as one array of this form. Shorter ones are padded with zeros, or empty
    texts."""
    dtype = DTYPES[form.datatype]
    if form.rank < 2 or isinstance(nested, np.ndarray):
        return np.array(nested, dtype)
    parts = [pad(each, Form(form.datatype, form.rank - 1)) for each in nested]
    shapes = [part.shape for part in parts] or [(0,) * (form.rank - 1)]
    sizes = map(max, zip(*shapes, strict=True))
    padded = np.full((len(parts), *sizes), "" if form.datatype == "BYTES" else 0, dtype)
    for row, part in zip(padded, parts, strict=True):
        row[tuple(map(slice, part.shape))] = part
    return padded


def write_binary(tensor: Tensor) -> bytes:
    """Return the elements as bytes."""
    if tensor.datatype != "BYTES":
        return tensor.array.astype(DTYPES[tensor.datatype], copy=False).tobytes()
    texts = [text.encode() for text in tensor.array.ravel()]
    return b"".join(chain.from_iterable((LENGTH.pack(len(text)), text) for text in texts))


def write_tensors(
    document: Document, tensors: Mapping[str, Tensor], binary: Container[str]
) -> tuple[Iterator[bytes], list[Piece]]:
    """Return the JSON of `document` with these outputs, and the bytes of those that are `binary`,
    which follow it. The JSON is made when it is asked for."""
    elements = {name: write_binary(each) for name, each in tensors.items() if name in binary}
    sizes = {name: len(content) for name, content in elements.items()}
    json = concatenate(write_json(document, tensors, sizes))
    pieces = (in_pieces(memoryview(content)) for content in elements.values())
    return json, [*chain.from_iterable(pieces)]


def write_json(
    document: Document, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]
) -> Iterator[bytes]:
    """Yield the JSON in parts. `sizes` are the bytes of the outputs whose elements follow it."""
    yield to_json(document)[:-1] + b',"outputs":['
    for i, (name, tensor) in enumerate(tensors.items()):
        form = {"name": name, "datatype": tensor.datatype, "shape": list(tensor.array.shape)}
        if i:
            yield b","
        if name in sizes:
            yield to_json({**form, "parameters": {"binary_data_size": sizes[name]}})
        else:
            flat = tensor.array.ravel()
            data = flat.tolist() if tensor.datatype == "BYTES" else flat
            yield from write({**form, "data": data})
    yield b"]}\n"
