"""Labels of pictures: any text can be drawn, and what cannot be seen is replaced."""

import io
import unicodedata
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from service.formats.heatmaps import draw_blocks
from service.formats.labels import printable
from service.formats.png import to_png
from service.formats.svg import to_svg
from service.text.tokens import Token

SVG = "{http://www.w3.org/2000/svg}"
REORDERING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}  # bidi classes
SEPARATORS = "\x0a\x0b\x0c\x0d\x1c\x1d\x1e\x1f\x85\u2028\u2029"


def unseen(character):
    """By Unicode's own classes: no glyph, an end of the line, or an effect on what follows."""
    category = unicodedata.category(character)
    return (
        category in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(character) in REORDERING
    )


def draw(row, column):
    block = {
        "kind": "cross",
        "layers": [0],
        "heads": [0],
        "axes": ["target", "source"],
        "rows": [Token(row, 4, 0, 1)],
        "columns": [Token(column, 4, 0, 1)],
        "data": np.ones((1, 1), np.float32),
    }
    return draw_blocks([block], column, row)


@given(row=st.text(st.characters()), column=st.text(st.characters()))
@example(row="a\u2029b", column="\x85")
@example(row="\u202eabc", column="\u2066\u2067\u2069")
def test_any_text_can_be_drawn(row, column):
    picture = draw(row, column)
    labels = ElementTree.fromstring(to_svg(picture)).findall(f"{SVG}text")
    assert not any(unseen(character) for label in labels for character in label.text or "")
    assert Image.open(io.BytesIO(to_png(picture))).size[0] > 0


@given(st.characters())
def test_a_character_is_replaced_where_it_cannot_be_seen(character):
    shown = printable(f"a{character}b")
    assert len(shown) == 3
    assert (shown[1] != character) == (unseen(character) or character in "\ufffe\uffff")


@pytest.mark.parametrize(
    ("text", "shown"),
    [("\x00\x1b\t", "␀␛␉"), ("a\u2029b", "a↵b"), ("\x7f", "␡"), ("👩‍👩‍👧", "👩‍👩‍👧")],
)
def test_controls_have_their_pictures_and_emoji_stay_whole(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize("separator", SEPARATORS)
def test_a_label_with_a_line_separator_is_one_line(separator):
    assert len(printable(f"a{separator}b").splitlines()) == 1
