"""Pictures of attention, as SVG and as PNG from the same shapes."""

import io
from dataclasses import dataclass, field
from itertools import compress
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

FloatArray = NDArray[np.floating[Any]]
Colour = tuple[int, int, int]

INK, PAPER, GRID = (34, 34, 34), (255, 255, 255), (204, 204, 204)
BLUE, ORANGE, GREY = (31, 91, 160), (200, 90, 0), (120, 120, 120)
# Viridis (van der Walt and Smith 2015), which grows lighter evenly, at nine places.
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
DASH = (6, 4)  # drawn and left out, in units of a picture
MOST_POINTS = 2000  # of a line or a cloud; of more, every second, third, ... is drawn
LARGEST_SIDE = 200  # cells of a heatmap; a larger one is drawn from the means of blocks


@dataclass(frozen=True, slots=True)
class Rectangle:
    x: float
    y: float
    width: float
    height: float
    fill: Colour


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
    """`anchor` start, middle or end of the text is at x; its middle is at y."""

    x: float
    y: float
    text: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class Picture:
    """`title` is what a screen reader says."""

    width: float
    height: float
    title: str
    shapes: list[Rectangle | Line | Dot | Label] = field(default_factory=list)


def draw_attention(
    weights: FloatArray, points: FloatArray, prediction: FloatArray, truth: FloatArray
) -> Picture:
    """weights (B, T, S); for a regression points (2, S), prediction and truth (2, T), x above y,
    any of which may be empty. A line plot if there are points, then a heatmap a sequence."""
    side, gap = 320.0, 70.0
    plots = 1 if points.size else 0
    picture = Picture(
        width=gap + (plots + len(weights)) * (side + gap),
        height=side + 2 * gap,
        title=f"attention of {weights.shape[1]} queries over {weights.shape[2]} keys",
    )
    if plots:
        draw_plot(picture, gap, gap, side, points, prediction, truth)
    for i, rows in enumerate(weights, plots):
        draw_heatmap(picture, gap + i * (side + gap), gap, side, rows)
    return picture


def draw_heatmap(picture: Picture, left: float, top: float, side: float, rows: FloatArray) -> None:
    """rows (T, S), queries downwards; the brightest colour is the largest weight."""
    queries, keys = rows.shape
    cells = shrunk(rows)
    height, width = side / cells.shape[0], side / cells.shape[1]
    colours = viridis(cells / (cells.max() or 1.0))
    for (t, s), _ in np.ndenumerate(cells):
        x, y = left + s * width, top + t * height
        picture.shapes.append(Rectangle(x, y, width, height, tuple(colours[t, s].tolist())))
    for index in {0, queries - 1}:
        place = (index + 0.5) / queries
        picture.shapes.append(Label(left - 6, top + place * side, str(index), "end"))
    for index in {0, keys - 1}:
        place = (index + 0.5) / keys
        picture.shapes.append(Label(left + place * side, top + side + 14, str(index)))
    caption = f"query x key, largest weight {rows.max():.3g}"
    picture.shapes.append(Label(left + side / 2, top - 14, caption))


