"""int8 products and look-ups of a network in torch: the numbers that the int8 graphs compute.

Sums of integers are exact in the graphs and in float32 here, so their last bits differ.
"""

from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from model.export.files.weights import int8_rows, row_scales, scales_of
from model.network.transformer import Transformer

Scales = Mapping[str, float]  # largest activation that a linear layer receives, by the layer's name
ByGptq = Mapping[str, Tensor]  # int8 (N, K) of matrices that GPTQ rounded, by their names
NEAREST: ByGptq = MappingProxyType({})  # rounds all matrices to the nearest
FINER = 254  # units of a remainder in a unit of the activation: it is at most half of one


@contextmanager
def rounded(
    model: Transformer,
    names: Iterable[str],
    scales: Scales,
    wide: Collection[str] = (),
    by_gptq: ByGptq = NEAREST,
) -> Generator[None]:
    """Let linear layers and embeddings compute in int8. Layers in `scales` have a constant scale of
    their activations, others one for each row. Those of `wide` read 16 bits of them."""
    modules = {name: model.get_submodule(name) for name in names}
    for name, module in modules.items():
        if isinstance(module, nn.Linear):
            units = by_gptq.get(f"{name}.weight")
            module.forward = partial(multiply, module, units, scales.get(name), name in wide)
        else:
            assert isinstance(module, nn.Embedding)
            module.forward = partial(look_up, module, scales_of(module.weight))
    try:
        yield
    finally:
        for module in modules.values():
            del module.forward  # the method of the class is back


def multiply(
    layer: nn.Linear, units: Tensor | None, largest: float | None, is_wide: bool, input: Tensor
) -> Tensor:
    """(..., K) -> (..., N); `largest` is the value behind a constant scale, `units` (N, K) are int8
    weights that GPTQ rounded."""
    rows = rounded_rows(input, largest, is_wide)
    weights = zip(int8_rows(layer.weight, units), row_scales(layer.weight), strict=True)
    parts = [rows @ (each.float() * scale.unsqueeze(1)).T for each, scale in weights]
    product = torch.cat(parts, -1)
    return product if layer.bias is None else product + layer.bias  # pyright: ignore[reportUnnecessaryComparison]  torch's stubs know no layer without


def look_up(embedding: nn.Embedding, scales: Tensor, input: Tensor) -> Tensor:
    """(...) -> (..., M); `scales` (V,) are those of the rows."""
    rows = embedding.weight[input]
    scale = scales[input].unsqueeze(-1)
    return torch.where(scale > 0, (rows / scale).round() * scale, 0.0)


def rounded_rows(rows: Tensor, largest: float | None, is_wide: bool) -> Tensor:
    """Return rows (..., K) as the int8 graphs read them (`Quantizer`)."""
    positive = bool((rows >= 0).all()) and not is_wide
    levels, low, high = (255, 0, 255) if positive else (127, -128, 127)
    size = rows.abs().amax(-1, keepdim=True) if largest is None else torch.tensor(largest)
    scale = size / levels
    units = (rows / scale).round().clamp(low, high)
    if is_wide:
        units += ((rows / scale - units) * FINER).round().clamp(low, high) / FINER
    return torch.where(size > 0, units * scale, 0.0)
