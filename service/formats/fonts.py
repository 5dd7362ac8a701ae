"""Choose a font for a label, and measure the label in it."""

import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache

from PIL import Image, ImageDraw, ImageFont

from service.formats.picture import FONT_SIZE
from service.formats.printable import printable

Font = ImageFont.FreeTypeFont

# Fonts in order of preference. Unifont has a glyph for nearly every character.
FONTS = (
    "DejaVuSans.ttf",
    "NotoSansCJK-Regular.ttc",
    "Arial Unicode.ttf",
    "unifont.otf",
    "unifont_upper.otf",
)
MARGIN = 1.1  # the viewer of an SVG may choose a wider font than ours


@lru_cache(1 << 14)
def width_of(text: str) -> float:
    """Return the width of a label in units of a picture, a little more than a PNG needs."""
    text = printable(text)
    return MARGIN * font_of(text, FONT_SIZE).getlength(text)


@cache
def fonts(size: int) -> Sequence[Font]:
    """Return the FONTS this machine has, and Pillow's own, which has Latin letters."""
    found: list[Font] = []
    for name in FONTS:
        try:
            found.append(ImageFont.truetype(name, size))
        except OSError:  # not installed
            continue
    own = ImageFont.load_default(size)
    return [*found, own] if isinstance(own, Font) else found


def font_of(text: str, size: int) -> Font:
    """Return the font with the most letters of `text`, the first of equals."""
    letters = {c for c in text if not c.isspace() and unicodedata.category(c)[0] not in "MC"}
    return max(fonts(size), key=lambda font: sum(has(font, letter) for letter in letters))


@lru_cache(1 << 15)
def has(font: Font, letter: str) -> bool:
    """Return whether `font` has a glyph for the letter: all missing letters are drawn alike."""
    return glyph(font, letter) != glyph(font, "\uffff")


def glyph(font: Font, letter: str) -> bytes:
    image = Image.new("L", (2 * round(font.size), 2 * round(font.size)))
    ImageDraw.Draw(image).text((0, 0), letter, 255, font)
    return image.tobytes()
