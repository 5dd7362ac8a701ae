"""Draw what the colours of heatmaps stand for: a bar from 0 to the largest weight."""

import numpy as np

from service.formats.colours import viridis
from service.formats.picture import Cells, Label

WIDTH, HEIGHT = 96.0, 8.0
SHADES = 64
GAP = 6.0  # between the bar and its numbers
ROOM = 60.0  # for a number and its gap: no number of 3 digits is wider


def draw(left: float, middle: float, largest: float) -> list[Cells | Label]:
    """Return the bar from `left` to `left` + WIDTH, vertically centred on `middle`, and its
    numbers."""
    shades = viridis(np.linspace(0, 1, SHADES))[None]
    return [
        Label(left - GAP, middle, "0", "end"),
        Cells(left, middle - HEIGHT / 2, WIDTH, HEIGHT, shades),
        Label(left + WIDTH + GAP, middle, f"{largest:.3g}", "start"),
    ]
