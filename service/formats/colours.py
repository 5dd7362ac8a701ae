"""Turn weights into colours: viridis, from 0 to the largest weight, which a bar explains."""

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

BAR_WIDTH, BAR_HEIGHT = 96.0, 8.0
SHADES = 64
GAP = 6.0  # between the bar and its numbers
NUMBER_WIDTH = 60.0  # of the widest number of 3 digits, with its gap


def coloured(weights: Floats, largest: float) -> NDArray[np.uint8]:
    """Return the colours (T, S, 3) of weights (T, S) between 0 and `largest`."""
    return viridis(weights / (largest or 1.0))


def viridis(values: Floats) -> NDArray[np.uint8]:
    """Return the colours (..., 3) of numbers between 0 and 1."""
    places = np.linspace(0, 1, len(VIRIDIS))
    channels = [np.interp(values, places, VIRIDIS[:, channel]) for channel in range(3)]
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


def draw_bar(left: float, middle: float, largest: float) -> list[Cells | Label]:
    """Return the bar from `left` to `left` + BAR_WIDTH, vertically centred on `middle`, and its
    numbers."""
    shades = viridis(np.linspace(0, 1, SHADES))[None]
    return [
        Label(left - GAP, middle, "0", "end"),
        Cells(left, middle - BAR_HEIGHT / 2, BAR_WIDTH, BAR_HEIGHT, shades),
        Label(left + BAR_WIDTH + GAP, middle, f"{largest:.3g}", "start"),
    ]
