"""Write pictures as SVG documents."""

import base64
import io
import unicodedata
from xml.sax.saxutils import escape, quoteattr

from PIL import Image

from service.formats.labels import printable
from service.formats.picture import (
    DASH,
    FONT_SIZE,
    INK,
    PAPER,
    RADIUS,
    STROKE,
    Anchor,
    Cells,
    Colour,
    Dot,
    Label,
    Line,
    Picture,
)

STRONG = ("L", "R", "AL")  # bidirectional classes of letters
SWAPPED: dict[Anchor, Anchor] = {"start": "end", "middle": "middle", "end": "start"}


def to_svg(picture: Picture) -> bytes:
    size = f'width="{picture.width:g}" height="{picture.height:g}"'
    view = f'viewBox="0 0 {picture.width:g} {picture.height:g}"'
    title = printable(picture.title)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view} role="img"'
        f" aria-label={quoteattr(title)}>",
        f"<title>{escape(title)}</title>",
        f'<rect {size} fill="{css(PAPER)}"/>',
        *map(element_of, picture.shapes),
        "</svg>",
    ]
    return "\n".join(parts).encode()


def element_of(shape: Cells | Line | Dot | Label) -> str:
    match shape:
        case Cells(x, y, width, height, colours):
            place = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
            sharp = 'preserveAspectRatio="none" style="image-rendering:pixelated"'
            file = io.BytesIO()
            Image.fromarray(colours).save(file, "PNG")
            data = base64.b64encode(file.getvalue()).decode()
            return f'<image {place} {sharp} href="data:image/png;base64,{data}"/>'
        case Line(points, stroke, dashed):
            places = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
            dashes = ' stroke-dasharray="{} {}"'.format(*DASH) if dashed else ""
            paint = f'fill="none" stroke="{css(stroke)}" stroke-width="{STROKE}"{dashes}'
            return f'<polyline points="{places}" {paint}/>'
        case Dot(x, y, fill):
            return f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{RADIUS}" fill="{css(fill)}"/>'
        case Label(x, y, text, anchor, upwards):
            turn = f' transform="rotate(-90 {x:.2f} {y:.2f})"' if upwards else ""
            place = f'x="{x:.2f}" y="{y:.2f}" dominant-baseline="middle"'
            font = f'font-family="sans-serif" font-size="{FONT_SIZE}" fill="{css(INK)}"'
            written = f"{place} {direction_of(text, anchor)} {font}{turn}"
            return f"<text {written}>{escape(printable(text))}</text>"


def direction_of(text: str, anchor: Anchor) -> str:
    """Return the attributes that write a text in the direction of its first letter. From right to
    left a text starts at its right end, and so anchors change places."""
    letters = (unicodedata.bidirectional(letter) for letter in text)
    if next((each for each in letters if each in STRONG), "L") == "L":
        return f'text-anchor="{anchor}"'
    return f'direction="rtl" text-anchor="{SWAPPED[anchor]}"'


def css(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
