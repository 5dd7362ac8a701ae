"""Shapes to SVG and to PNG."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]

INK, PAPER = (34, 34, 34), (255, 255, 255)
DASH = (6, 4)  # drawn and left out, in units of a picture
FONT_SIZE = 12


@dataclass(frozen=True, slots=True)
class Cells:
    """A rectangle of as many cells as `colours` (rows, columns, 3) has."""

    x: float
    y: float
    width: float
    height: float
    colours: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Line:
    points: list[tuple[float, float]]
    stroke: Colour
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    x: float
    y: float
    fill: Colour


@dataclass(frozen=True, slots=True)
class Label:
    """`anchor` start, middle or end of the text is at (x, y), and its middle across; `upwards` it
    is turned by 90 degrees."""

    x: float
    y: float
    text: str
    anchor: str = "middle"
    upwards: bool = False


@dataclass(slots=True)
class Picture:
    """`title` is what a screen reader says."""

    width: float
    height: float
    title: str
    shapes: list[Cells | Line | Dot | Label] = field(default_factory=list)
