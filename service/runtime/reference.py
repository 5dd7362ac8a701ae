"""Read parity.npz: inputs, and torch's results for them."""

import zipfile
from collections.abc import Collection, Generator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from service.bundle.files import MIB, check_size
from service.bundle.manifest import Config, GraphName
from service.errors import StartupError

LARGEST_REFERENCE = 64 * MIB  # bytes of parity.npz, and of its arrays; T5-11B's has about 10 MB
LARGEST_IDS = 16  # log-probs at a position that parity.npz lists first, in descending order
Torch = dict[str, NDArray[Any]]


def read_reference(path: Path, config: Config, graphs: Collection[GraphName]) -> Torch:
    """Return the arrays of parity.npz that these graphs are compared with.

    Raise StartupError naming the array that is missing, is not a plain array of its size, or
    contradicts the configuration.
    """
    check_size(path, LARGEST_REFERENCE)
    with reading(path, "export the bundle again"):
        arrays = read_arrays(path)
        check_arrays(arrays, config, graphs)
    return arrays


@contextmanager
def reading(path: Path, advice: str) -> Generator[None]:
    """Raise StartupError for whatever is wrong with a file of arrays, followed by the advice."""
    try:
        yield
    except KeyError as error:
        raise StartupError(f"{path} lacks the array {error}: {advice}") from error
    except Exception as error:  # zipfile, zlib and NumPy raise errors of a dozen classes
        raise StartupError(f"{path} cannot be used: {error}: {advice}") from error


def read_arrays(path: Path) -> Torch:
    with zipfile.ZipFile(path) as file:
        members = {each.filename.removesuffix(".npy"): each for each in file.infolist()}
        size = sum(each.file_size for each in members.values())  # of which no more is unpacked
        if size > LARGEST_REFERENCE:
            raise ValueError(f"its arrays have {size} bytes; the limit is {LARGEST_REFERENCE}")
        return {name: read_array(file, each) for name, each in members.items()}


def read_array(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Return an array of numbers, whose header must agree with the size of the member."""
    with file.open(member) as content:
        old = npy.read_magic(content) == (1, 0)
        read = npy.read_array_header_1_0 if old else npy.read_array_header_2_0
        shape, fortran_order, dtype = read(content)
        size = prod(shape) * dtype.itemsize
        if fortran_order or dtype.kind not in "if" or size != member.file_size - content.tell():
            raise ValueError(
                f"{member.filename} is not a plain array of {dtype} with shape {shape}"
            )
        return np.frombuffer(content.read(size), dtype).reshape(shape)


def check_arrays(arrays: Torch, config: Config, graphs: Collection[GraphName]) -> None:
    """Raise ValueError or KeyError naming an array that contradicts the configuration."""
    for name, shape in expected_shapes(arrays, config, graphs).items():
        if arrays[name].shape != shape:
            raise ValueError(f"{name} has the shape {arrays[name].shape}, which should be {shape}")
    _, source_length = arrays["source_ids"].shape
    _, target_length = arrays["decoder_input_ids"].shape
    for name, least, most in (
        ("source_length", 1, min(source_length, config.max_source_length)),
        ("decoder_length", 1, min(target_length, config.max_target_length)),
        ("source_ids", 0, config.source_vocab_size - 1),
        ("decoder_input_ids", 0, config.target_vocab_size - 1),
        ("log_prob_ids", 0, config.target_vocab_size - 1),
    ):
        array = arrays[name]
        if array.dtype != np.int64 or array.min() < least or array.max() > most:
            raise ValueError(f"{name} must hold int64 of {least} to {most}")
    named = arrays["log_prob_ids"].shape[-1]
    if named < min(LARGEST_IDS, config.target_vocab_size):
        raise ValueError(f"log_prob_ids names {named} ids at a position; {LARGEST_IDS} are needed")


def expected_shapes(
    arrays: Torch, config: Config, graphs: Collection[GraphName]
) -> dict[str, tuple[int, ...]]:
    """Return the shape of every array that is compared, but for those that say B, S, T and N."""
    for name, axes in (("source_ids", 2), ("decoder_input_ids", 2), ("log_prob_ids", 3)):
        if arrays[name].ndim != axes or not arrays[name].size:
            raise ValueError(f"{name} has the shape {arrays[name].shape}, not {axes} filled axes")
    count, source = arrays["source_ids"].shape
    _, target = arrays["decoder_input_ids"].shape
    named = arrays["log_prob_ids"].shape[-1]
    shapes: dict[str, tuple[int, ...]] = {
        "source_length": (count,),
        "decoder_length": (count,),
        "decoder_input_ids": (count, target),
        "memory": (count, source, config.d_model),
        "log_prob_ids": (count, target, named),
        "log_probs": (count, target, named),
    }
    for graph in graphs:
        shapes |= shapes_of(graph, config, count, source, target, named)
    return shapes


def shapes_of(
    graph: GraphName, config: Config, count: int, source: int, target: int, named: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what one graph is compared with, beyond what every graph needs."""
    heads, encoder, decoder = config.num_heads, config.num_encoder_layers, config.num_decoder_layers
    own = of_layers("encoder_attention", encoder, (count, heads, source, source))
    keys = {"decoder": target, "cross": source}
    others: dict[str, tuple[int, ...]] = {}
    norms: dict[str, tuple[int, ...]] = {}
    for kind in config.decoder_kinds:
        others |= of_layers(f"{kind}_attention", decoder, (count, heads, target, keys[kind]))
        norms |= of_layers(f"{kind}_value_norms", decoder, (count, heads, keys[kind]))
    gated = {
        "decoder_gates": (len(config.decoder_kinds), decoder, heads),
        "decoder_gated_log_probs": (count, target, named),
    }
    shapes: dict[GraphName, dict[str, tuple[int, ...]]] = {
        "encoder_attention": own,
        "attention": others,
        "gated_encoder": own
        | {"encoder_gates": (encoder, heads), "encoder_gated_log_probs": (count, target, named)}
        | of_layers("encoder_value_norms", encoder, (count, heads, source)),
        "gated_step": gated,
        "gated_decoder": others | gated | norms,
    }
    return shapes.get(graph, {})


def of_layers(name: str, layers: int, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"{name}_{layer}": shape for layer in range(layers)}
