"""The shapes that pictures are made of, whether they are written as SVG or as PNG."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]
Anchor = Literal["start", "middle", "end"]

INK, PAPER = (34, 34, 34), (255, 255, 255)
DASH = (6, 4)  # length of a dash, and of the gap after it
FONT_SIZE = 12
STROKE = 2  # width of a line
RADIUS = 3  # radius of a dot


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
    """A text, vertically centred on y, with its `anchor` at x; `upwards` rotates it at (x, y)."""

    x: float
    y: float
    text: str
    anchor: Anchor = "middle"
    upwards: bool = False


@dataclass(slots=True)
class Picture:
    """Shapes, each drawn over those before it; (0, 0) is the top left corner and y grows down."""

    width: float
    height: float
    title: str  # text for screen readers
    shapes: list[Cells | Line | Dot | Label] = field(default_factory=list)
