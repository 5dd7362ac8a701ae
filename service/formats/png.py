"""Pictures as PNG."""

import io
from itertools import compress

import numpy as np
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from service.formats.fonts import font_of
from service.formats.picture import DASH, FONT_SIZE, INK, PAPER, Cells, Dot, Label, Line, Picture
from service.formats.printable import printable

MOST_PIXELS = 16_000_000  # of a PNG that is twice as large as the SVG's units


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
