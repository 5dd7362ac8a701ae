"""Prepare labels: replace what cannot be drawn, choose a font, and measure the width in it."""

import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache

from PIL import Image, ImageDraw, ImageFont

from service.formats.picture import FONT_SIZE
from service.text.tokens import REPLACEMENT

Font = ImageFont.FreeTypeFont

# Fonts in order of preference. Unifont has a glyph for nearly every character.
FONTS = (
    "DejaVuSans.ttf",
    "NotoSansCJK-Regular.ttc",
    "Arial Unicode.ttf",
    "unifont.otf",
    "unifont_upper.otf",
)
# XML forbids most control characters and fonts have no glyphs for them. Some others break the line
# (U+0085, U+2028, U+2029) or reorder what follows them (U+202A to U+202E, U+2066 to U+2069).
REPLACED = {
    **dict.fromkeys(
        [*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], REPLACEMENT
    ),
    **dict.fromkeys([*range(0xD800, 0xE000), 0xFFFE, 0xFFFF], REPLACEMENT),
    **dict.fromkeys([0x85, 0x2028, 0x2029], "↵"),
    **{control: chr(0x2400 + control) for control in range(0x20)},  # its symbol
    0x7F: "\u2421",
}
MARGIN = 1.1  # the viewer of an SVG may choose a wider font than ours


def printable(text: str) -> str:
    """Return `text` with every character that cannot be drawn replaced by one that can."""
    return text.translate(REPLACED)


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
