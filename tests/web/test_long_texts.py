"""Long texts: the whole heatmap is in sight, and neither black nor a tangle of lines."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest
from playwright.sync_api import expect

from service.formats.colours import viridis
from tests.web.exported import token
from tests.web.places import places
from tests.web.screens import SIZES, check_accessible
from tests.web.screenshots import LETTERS, LONG_SHOTS, take_long

PIXELS = """(canvas) => {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  return [height, width, [...data]];
}"""


def pixels(canvas):
    """The colours (T, S, 3) of a canvas, a pixel a cell."""
    height, width, data = canvas.evaluate(PIXELS)
    return np.array(data).reshape(height, width, 4)[..., :3]


def brightness(colours):
    """The shares that viridis gave these colours, to 0.01."""
    shades = viridis(np.linspace(0, 1, 101)).astype(int)
    distance = np.abs(colours[..., None, :] - shades).sum(-1)
    return distance.argmin(-1) / 100


@pytest.mark.parametrize("name", LONG_SHOTS)
def test_60_letters_are_in_sight_and_legible(browser, address, tmp_path, name):
    shot = LONG_SHOTS[name]
    page = take_long(browser, address, shot, tmp_path / name)
    try:
        (cells,), (box,), columns, rows, (thumbs,) = places(
            page,
            "#heatmap .cells",
            "#heatmap .box",
            "#heatmap .columns > :not(.thinned) > .token",
            "#heatmap .rows > :not(.thinned) > .token",
            "#overview .grid",
        )
        assert box["left"] <= cells["left"] < cells["right"] <= box["right"] <= shot.width
        assert box["top"] <= cells["top"] < cells["bottom"] <= box["bottom"]
        assert thumbs["right"] <= shot.width
        assert len(columns) >= len(LETTERS) // 4
        assert len(rows) > 30
        for labels, start, end in ((columns, "left", "right"), (rows, "top", "bottom")):
            assert all(one[end] <= other[start] + 0.5 for one, other in pairwise(labels))
        shares = brightness(pixels(page.locator("#heatmap canvas")))
        assert shares.shape[1] == len(LETTERS)
        assert np.median(shares.max(1)) == 1  # of the rows
        for canvas in page.locator("#overview canvas").all():
            small = brightness(pixels(canvas))
            assert (small.max(1) > 0.2).all()
            assert small.mean() > 0.05
        assert page.locator("#bipartite .all line").count() == shares.shape[0]
        check_accessible(page)
    finally:
        page.close()


ROWS = COLUMNS = 40


def sink_and_diagonal():
    """Weights of which </s> takes nine tenths: row 0 spreads the rest evenly, the others do not."""
    weights = np.full((ROWS, COLUMNS), 0.02 / COLUMNS)
    weights[np.arange(ROWS), np.arange(ROWS)] = 0.08
    weights[:, -1] = 0.9
    weights[0, :-1] = 0.1 / (COLUMNS - 1)
    weights[-1] = 1 / COLUMNS  # the whole row is even
    return weights


@pytest.fixture
def pieces():
    names = [token(f"▁piece{i}") for i in range(COLUMNS - 1)]
    return [*names, token("</s>", None)]


def test_a_special_token_hides_no_other_and_even_rows_are_faint(show, pieces):
    page = show(sink_and_diagonal(), pieces)
    shares = brightness(pixels(page.locator(".heatmap canvas")))
    own = np.arange(1, ROWS - 1)
    assert (shares[own, own] > 0.7).all()
    assert (shares[own, -1] == 1).all()
    assert shares[0, :-1].max() < 0.35
    assert shares[-1].max() < 0.35
    assert shares[own][:, :-1].mean() < 0.1  # the rest stays dark


def line_of(node):
    """Row, column and opacity of a line; a row or column is 1 high."""
    values = {name: float(node.get_attribute(name)) for name in ("y1", "y2", "stroke-opacity")}
    return int(values["y1"]), int(values["y2"]), values["stroke-opacity"]


def test_lines_lead_to_the_strongest_of_each_row_and_pointing_shows_the_others(show, pieces):
    weights = sink_and_diagonal()
    page = show(weights, pieces)
    lines = [line_of(each) for each in page.locator(".bipartite .all line").all()]
    strongest = weights[:, :-1].argmax(1)
    assert [(row, column) for row, column, _ in lines] == [*enumerate(strongest)]
    opacities = [opacity for *_, opacity in lines]
    assert max(opacities[0], opacities[-1]) < 0.35
    assert min(opacities[1:-1]) > 0.7
    page.locator(".heatmap .rows .token").nth(4).hover()
    pointed = [line_of(each)[:2] for each in page.locator(".bipartite .pointed line").all()]
    assert {(4, 4), (4, COLUMNS - 1)} <= set(pointed)
    assert {row for row, _ in pointed} == {4}


def test_a_source_of_special_tokens_alone_is_drawn(show):
    page = show(np.array([[0.9, 0.1], [0.2, 0.8]]), [token("<s>", None), token("</s>", None)])
    lines = [line_of(each) for each in page.locator(".bipartite .all line").all()]
    assert [(row, column) for row, column, _ in lines] == [(0, 0), (1, 1)]
    assert brightness(pixels(page.locator(".heatmap canvas"))).max() > 0.7


def test_a_row_that_sees_special_tokens_alone_has_its_line(show):
    """As the first step of a decoder, which sees <bos>."""
    weights = np.array([[1.0, 0.0, 0.0], [0.7, 0.3, 0.0], [0.2, 0.3, 0.5]])
    page = show(weights, [token("<bos>", None), token("a"), token("b")])
    lines = [line_of(each)[:2] for each in page.locator(".bipartite .all line").all()]
    assert lines == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_weights_that_are_all_alike_are_drawn(show, value):
    page = show(np.full((2, 1), value), [token("a")])
    shares = brightness(pixels(page.locator(".heatmap canvas")))
    assert shares.tolist() == [[value]] * 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["1280", "1440", "phone"])
def test_40_pieces_fit_the_width_with_labels_that_do_not_overlap(show, pieces, size, scheme):
    page = show(sink_and_diagonal(), pieces, viewport=SIZES[size], color_scheme=scheme)
    (cells,), (box,), labels = places(
        page, ".heatmap .cells", ".heatmap .box", ".columns > :not(.thinned) > .token"
    )
    assert box["left"] <= cells["left"] < cells["right"] <= box["right"] <= SIZES[size]["width"]
    assert all(one["right"] <= other["left"] + 0.5 for one, other in pairwise(labels))
    assert len(labels) >= COLUMNS // 4
    hidden = page.locator(".columns > .thinned > .token")
    if hidden.count():
        expect(hidden.first).to_be_hidden()
        left = cells["width"] * 1.5 / COLUMNS
        page.locator(".heatmap .cells").hover(position={"x": left, "y": 4})
        expect(page.locator(".columns .pointed .token")).to_be_visible()
    check_accessible(page)


@pytest.mark.parametrize("width", [390, 800, 1280])
def test_long_tokens_leave_the_lines_their_place(show, width):
    """They are shortened, and the lines between them need not be scrolled to."""
    names = [token("▁cinquante-quatrième") for _ in range(30)]
    page = show(np.eye(20, 30), names, viewport={"width": width, "height": 900})
    (box,), (left,), (lines,), (right,) = places(
        page, ".bipartite .box", ".left", ".bipartite .plot > svg", ".right"
    )
    assert box["left"] <= left["left"] < left["right"] <= lines["left"]
    assert lines["right"] <= right["left"] < right["right"] <= box["right"]
    assert lines["width"] >= 48


def test_more_columns_than_fit_scroll_with_a_bar_and_labels_that_stay(show):
    names = [token(f"▁piece{i}") for i in range(300)]
    page = show(np.full((60, 300), 1 / 300), names, viewport={"width": 390, "height": 300})
    box = page.locator(".heatmap .box")
    assert box.evaluate("node => node.scrollWidth > node.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    style = "(node) => getComputedStyle(node, '::-webkit-scrollbar').height"
    assert float(box.evaluate(style).removesuffix("px")) >= 6
    before, (edge,) = places(page, ".rows .token", ".heatmap .box")
    box.evaluate("node => node.scrollTo({ left: 500 })")
    after, (cells,) = places(page, ".rows .token", ".heatmap .cells")
    assert cells["left"] < edge["left"] - 300
    assert [each["left"] for each in after] == [each["left"] for each in before]
    box.evaluate("node => node.scrollTo({ top: 100 })")
    (labels,), (cells,), (edge,) = places(page, ".columns", ".heatmap .cells", ".heatmap .box")
    assert cells["top"] < edge["top"]
    assert labels["top"] == edge["top"]


def test_one_scale_for_all_rows_is_a_switch_that_links_keep(page, visit, address):
    """With it the colours are shares of the highest weight of all."""
    page.locator("#layer").select_option("0")
    page.locator("#head").select_option("2")
    expect(page.locator("#heatmap figcaption")).to_have_text("cross attention, layer 0; head 2")
    own = brightness(pixels(page.locator("#heatmap canvas")))
    thumb = page.locator("#overview canvas").nth(2)
    small = pixels(thumb)
    expect(page.locator(".legend").first).to_contain_text("in its row")
    page.get_by_label("One scale for all rows").check()
    expect(page.locator(".legend").first).not_to_contain_text("row")
    page.locator(".table summary").click()
    expect(page.locator(".table td:not(:empty)").first).to_be_visible()
    cells = page.locator(".table td:not(:empty)").all_inner_texts()
    weights = np.array([float(text) for text in cells]).reshape(own.shape)
    shared = brightness(pixels(page.locator("#heatmap canvas")))
    np.testing.assert_allclose(shared, weights / weights.max(), atol=0.02)
    least = np.minimum(1, 4 / weights.shape[1]) * weights.sum(1)
    scale = np.maximum(weights.max(1), least)
    np.testing.assert_allclose(own, weights / scale[:, None], atol=0.02)
    assert (pixels(thumb) != small).any()
    expect(page).to_have_url(re.compile("one_scale=on"))
    other = visit(page.url)
    expect(other.get_by_label("One scale for all rows")).to_be_checked()
    np.testing.assert_array_equal(brightness(pixels(other.locator("#heatmap canvas"))), shared)


def test_small_heatmaps_lose_no_bright_cell(page):
    script = """async (weights) => {
      const { pooled } = await import('/web/view/shares.js');
      return pooled(weights, 36);
    }"""
    random = np.random.default_rng(0)
    weights = np.zeros((45, 100))
    weights[np.arange(45), random.integers(0, 100, 45)] = random.random(45)
    small = np.array(page.evaluate(script, json.loads(json.dumps(weights.tolist()))))
    assert small.shape == (36, 36)
    assert set(small.max(1)) <= {*weights.max(1), 0}
    assert small.max() == weights.max()
    assert (small.max(1) > 0).all()
