"""Heatmaps of attention: every token has its label, and every matrix its place and colours."""

import io
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from service.formats.colours import viridis
from service.formats.heatmaps import LARGEST_GRID, draw_blocks
from service.formats.labels import font_of, fonts, has
from service.formats.picture import Cells, Label
from service.formats.png import to_png
from service.formats.svg import to_svg
from tests.service.formats.blocks import SVG, block_of, decoded, texts_of, weights_of

HOSTILE = [
    "<script>'&'</script>",
    "]]>",
    "😀",
    "👩‍👩‍👧",
    "e\u0301\u0302\u0327",
    "שלום",
    "مرحبا",
    "日本語",
    "नमस्ते",
    "\x00\x1b\n\t",
    "\ufffe\U000e0001",
    "▁" * 4096,
    "",
]


def test_any_token_can_be_drawn():
    """Each is a label of the SVG, long ones shortened; the PNG has a title."""
    count = len(HOSTILE)
    block = block_of(weights_of(count, count), HOSTILE, HOSTILE)
    picture = draw_blocks([block], "<&>\x00", '"')
    root = ElementTree.fromstring(to_svg(picture))
    assert root.get("role") == "img"
    assert root.get("aria-label") == root.find(f"{SVG}title").text
    labels = texts_of(root)[5:]  # after what the picture, the block, its colours and the matrix are
    for labelled in (labels[:count], labels[count:]):
        assert labelled[:9] == HOSTILE[:9]
        assert labelled[9] == "␀␛␊␉"
        assert labelled[11] == "▁" * 23 + "…"
    assert not root.findall(f".//{SVG}script")
    image = Image.open(io.BytesIO(to_png(picture)))
    assert image.text["Title"].startswith("cross attention: ")


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (60, 60), (200, 200), (200, 1), (1, 200)])
def test_every_token_has_a_label_that_overlaps_no_other(shape):
    rows, columns = ([f"{side}{i}" for i in range(n)] for side, n in zip("rc", shape, strict=True))
    root = ElementTree.fromstring(
        to_svg(draw_blocks([block_of(weights_of(*shape), rows, columns)], "a", "b"))
    )
    places = {text.text: text for text in root.findall(f"{SVG}text") if text.text in rows + columns}
    assert len(places) == sum(shape)
    for names, axis in ((rows, "y"), (columns, "x")):
        at = np.array([float(places[name].get(axis)) for name in names])
        assert (np.diff(at) >= 12 - 0.01).all()  # the size of the font
    _, cells = root.findall(f"{SVG}image")  # after the bar of colours
    assert float(cells.get("width")) <= LARGEST_GRID


def test_a_grid_has_a_title_for_each_matrix_and_one_scale():
    weights = weights_of(2, 3, 4, 5)
    root = ElementTree.fromstring(
        to_svg(draw_blocks([block_of(weights, "abcd", "efghi")], "efghi", "abcd"))
    )
    titles = [f"layer {layer}; head {head}" for layer in range(2) for head in range(3)]
    bar, *images = root.findall(f"{SVG}image")
    for image, matrix in zip(images, weights.reshape(6, 4, 5), strict=True):
        np.testing.assert_array_equal(decoded(image), viridis(matrix / weights.max()))
    assert [text for text in texts_of(root) if text.startswith("layer")] == titles
    assert len(images) == 6
    assert (decoded(bar) == viridis(np.linspace(0, 1, decoded(bar).shape[1]))).all()
    for i, image in enumerate(images):
        across, down = (float(image.get(axis)) for axis in "xy")
        first = images[0]
        assert (across > float(first.get("x"))) == (i % 3 > 0)
        assert (down > float(first.get("y"))) == (i >= 3)