def draw_plot(
    picture: Picture,
    left: float,
    top: float,
    side: float,
    points: FloatArray,
    prediction: FloatArray,
    truth: FloatArray,
) -> None:
    """Points as dots, the prediction as a line, the truth as a dashed one."""
    everything = np.concatenate([points, prediction, truth], axis=1)  # (2, ...)
    low, high = everything.min(1), everything.max(1)
    span = np.where(high > low, high - low, 1.0)

    def place(xy: FloatArray) -> list[tuple[float, float]]:
        xy = xy[:, :: -(-xy.shape[1] // MOST_POINTS) or 1]
        x, y = (xy - low[:, None]) / span[:, None]
        return list(zip((left + x * side).tolist(), (top + side - y * side).tolist(), strict=True))

    frame = [(0, 0), (side, 0), (side, side), (0, side), (0, 0)]
    picture.shapes.append(Line([(left + x, top + y) for x, y in frame], GRID))
    picture.shapes.extend(Dot(x, y, GREY) for x, y in place(points))
    if truth.size:
        picture.shapes.append(Line(place(truth), ORANGE, dashed=True))
    picture.shapes.append(Line(place(prediction), BLUE))
    for axis, (x, y, anchor) in enumerate(((left, top + side + 14, "start"), (left - 6, 0, "end"))):
        far = (left + side, y) if axis == 0 else (x, top)
        near = (x, y) if axis == 0 else (x, top + side)
        picture.shapes.append(Label(*near, f"{low[axis]:.3g}", anchor))
        picture.shapes.append(Label(*far, f"{high[axis]:.3g}", "end"))
    names = "points, prediction (blue)" + (", truth (dashed)" if truth.size else "")
    picture.shapes.append(Label(left + side / 2, top - 14, names))


def shrunk(rows: FloatArray) -> FloatArray:
    """At most LARGEST_SIDE cells a side: the means of blocks."""
    for axis in (0, 1):
        count = min(rows.shape[axis], LARGEST_SIDE)
        starts = np.arange(count) * rows.shape[axis] // count
        sizes = np.diff([*starts, rows.shape[axis]])
        sums = np.add.reduceat(rows, starts, axis)
        rows = sums / (sizes[:, None] if axis == 0 else sizes)
    return rows


def viridis(values: FloatArray) -> NDArray[np.int64]:
    """Numbers from 0 to 1, of any shape -> (..., 3)."""
    places = np.linspace(0, 1, len(VIRIDIS))
    channels = [np.interp(values, places, VIRIDIS[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.int64)


def to_svg(picture: Picture) -> bytes:
    size = f'width="{picture.width:g}" height="{picture.height:g}"'
    title = quoteattr(picture.title)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label={title}>',
        f"<title>{escape(picture.title)}</title>",
        f'<rect {size} fill="{css(PAPER)}"/>',
        *map(svg_of, picture.shapes),
        "</svg>",
    ]
    return "\n".join(parts).encode()


def svg_of(shape: Rectangle | Line | Dot | Label) -> str:
    match shape:
        case Rectangle(x, y, width, height, fill):
            place = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
            return f'<rect {place} fill="{css(fill)}" shape-rendering="crispEdges"/>'
        case Line(points, stroke, dashed):
            places = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
            dashes = ' stroke-dasharray="{} {}"'.format(*DASH) if dashed else ""
            paint = f'fill="none" stroke="{css(stroke)}" stroke-width="2"{dashes}'
            return f'<polyline points="{places}" {paint}/>'
        case Dot(x, y, fill):
            return f'<circle cx="{x:.2f}" cy="{y:.2f}" r="3" fill="{css(fill)}"/>'
        case Label(x, y, text, anchor):
            place = f'x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" dominant-baseline="middle"'
            font = f'font-family="sans-serif" font-size="12" fill="{css(INK)}"'
            return f"<text {place} {font}>{escape(text)}</text>"


def dashes(points: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """A line in pieces of DASH with gaps between, as SVG draws it: corners fall where they do."""
    x, y = np.array(points).T
    along = np.concatenate([[0.0], np.hypot(np.diff(x), np.diff(y)).cumsum()])  # from the start
    starts = np.arange(0, along[-1], sum(DASH))
    ends = np.minimum(starts + DASH[0], along[-1])
    places = np.unique(np.concatenate([starts, ends, along]))
    dash = np.searchsorted(starts, places, side="right") - 1  # the one begun last
    drawn = places <= ends[dash]
    corners = zip(np.interp(places, along, x), np.interp(places, along, y), strict=True)
    pieces: list[list[tuple[float, float]]] = [[] for _ in starts]
    for i, (a, b) in zip(dash[drawn], compress(corners, drawn), strict=True):
        pieces[i].append((float(a), float(b)))
    return pieces


def css(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def to_png(picture: Picture) -> bytes:
    """Twice the size of the SVG's units."""
    scale = 2
    image = Image.new("RGB", (round(picture.width * scale), round(picture.height * scale)), PAPER)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(12 * scale)
    for shape in picture.shapes:
        match shape:
            case Rectangle(x, y, width, height, fill):
                right, bottom = (x + width) * scale, (y + height) * scale
                draw.rectangle((x * scale, y * scale, right, bottom), fill)
            case Line(points, stroke, dashed):
                for piece in dashes(points) if dashed else [points]:
                    draw.line([(x * scale, y * scale) for x, y in piece], stroke, 2 * scale)
            case Dot(x, y, fill):
                draw.circle((x * scale, y * scale), 3 * scale, fill)
            case Label(x, y, text, anchor):
                place = {"start": "lm", "middle": "mm", "end": "rm"}[anchor]
                draw.text((x * scale, y * scale), text, INK, font, place)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
