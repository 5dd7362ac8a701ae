"""The files of a bundle, checked before anything else reads them."""

import hashlib
import re
from collections.abc import Container, Iterable, Mapping
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from service.errors import StartupError

CARD = "MODEL_CARD.md"
NAMED_BUNDLES = 10  # bundles that an error names
MIB = 1 << 20
LARGEST_MANIFEST = 2 * MIB  # bytes of bundle.json; the largest converted ones have some 50,000
LARGEST_TOKENIZER = 64 * MIB  # bytes; 256,000 tokens take about 33 MB
LARGEST_CARD = MIB  # bytes of MODEL_CARD.md
LARGEST_HEADER = 8 * MIB  # bytes of the JSON in a safetensors file, of some 100 bytes a tensor
MOST_AXES = 8  # of a tensor; weights have up to 2
FINITE_PIECE = 1 << 16  # numbers that are looked at together, few enough for a core's cache

Size = Annotated[int, Field(ge=0, lt=1 << 63)]


class StoredTensor(BaseModel):
    """A tensor in the header of a safetensors file. Its offsets are in bytes."""

    dtype: str
    shape: Annotated[list[Size], Field(max_length=MOST_AXES)]
    data_offsets: tuple[Size, Size]


TensorTable = dict[str, StoredTensor]
HEADER: TypeAdapter[TensorTable] = TypeAdapter(TensorTable)

# Weights whose axes have sizes that a configuration names
TABLES = {
    "encoder.embedding.tokens.weight": ("source_vocab_size", "d_model"),
    "decoder.embedding.tokens.weight": ("target_vocab_size", "d_model"),
    "encoder.embedding.positions": ("max_source_length", "d_model"),
    "decoder.embedding.positions": ("max_target_length", "d_model"),
    "encoder.layers.0.feed_forward.up.weight": ("d_ff", "d_model"),
}
# Each score function has parameters of its own name, or none
SCORES = {"weight": "additive", "width": "gaussian"}
PLAIN = "scaled_dot_product"
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?")  # owner/model@revision

# Types of floating-point tensors: unsigned integers of the same size, and the bits of the exponent,
# which are all set in NaN and infinity alone.
FLOATS: Mapping[str, tuple[type[np.unsignedinteger[Any]], int]] = {
    "F64": (np.uint64, 0x7FF0_0000_0000_0000),
    "F32": (np.uint32, 0x7F80_0000),
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
}


def describe_missing(root: Path) -> str:
    """Return why `root` is not a bundle, and name the bundles in it."""
    if not root.exists():
        hub = f", or run `heed serve {root}` for this model of the Hugging Face hub"
        advice = "give the folder of a bundle" + (hub if HUB_ID.fullmatch(str(root)) else "")
        return f"{root} does not exist: {advice}"
    inside = sorted(str(path.parent) for path in root.glob("*/bundle.json"))
    if inside:
        found = ", ".join(inside[:NAMED_BUNDLES]) + ("…" if len(inside) > NAMED_BUNDLES else "")
        return f"{root} is not a bundle, but holds some: give one or several of {found}"
    if root.suffix.lower() == ".zip" or (root / "config.json").is_file():
        return f"{root} is a checkpoint: run `heed convert {root} OUT`, and give the folder OUT"
    if not root.is_dir():
        return f"{root} is a file: give the folder of a bundle"
    return (
        f"{root} is not a bundle: it has no bundle.json; write a bundle with `heed export` from a"
        " training run, or with `heed convert` from a checkpoint of another library"
    )


def check_size(path: Path, limit: int) -> None:
    """Raise StartupError if a file that will be read as a whole is larger than `limit` bytes."""
    size = path.stat().st_size
    if size > limit:
        raise StartupError(
            f"{path} has {size} bytes; the limit is {limit}: export the bundle again"
        )


def check_in_files(manifest: Path, listed: Container[str], names: Iterable[str]) -> None:
    """Raise StartupError for names that are not among the `files` that a manifest lists."""
    if missing := dict.fromkeys(name for name in names if name not in listed):
        raise StartupError(
            f'{manifest}: these files have no entry in "files": {", ".join(missing)}'
        )


def check_file(root: Path, name: str, size: int, sha256: str) -> None:
    """Raise StartupError unless the file lies in the bundle with this size and SHA-256."""
    path = root / name
    if not path.resolve().is_relative_to(root.resolve()):
        raise StartupError(f"{root}: {name} lies outside the bundle")
    if not path.is_file():
        raise StartupError(f"{root}: {name} is missing: copy or export the bundle again")
    if path.stat().st_size != size:
        raise StartupError(
            f"{path} has {path.stat().st_size} bytes, but bundle.json says {size}:"
            " copy or export the bundle again"
        )
    if hash_file(path) != sha256:
        raise StartupError(
            f"{path} is not the file that was exported: its SHA-256 differs from bundle.json;"
            " copy or export the bundle again"
        )


