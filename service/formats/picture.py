"""Shapes to SVG and to PNG."""

import base64
import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import compress
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

Colour = tuple[int, int, int]
Font = ImageFont.FreeTypeFont

INK, PAPER = (34, 34, 34), (255, 255, 255)
DASH = (6, 4)  # drawn and left out, in units of a picture
FONT_SIZE = 12
# Looked for on this machine: of each label the first that has its letters. Unifont has all.
FONTS = (
    "DejaVuSans.ttf",
    "NotoSansCJK-Regular.ttc",
    "Arial Unicode.ttf",
    "unifont.otf",
    "unifont_upper.otf",
)
MOST_PIXELS = 16_000_000  # of a PNG that is twice as large as the SVG's units
NO_XML = re.compile(r"[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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


@lru_cache(1 << 14)
def width_of(text: str) -> float:
    """In the font that a PNG has for it, and a little more: of an SVG the viewer chooses."""
    text = printable(text)
    return 1.1 * font_of(text, FONT_SIZE).getlength(text)


def printable(text: str) -> str:
    """Every character one that XML may hold: controls as their pictures."""

    def shown(found: re.Match[str]) -> str:
        code = ord(found[0])
        return chr(0x2400 + code) if code < 0x20 else "\ufffd"

    return NO_XML.sub(shown, text)


def to_svg(picture: Picture) -> bytes:
    size = f'width="{picture.width:g}" height="{picture.height:g}"'
    view = f'viewBox="0 0 {picture.width:g} {picture.height:g}"'
    title = printable(picture.title)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view} role="img"'
        f" aria-label={quoteattr(title)}>",
        f"<title>{escape(title)}</title>",
        f'<rect {size} fill="{css(PAPER)}"/>',
        *map(svg_of, picture.shapes),
        "</svg>",
    ]
    return "\n".join(parts).encode()


def svg_of(shape: Cells | Line | Dot | Label) -> str:
    match shape:
        case Cells(x, y, width, height, colours):
            place = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
            sharp = 'preserveAspectRatio="none" style="image-rendering:pixelated"'
            data = base64.b64encode(png(Image.fromarray(colours))).decode()
            return f'<image {place} {sharp} href="data:image/png;base64,{data}"/>'
        case Line(points, stroke, dashed):
            places = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
            dashes = ' stroke-dasharray="{} {}"'.format(*DASH) if dashed else ""
            paint = f'fill="none" stroke="{css(stroke)}" stroke-width="2"{dashes}'
            return f'<polyline points="{places}" {paint}/>'
        case Dot(x, y, fill):
            return f'<circle cx="{x:.2f}" cy="{y:.2f}" r="3" fill="{css(fill)}"/>'
        case Label(x, y, text, anchor, upwards):
            turn = f' transform="rotate(-90 {x:.2f} {y:.2f})"' if upwards else ""
            place = f'x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" dominant-baseline="middle"'
            font = f'font-family="sans-serif" font-size="{FONT_SIZE}" fill="{css(INK)}"'
            return f"<text {place} {font}{turn}>{escape(printable(text))}</text>"


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
    """Twice the size of the SVG's units, or of a large one the same."""
    scale = 2 if 4 * picture.width * picture.height <= MOST_PIXELS else 1
    image = Image.new("RGB", (round(picture.width * scale), round(picture.height * scale)), PAPER)
    draw = ImageDraw.Draw(image)
    for shape in picture.shapes:
        match shape:
            case Cells(x, y, width, height, colours):
                left, top, right, bottom = (
                    round(scale * at) for at in (x, y, x + width, y + height)
                )
                size = (max(1, right - left), max(1, bottom - top))
                cells = Image.fromarray(colours).resize(size, Image.Resampling.NEAREST)
                image.paste(cells, (left, top))
            case Line(points, stroke, dashed):
                for piece in dashes(points) if dashed else [points]:
                    draw.line([(x * scale, y * scale) for x, y in piece], stroke, 2 * scale)
            case Dot(x, y, fill):
                draw.circle((x * scale, y * scale), 3 * scale, fill)
            case Label():
                write(image, draw, shape, scale)
    return png(image, picture.title)


def write(image: Image.Image, draw: ImageDraw.ImageDraw, label: Label, scale: int) -> None:
    text, place = printable(label.text), (label.x * scale, label.y * scale)
    font = font_of(text, FONT_SIZE * scale)
    if not label.upwards:
        anchor = {"start": "lm", "middle": "mm", "end": "rm"}[label.anchor]
        return draw.text(place, text, INK, font, anchor)
    left, top, right, bottom = font.getbbox(text, anchor="lm")
    size = (max(1, round(right - left)), max(1, round(bottom - top)))
    mask = Image.new("L", size)
    ImageDraw.Draw(mask).text((-left, -top), text, 255, font, "lm")
    before = {"start": size[0], "middle": size[0] / 2, "end": 0}[label.anchor]
    corner = (round(place[0] + top), round(place[1] - before))
    turned = mask.transpose(Image.Transpose.ROTATE_90)
    return image.paste(INK, corner, turned)


def png(image: Image.Image, title: str = "") -> bytes:
    file, info = io.BytesIO(), PngInfo()
    if title:
        info.add_itxt("Title", printable(title))
    image.save(file, "PNG", pnginfo=info)
    return file.getvalue()


@cache
def fonts(size: int) -> Sequence[Font]:
    """Those of this machine, and Pillow's own, which has Latin letters."""
    found: list[Font] = []
    for name in FONTS:
        try:
            found.append(ImageFont.truetype(name, size))
        except OSError:
            continue
    own = ImageFont.load_default(size)
    return [*found, own] if isinstance(own, Font) else found


def font_of(text: str, size: int) -> Font:
    """The first that has most of its letters."""
    letters = {c for c in text if not c.isspace() and unicodedata.category(c)[0] not in "MC"}
    return max(fonts(size), key=lambda font: sum(has(font, letter) for letter in letters))


@lru_cache(1 << 15)
def has(font: Font, letter: str) -> bool:
    """Of a letter that it lacks, a font draws what it draws of no letter."""
    return glyph(font, letter) != glyph(font, "\uffff")


def glyph(font: Font, letter: str) -> bytes:
    image = Image.new("L", (2 * round(font.size), 2 * round(font.size)))
    ImageDraw.Draw(image).text((0, 0), letter, 255, font)
    return image.tobytes()