@pytest.mark.parametrize("kinds", [["cross"], ["encoder", "decoder", "cross"]])
@pytest.mark.parametrize("largest", [1.0, 0.25, 0.00123456, 0.0])
def test_each_block_says_its_kind_once_and_what_its_colours_mean(kinds, largest):
    """In its first line, next to a bar from 0 to its largest weight."""
    weights = weights_of(3, 4)
    blocks = [
        {**block_of(weights * (largest / weights.max()), "abc", "defg"), "kind": kind}
        for kind in kinds
    ]
    picture = draw_blocks(blocks, "heed", "HH IY1 D")
    root = ElementTree.fromstring(to_svg(picture))
    texts = texts_of(root)
    for kind in kinds:
        (line,) = (text for text in root.findall(f"{SVG}text") if kind in (text.text or ""))
        assert line.text == f"{kind} attention: rows attend to columns"
        at = texts.index(line.text)
        assert texts[at + 1 : at + 3] == ["0", f"{largest:.3g}"]
        start, bar, end = (
            float(each.get("x"))
            for each in (
                root.findall(f"{SVG}text")[at + 1],
                root.findall(f"{SVG}image")[2 * kinds.index(kind)],
                root.findall(f"{SVG}text")[at + 2],
            )
        )
        assert float(line.get("x")) < start < bar < end < picture.width
    image = Image.open(io.BytesIO(to_png(picture))).convert("RGB")
    bar = next(shape for shape in picture.shapes if isinstance(shape, Cells))
    middle = round(2 * (bar.y + bar.height / 2))
    ends = [image.getpixel((round(2 * x), middle)) for x in (bar.x + 1, bar.x + bar.width - 1)]
    assert ends == [(68, 1, 84), (253, 231, 37)]


def test_a_picture_of_512_tokens_in_48_heads_is_drawn_smaller():
    tokens = [f"token{i}" for i in range(512)]
    weights = np.broadcast_to(weights_of(512, 512), (6, 8, 512, 512))
    picture = draw_blocks([block_of(weights, tokens, tokens)], "a", "b")
    _, *cells = (shape for shape in picture.shapes if isinstance(shape, Cells))
    assert len(cells) == 48
    assert all(max(shape.colours.shape) < 512 for shape in cells)
    png = to_png(picture)
    assert max(Image.open(io.BytesIO(png)).size) < 8000


@pytest.mark.parametrize("text", ["abc", "日本", "שלום", "😀"])
def test_a_label_is_written_in_a_font_that_has_it(text):
    """If this machine has one; it always has one for Latin letters."""
    able = [font for font in fonts(12) if all(has(font, letter) for letter in text)]
    assert font_of(text, 12) in (able or fonts(12))
    assert able or text != "abc"


def test_wide_labels_have_the_room_they_need():
    rows = ["W" * 24, "i"]
    picture = draw_blocks([block_of(weights_of(2, 2), rows, ["WWW", "@@@"])], "", "")
    _, cells = (shape for shape in picture.shapes if isinstance(shape, Cells))
    assert cells.x > font_of(rows[0], 12).getlength(rows[0])
    turned = [shape for shape in picture.shapes if isinstance(shape, Label) and shape.upwards]
    assert [label.text for label in turned] == ["WWW", "@@@"]


@pytest.mark.parametrize("of", ["attention", "heads"])
def test_each_kind_has_a_scale_of_its_own(of):
    """The colours of small numbers are not lost among the large ones of another kind."""
    weights = weights_of(3, 4)
    largest = {"encoder": 8.0, "decoder": 0.5, "cross": 0.001}
    blocks = [
        {**block_of(weights * (most / weights.max()), "abc", "defg"), "kind": kind}
        for kind, most in largest.items()
    ]
    if of == "heads":  # of an attribution: rows are layers, columns are heads
        blocks = [
            {name: value for name, value in block.items() if name not in ("layers", "heads")}
            for block in blocks
        ]
    root = ElementTree.fromstring(to_svg(draw_blocks(blocks, "heed", "HH IY1 D")))
    first, *others = (decoded(image) for image in root.findall(f"{SVG}image")[1::2])
    for other in others:
        np.testing.assert_array_equal(other, first)
    for most in largest.values():
        assert f"{most:.3g}" in texts_of(root)
