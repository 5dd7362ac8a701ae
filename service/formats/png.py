"""Write pictures as PNG images."""

import io
from functools import cache

import numpy as np
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from service.formats.colours import Floats
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
ZLIB_LEVEL = 1  # of compression: at the default, 6, large images take up to twice as long

Mask = tuple[Image.Image, int]  # ink of a text, and its top or left edge relative to the middle


def to_png(picture: Picture) -> bytes:
    scale = 2 if 4 * picture.width * picture.height <= MOST_PIXELS else 1
    image = Image.new("RGB", (round(picture.width * scale), round(picture.height * scale)), PAPER)
    draw = ImageDraw.Draw(image)

    @cache  # the heatmaps of a grid have the same labels
    def mask_of(text: str, upwards: bool) -> Mask:
        return draw_text(printable(text), FONT_SIZE * scale, upwards)

    for shape in picture.shapes:
        match shape:
            case Cells():
                paste_cells(image, shape, scale)
            case Line(points, stroke, dashed):
                for piece in dashes(points) if dashed else [np.array(points)]:
                    draw.line((scale * piece).ravel().tolist(), stroke, STROKE * scale)
            case Dot(x, y, fill):
                draw.circle((x * scale, y * scale), RADIUS * scale, fill)
            case Label(_, _, text, _, upwards):
                paste_label(image, shape, scale, mask_of(text, upwards))
    file, info = io.BytesIO(), PngInfo()
    info.add_itxt("Title", printable(picture.title))
    image.save(file, "PNG", pnginfo=info, compress_level=ZLIB_LEVEL)
    return file.getvalue()


def paste_cells(image: Image.Image, cells: Cells, scale: int) -> None:
    left, top = round(scale * cells.x), round(scale * cells.y)
    right, bottom = round(scale * (cells.x + cells.width)), round(scale * (cells.y + cells.height))
    size = (max(1, right - left), max(1, bottom - top))
    content = Image.fromarray(cells.colours).resize(size, Image.Resampling.NEAREST)
    image.paste(content, (left, top))


def dashes(points: list[tuple[float, float]]) -> list[Floats]:
    """Return the dashes of a line as SVG draws them: the points (N, 2) of each.

    In SVG a dash or gap continues around a corner: on many short segments it has the same length
    as on one long segment.
    """
    x, y = np.array(points).T
    along = np.append(0.0, np.hypot(np.diff(x), np.diff(y)).cumsum())  # line up to each point
    starts = np.arange(0.0, along[-1], sum(DASH))
    ends = np.minimum(starts + DASH[0], along[-1])
    places = np.unique(np.concatenate([along, starts, ends]))
    corners = np.stack([np.interp(places, along, x), np.interp(places, along, y)], axis=1)
    first, last = np.searchsorted(places, starts), np.searchsorted(places, ends)
    return [corners[i : j + 1] for i, j in zip(first, last, strict=True)]


def draw_text(text: str, size: int, upwards: bool) -> Mask:
    """Draw the text into an image of its own: Pillow cannot draw text upwards."""
    font = font_of(text, size)
    left, top, right, bottom = font.getbbox(text, anchor="lm")
    mask = Image.new("L", (max(1, round(right - left)), max(1, round(bottom - top))))
    ImageDraw.Draw(mask).text((-left, -top), text, 255, font, "lm")
    return mask.transpose(Image.Transpose.ROTATE_90) if upwards else mask, round(top)


def paste_label(image: Image.Image, label: Label, scale: int, drawn: Mask) -> None:
    mask, top = drawn
    before = {"start": 0.0, "middle": 0.5, "end": 1.0}[label.anchor]  # share before the anchor
    x, y = label.x * scale, label.y * scale
    if label.upwards:
        corner = (round(x + top), round(y - (1 - before) * mask.height))
    else:
        corner = (round(x - before * mask.width), round(y + top))
    image.paste(INK, corner, mask)
