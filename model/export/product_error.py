"""Find the products that int8 spoils, by the error of their results.

An outlier is an input channel far larger than the others. It sets the scale of its row, and the
others are rounded to a few integers. This matters most if the outlier's own weights are small.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from model.export.quantize import Scales
from model.export.tensor_file import pieces_of
from model.export.weights import int8_rows, row_scales
from model.network.transformer import Transformer

LARGEST_ERROR = 0.05  # of a product's result, of its own size
MERGED = ("query", "key", "value")  # graphs make one product of those of a self-attention


def spoiled_products(model: Transformer, rows: Mapping[str, Tensor], scales: Scales) -> set[str]:
    """Return the linear layers that int8 spoils, of those that receive `rows` (R, K).

    A layer without a constant scale in `scales` has one for each row. A graph may merge a layer
    with others: int8 then spoils them all.
    """
    spoiled: set[str] = set()
    for name, received in rows.items():
        weight = model.get_parameter(f"{name}.weight")
        if product_error(weight, received, scales.get(name)) > LARGEST_ERROR:
            spoiled |= merged_with(name)
    return spoiled


def merged_with(name: str) -> set[str]:
    """Return the linear layers that a graph may multiply in one product with this one."""
    attention, _, part = name.rpartition(".")
    if attention.endswith("self_attention") and part in MERGED:
        return {f"{attention}.{other}" for other in MERGED}
    return {name}


def product_error(weight: Tensor, rows: Tensor, largest: float | None) -> float:
    """Return the mean over rows (R, K) of |int8 - fp32| / |fp32|, with Euclidean norms.

    `largest` is the value behind the constant scale; None: one scale per row. Biases are ignored.
    """
    rounded = rounded_rows(rows, largest)
    difference, size = torch.zeros(len(rows)), torch.zeros(len(rows))
    for piece, units, scale in zip(
        pieces_of(weight), int8_rows(weight), row_scales(weight), strict=True
    ):
        exact = rows @ piece.T  # (R, n)
        difference += (rounded @ units.float().T * scale - exact).square().sum(1)
        size += exact.square().sum(1)
    return torch.where(size > 0, difference / size, 0.0).sqrt().mean().item()


def rounded_rows(rows: Tensor, largest: float | None) -> Tensor:
    """Return rows (R, K) as the int8 graphs read them (`Quantizer`)."""
    levels, low, high = (255, 0, 255) if bool((rows >= 0).all()) else (127, -128, 127)
    size = rows.abs().amax(1, keepdim=True) if largest is None else torch.tensor(largest)
    scale = size / levels
    return torch.where(size > 0, (rows / scale).round().clamp(low, high) * scale, 0.0)
