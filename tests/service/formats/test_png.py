"""PNG images: cells have their colours, and labels are where they belong, in any script."""

import io

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from service.formats.heatmaps import draw_blocks
from service.formats.labels import fonts, has
from service.formats.picture import Cells, Label, Picture
from service.formats.png import to_png
from tests.service.formats.blocks import block_of, weights_of

SCRIPTS = {
    "Latin": "▁čšžé",
    "IPA": "ˈθɔːt",
    "Cyrillic": "привет",
    "Greek": "όνομα",
    "Arabic": "مرحبا",
    "Hebrew": "שלום",
    "Devanagari": "नमस्ते",
    "Thai": "สวัสดี",
    "Han": "日本語",
    "kana": "カタカナ",
    "Hangul": "한국어",
}


def pixels_of(picture):
    return np.array(Image.open(io.BytesIO(to_png(picture))))


def dark_of(*labels):
    """Return which pixels of a picture of 200 x 200 units (400 x 400 pixels) have ink."""
    return pixels_of(Picture(200.0, 200.0, "labels", [*labels])).max(-1) < 200


def test_the_colours_of_cells_are_those_of_viridis():
    """As Matplotlib has it, but for what lies between the nine places of our table."""
    weights = weights_of(2, 6, 60, 60)
    picture = draw_blocks([block_of(weights, ["t"] * 60, ["s"] * 60)], "", "")
    image = pixels_of(picture)
    assert image.shape[:2] == (round(picture.height), round(picture.width))
    _, *heatmaps = (shape for shape in picture.shapes if isinstance(shape, Cells))  # after the bar
    expected = mpl.colormaps["viridis"](weights / weights.max(), bytes=True)[..., :3]
    for cells, colours in zip(heatmaps, expected.reshape(12, 60, 60, 3), strict=True):
        middles = (np.arange(60) + 0.5) / 60
        rows = (cells.y + middles * cells.height).astype(int)
        columns = (cells.x + middles * cells.width).astype(int)
        difference = np.abs(image[np.ix_(rows, columns)].astype(int) - colours)
        assert difference.max() < 20
        assert difference.mean() < 2


@pytest.mark.parametrize("text", ["Wort", "שלום"])
@pytest.mark.parametrize("upwards", [False, True])
@pytest.mark.parametrize(("anchor", "share"), [("start", 0), ("middle", 0.5), ("end", 1)])
def test_a_label_is_at_its_anchor(text, anchor, share, upwards):
    """Its middle is on the line, and this share of its length is before the anchor."""
    y, x = np.nonzero(dark_of(Label(100.0, 100.0, text, anchor, upwards)))
    along, across = (-y, x) if upwards else (x, y)  # in the direction of reading from left to right
    assert np.ptp(along) > 1.5 * np.ptp(across) > 15
    at = -200 if upwards else 200
    assert abs(along.min() + share * np.ptp(along) - at) <= 3
    assert abs(across.min() + np.ptp(across) / 2 - 200) <= 3


def test_a_label_upwards_is_turned_to_the_left():
    """Its ink is the same, read from below."""
    flat, turned = (
        dark[np.ix_(dark.any(1), dark.any(0))]
        for dark in (dark_of(Label(100.0, 100.0, "hill", upwards=up)) for up in (False, True))
    )
    assert flat.sum() > 50
    assert (np.rot90(flat) == turned).all()


def test_a_label_that_comes_again_is_drawn_again():
    labels = [Label(x, y, "again", "start") for x, y in ((10.0, 20.0), (60.0, 150.0))]
    dark = dark_of(*labels)
    first, second = dark[20:60, 20:120], dark[280:320, 120:220]
    assert first.sum() > 50
    assert (first == second).all()
    assert dark.sum() == 2 * first.sum()


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_label_has_the_glyphs_of_its_script(script):
    """Missing glyphs are all alike: such a label would be the same backwards."""
    text = SCRIPTS[script]
    if not any(all(has(font, letter) for letter in text) for font in fonts(24)):
        pytest.skip(f"no font on this machine has {script}")
    drawn, backwards = (dark_of(Label(100.0, 100.0, each)) for each in (text, text[::-1]))
    assert drawn.sum() > 50
    assert (drawn != backwards).sum() > 20
