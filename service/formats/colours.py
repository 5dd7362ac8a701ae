"""Turn numbers into colours, which a bar explains: weights from 0 to the largest of them, or signed
numbers from minus to plus the largest."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.formats.picture import Cells, Label

Floats = NDArray[np.floating[Any]]

# Viridis (van der Walt and Smith, 2015) at nine places; its lightness grows evenly with the value.
VIRIDIS = np.array(
    [
        (68, 1, 84),
        (71, 44, 122),
        (59, 81, 139),
        (44, 113, 142),
        (33, 144, 141),
        (39, 173, 129),
        (92, 200, 99),
        (170, 220, 50),
        (253, 231, 37),
    ]
)
# RdBu (ColorBrewer 2.0, Brewer and Harrower) from blue to red; white is 0
BLUE_TO_RED = np.array(
    [
        (33, 102, 172),
        (67, 147, 195),
        (146, 197, 222),
        (209, 229, 240),
        (247, 247, 247),
        (253, 219, 199),
        (244, 165, 130),
        (214, 96, 77),
        (178, 24, 43),
    ]
)

BAR_WIDTH, BAR_HEIGHT = 96.0, 8.0
SHADES = 64
GAP = 6.0  # between the bar and its numbers
NUMBER_WIDTH = 60.0  # of the widest number of 3 digits, with its gap


def coloured(weights: Floats, largest: float, signed: bool = False) -> NDArray[np.uint8]:
    """Return the colours (T, S, 3) of weights (T, S) between 0 and `largest`, or of numbers between
    -`largest` and `largest` if they are `signed`."""
    scaled = weights / (largest or 1.0)
    return blended(BLUE_TO_RED, (scaled + 1) / 2) if signed else viridis(scaled)


def viridis(values: Floats) -> NDArray[np.uint8]:
    """Return the colours (..., 3) of numbers between 0 and 1."""
    return blended(VIRIDIS, values)


def blended(scale: NDArray[np.int_], values: Floats) -> NDArray[np.uint8]:
    """Return the colours (..., 3) at places between 0 and 1 of a scale."""
    places = np.linspace(0, 1, len(scale))
    channels = [np.interp(values, places, scale[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def shrunk(weights: Floats, most_rows: int, most_columns: int) -> Floats:
    """Return `weights` (T, S) with at most these rows and columns, which are means of blocks."""
    for axis, most in enumerate((most_rows, most_columns)):
        count = min(weights.shape[axis], most)
        starts = np.arange(count) * weights.shape[axis] // count
        sizes = np.diff([*starts, weights.shape[axis]])
        sums = np.add.reduceat(weights, starts, axis)
        weights = sums / (sizes[:, None] if axis == 0 else sizes)
    return weights


def draw_bar(
    left: float, middle: float, largest: float, signed: bool = False
) -> list[Cells | Label]:
    """Return the bar from `left` to `left` + BAR_WIDTH, vertically centred on `middle`, and its
    numbers."""
    least = -1 if signed else 0
    shades = coloured(np.linspace(least, 1, SHADES)[None], 1, signed)
    return [
        Label(left - GAP, middle, f"{least * largest:.3g}", "end"),
        Cells(left, middle - BAR_HEIGHT / 2, BAR_WIDTH, BAR_HEIGHT, shades),
        Label(left + BAR_WIDTH + GAP, middle, f"{largest:.3g}", "start"),
    ]
