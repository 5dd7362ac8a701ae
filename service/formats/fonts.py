"""Fonts of this machine, and the width of a text in them."""

import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache

from PIL import Image, ImageDraw, ImageFont

from service.formats.picture import FONT_SIZE
from service.formats.printable import printable

Font = ImageFont.FreeTypeFont


# Looked for on this machine: of each label the first that has its letters. Unifont has all.
FONTS = (
    "DejaVuSans.ttf",
    "NotoSansCJK-Regular.ttc",
    "Arial Unicode.ttf",
    "unifont.otf",
    "unifont_upper.otf",
)


@lru_cache(1 << 14)
def width_of(text: str) -> float:
    """In the font that a PNG has for it, and a little more: of an SVG the viewer chooses."""
    text = printable(text)
    return 1.1 * font_of(text, FONT_SIZE).getlength(text)


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