def hash_file(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def read_card(root: Path, listed: Container[str]) -> str:
    """Return the model card of a bundle; "" if there is none. Raise StartupError if it is too
    large."""
    if CARD not in listed:
        return ""
    check_size(root / CARD, LARGEST_CARD)
    return (root / CARD).read_text(encoding="utf-8", errors="replace")


def check_weights(path: Path, config: Mapping[str, object]) -> None:
    """Raise StartupError unless a safetensors file holds finite numbers for this configuration.

    https://github.com/huggingface/safetensors#format. The error names the field that contradicts
    the weights, or the tensor that does not fit into the file or has NaN or infinity.
    """
    header, start = read_header(path)
    for field, found in network_of(header).items():
        if config[field] != found:
            raise StartupError(
                f"{path}: {field} is {found} by these weights, but {config[field]} in the config of"
                " bundle.json: export the bundle again"
            )
    nbytes, taken = path.stat().st_size - start, 0  # of all tensors, and of those seen
    with path.open("rb") as file:
        for name, tensor in header.items():
            first, last = tensor.data_offsets
            if tensor.dtype not in FLOATS:
                continue
            kind, exponent = FLOATS[tensor.dtype]
            count = prod(tensor.shape)
            if last > nbytes or last - first != count * np.dtype(kind).itemsize:
                raise StartupError(
                    f"{path}: tensor {name} of shape {tensor.shape} is not at bytes {first} to"
                    f" {last} of {nbytes}: export the bundle again"
                )
            taken += last - first
            if taken > nbytes:  # very many at the same bytes would take hours to read
                raise StartupError(
                    f"{path}: tensor {name} overlaps another one: export the bundle again"
                )
            file.seek(start + first)
            if not is_finite(file, count, kind, exponent):
                raise StartupError(
                    f"{path}: tensor {name} has NaN or infinity: export the bundle again, from"
                    " weights that are finite"
                )


def read_header(path: Path) -> tuple[TensorTable, int]:
    """Return the header of a safetensors file, and the offset of the first tensor in bytes."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(LARGEST_HEADER, path.stat().st_size - 9):
            raise StartupError(
                f"{path} has a header of {length} bytes; it must be shorter than the file and have"
                f" at most {LARGEST_HEADER} bytes: export the bundle again"
            )
        content = file.read(length)
    try:
        tensors = from_json(content)
        if isinstance(tensors, dict):
            tensors.pop("__metadata__", None)  # free text, which tools may add
        return HEADER.validate_python(tensors), 8 + length
    except ValidationError as error:
        raise StartupError.of(f"header of {path}", error) from error
    except ValueError as error:
        raise StartupError(f"header of {path}: {error}: copy or export the bundle again") from error


def network_of(header: TensorTable) -> dict[str, object]:
    """Return the fields of a configuration that follow from weights under torch's names."""
    found: dict[str, object] = {
        field: header[name].shape[axis]
        for name, fields in TABLES.items()
        for axis, field in enumerate(fields)
        if name in header and len(header[name].shape) == len(fields)
    }
    for side in ("encoder", "decoder"):
        layers = {name.split(".")[2] for name in header if name.startswith(f"{side}.layers.")}
        if layers:
            found[f"num_{side}_layers"] = len(layers)
    if "num_decoder_layers" in found:
        own = {name.rpartition(".score.")[2] for name in header if ".score." in name}
        found["score_function"] = next((SCORES[each] for each in own & SCORES.keys()), PLAIN)
        recurrent = any(name.startswith("decoder.layers.0.ssru.") for name in header)
        found["decoder"] = "ssru" if recurrent else "self_attention"
    return found


def is_finite(
    file: BufferedReader, count: int, kind: type[np.unsignedinteger[Any]], exponent: int
) -> bool:
    """Return whether none of the next `count` numbers, read as integers of `kind`, has all bits of
    the exponent set.

    The file is read in pieces: the pages of a mapped one would count as memory of the process.
    Takes about a tenth of the time that SHA-256 takes for the same bytes.
    """
    bits = np.empty(min(FINITE_PIECE, count), kind)
    while count > 0:
        piece = bits[: min(len(bits), count)]
        file.readinto(piece.data)
        piece &= kind(exponent)
        if piece.max() == exponent:
            return False
        count -= len(piece)
    return True
