"""Write pictures as PNG images."""

import io
import math
from itertools import pairwise

from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from service.formats.labels import font_of, printable
from service.formats.picture import (
    DASH,
    FONT_SIZE,
    INK,
    PAPER,
    RADIUS,
    STROKE,
    Cells,
    Dot,
    Label,
    Line,
    Picture,
)

MOST_PIXELS = 16_000_000  # at two pixels per unit; larger pictures get one pixel per unit

Point = tuple[float, float]


def to_png(picture: Picture) -> bytes:
    scale = 2 if 4 * picture.width * picture.height <= MOST_PIXELS else 1
    image = Image.new("RGB", (round(picture.width * scale), round(picture.height * scale)), PAPER)
    draw = ImageDraw.Draw(image)
    for shape in picture.shapes:
        match shape:
            case Cells():
                paste_cells(image, shape, scale)
            case Line(points, stroke, dashed):
                for piece in dashes(points) if dashed else [points]:
                    draw.line([(x * scale, y * scale) for x, y in piece], stroke, STROKE * scale)
            case Dot(x, y, fill):
                draw.circle((x * scale, y * scale), RADIUS * scale, fill)
            case Label(upwards=False):
                draw_label(draw, shape, scale)
            case Label():
                paste_label_upwards(image, shape, scale)
    return encode_png(image, picture.title)


def encode_png(image: Image.Image, title: str = "") -> bytes:
    file, info = io.BytesIO(), PngInfo()
    if title:
        info.add_itxt("Title", printable(title))
    image.save(file, "PNG", pnginfo=info)
    return file.getvalue()


def paste_cells(image: Image.Image, cells: Cells, scale: int) -> None:
    left, top = round(scale * cells.x), round(scale * cells.y)
    right, bottom = round(scale * (cells.x + cells.width)), round(scale * (cells.y + cells.height))
    size = (max(1, right - left), max(1, bottom - top))
    content = Image.fromarray(cells.colours).resize(size, Image.Resampling.NEAREST)
    image.paste(content, (left, top))


def dashes(points: list[Point]) -> list[list[Point]]:
    """Return the pieces of a dashed line, each with the corners within it, as SVG draws them.

    In SVG a dash or gap continues around a corner: on many short segments it has the same length
    as on one long segment.
    """
    pieces: list[list[Point]] = []
    piece, drawing, left = [points[0]], True, float(DASH[0])  # the rest of a dash or gap
    for start, end in pairwise(points):
        length, done = math.dist(start, end), 0.0
        while length - done > left:
            done += left
            place = between(start, end, done / length)
            if drawing:
                pieces.append([*piece, place])
            piece, drawing = [place], not drawing
            left = float(DASH[0] if drawing else DASH[1])
        left -= length - done
        piece.append(end)
    return [*pieces, piece] if drawing else pieces


def between(start: Point, end: Point, share: float) -> Point:
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])


def draw_label(draw: ImageDraw.ImageDraw, label: Label, scale: int) -> None:
    text = printable(label.text)
    anchor = {"start": "lm", "middle": "mm", "end": "rm"}[label.anchor]
    font = font_of(text, FONT_SIZE * scale)
    draw.text((label.x * scale, label.y * scale), text, INK, font, anchor)


def paste_label_upwards(image: Image.Image, label: Label, scale: int) -> None:
    """Draw the label into an image of its own and rotate it: Pillow cannot draw text upwards."""
    text = printable(label.text)
    font = font_of(text, FONT_SIZE * scale)
    left, top, right, bottom = font.getbbox(text, anchor="lm")
    width, height = max(1, round(right - left)), max(1, round(bottom - top))
    mask = Image.new("L", (width, height))
    ImageDraw.Draw(mask).text((-left, -top), text, 255, font, "lm")
    above = {"start": width, "middle": width / 2, "end": 0}[label.anchor]
    corner = (round(label.x * scale + top), round(label.y * scale - above))
    image.paste(INK, corner, mask.transpose(Image.Transpose.ROTATE_90))
