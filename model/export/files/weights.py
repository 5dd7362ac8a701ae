"""The weights of a model under the names in which a bundle stores them: fp32, or int8."""

import gc
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from model.checkpoint import WEIGHTS
from model.export.files.tensor_file import Source, converted, pieces_of
from model.network.transformer import Transformer

LIKE_WHOLE = 1e-3  # largest distance of a number in int8 from a whole one, after its scale
LARGE_EMBEDDING = 1 << 20  # bytes from which int8 is worth two more operators per look-up


class WeightType(StrEnum):
    fp16 = "fp16"
    bf16 = "bf16"
    fp32 = "fp32"

    @property
    def dtype(self) -> torch.dtype:
        names = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
        return names[self]


@torch.no_grad()
def round_weights(model: Transformer, weight_type: WeightType) -> None:
    """Round the model's own weights to numbers of `weight_type`.

    In place, because a copy of a large model may not fit into memory.
    """
    for tensor in model.state_dict().values():
        if tensor.is_floating_point() and tensor.dtype != weight_type.dtype:
            for piece in pieces_of(tensor):
                piece.copy_(piece.to(weight_type.dtype))


def release_weights(model: Transformer) -> None:
    """Free the weights of a model that is needed for its configuration only.

    Its tensors are emptied in place, because torch's exporter keeps references to some.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.new_empty(0)
    gc.collect()  # reference cycles of the exporter keep the rest alive


def exact_sources(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Source]:
    """Return all weights as `dtype`. Weights that `dtype` does not hold exactly stay fp32.

    A converted checkpoint has weights that are not its own: a query projection times sqrt(d_qk), or
    a computed position table.
    """
    return {
        name: converted(tensor, dtype if holds(dtype, tensor) else torch.float32)
        for name, tensor in tensors.items()
    }


def holds(dtype: torch.dtype, tensor: Tensor) -> bool:
    """Return whether `dtype` has every number of the tensor."""
    return all(torch.equal(piece.to(dtype).to(piece.dtype), piece) for piece in pieces_of(tensor))


def int8_modules(model: Transformer) -> list[str]:
    """Return the names of the modules whose matrices int8 may store: linear layers, and large
    embeddings."""
    state = model.state_dict()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        or (
            isinstance(module, nn.Embedding)
            and state[stored_name(model, name)].nbytes >= LARGE_EMBEDDING
        )
    ]


def int8_names(model: Transformer, fp32: Collection[str] = ()) -> set[str]:
    """Return the matrices to store as int8: those of `int8_modules` that no module of `fp32`
    reads."""
    names = {stored_name(model, each) for each in int8_modules(model)}
    return names - {stored_name(model, each) for each in fp32}


def stored_name(model: Transformer, module: str) -> str:
    """Return the name under which a bundle stores the matrix of a module."""
    name = f"{module}.weight"
    return model.tied_names.get(name, name)


def fp32_products(model: Transformer, int8: Path) -> list[str]:
    """Return the linear layers whose products stay fp32 in a bundle's folder of int8 graphs."""
    with safe_open(int8 / WEIGHTS, "pt") as file:
        stored = {*file.keys()}
    return [
        name for name in linear_layers(model) if scale_name(stored_name(model, name)) not in stored
    ]


def linear_layers(model: Transformer) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]


def int8_sources(
    tensors: Mapping[str, Tensor], names: Collection[str], by_gptq: Mapping[str, Tensor]
) -> dict[str, Source]:
    """Return `names` (N, K) as int8, each with scales (N,), and all other weights at fp32. What is
    not in `by_gptq` is rounded to the nearest.

    A row is an output channel of a linear layer, or a token of an embedding: one tied matrix serves
    both.
    """
    sources: dict[str, Source] = {}
    for name, tensor in tensors.items():
        if name in names:
            scale = Source(torch.float32, (len(tensor),), partial(row_scales, tensor))
            sources[scale_name(name)] = scale
            rows = partial(int8_rows, tensor, by_gptq.get(name))
            sources[name] = Source(torch.int8, tuple(tensor.shape), rows)
        else:
            sources[name] = converted(tensor, torch.float32)
    return sources


def scale_name(name: str) -> str:
    return f"{name}_scale"


def scales_of(tensor: Tensor) -> Tensor:
    """Return the scale of each row (N,) of a matrix (N, K): its largest absolute value divided by
    127.

    All rows of a matrix that was int8 before, with one scale, get that scale: they stay as they
    were.
    """
    sizes = torch.cat([rows.float().abs().amax(1) for rows in pieces_of(tensor)])
    step = sizes.max() / 127
    pieces = chain([tensor[:1]], pieces_of(tensor))  # of other matrices, a row is enough to see it
    return step.expand(len(sizes)) if all(has_step(each, step) for each in pieces) else sizes / 127


def has_step(rows: Tensor, step: Tensor) -> bool:
    """Return whether all numbers are whole multiples of `step`, but for rounding."""
    if not step > 0:
        return False
    units = rows.float() / step
    return bool(((units - units.round()).abs() < LIKE_WHOLE).all())


def row_scales(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the scales of the rows of (N, K), in the same pieces as its rows."""
    scales, done = scales_of(tensor), 0
    for rows in pieces_of(tensor):
        yield scales[done : done + len(rows)]
        done += len(rows)


def int8_rows(tensor: Tensor, by_gptq: Tensor | None = None) -> Iterator[Tensor]:
    """Yield rows of (N, K) divided by their scales and rounded, to the nearest if GPTQ has not
    rounded them; a row of zeros stays zeros."""
    if by_gptq is not None:
        yield from pieces_of(by_gptq)
        return
    for rows, scales in zip(pieces_of(tensor), row_scales(tensor), strict=True):
        scale = scales.unsqueeze(1)
        units = torch.where(scale > 0, rows.float() / scale, 0.0)
        yield units.round().to(torch.int8)
