"""The plot of a regression: points, the prediction and the truth, however few and wherever."""

import io
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from service.formats.plots import BLUE, ORANGE, draw_attention
from service.formats.png import to_png
from service.formats.svg import css, to_svg
from tests.service.formats.blocks import SVG

NUMBERS = st.floats(-1e30, 1e30) | st.sampled_from([0.0, 1.0, 1e-30])


def draw(points, prediction, truth):
    weights = np.ones((1, prediction.shape[1], points.shape[1]), np.float32)
    return draw_attention(weights, points, prediction, truth)


def points_of(count):
    return arrays.arrays(np.float64, st.tuples(st.just(2), count), elements=NUMBERS)


@settings(max_examples=40)
@given(
    points=points_of(st.integers(1, 4)),
    prediction=points_of(st.integers(1, 4)),
    truth=points_of(st.integers(0, 4)),
)
def test_any_regression_can_be_drawn(points, prediction, truth):
    picture = draw(points, prediction, truth)
    ElementTree.fromstring(to_svg(picture))
    assert Image.open(io.BytesIO(to_png(picture))).size[0] > 0


@pytest.mark.parametrize(
    "line", [[(1.5, 3.0)], [(1.5, 3.0)] * 3, [(1.5, 3.0), (1.5 + 1e-9, 3.0)]], ids=len
)
def test_a_line_that_is_one_point_can_be_seen(line):
    """In both formats, whether it is the prediction or the truth."""
    line = np.array(line).T
    points, other = np.array([(1.0, 1.0), (2.0, 2.0)]).T, np.array([(1.0, 1.2), (2.0, 2.2)]).T
    for prediction, truth, colour in ((line, other, BLUE), (other, line, ORANGE)):
        picture = draw(points, prediction, truth)
        (dot,) = (
            circle
            for circle in ElementTree.fromstring(to_svg(picture)).findall(f"{SVG}circle")
            if circle.get("fill") == css(colour)
        )
        image = np.array(Image.open(io.BytesIO(to_png(picture))))
        x, y = (round(2 * float(dot.get(axis))) for axis in ("cx", "cy"))
        assert tuple(image[y, x]) == colour


def test_a_single_truth_is_answered(client):
    body = {"mechanism": "average", "queries": [1.5], "keys": [1, 2], "values": [1, 2]}
    for form in ("image/svg+xml", "image/png"):
        answer = client.post("/v1/attend", json={**body, "truth": [3]}, headers={"accept": form})
        assert answer.status_code == 200


@pytest.mark.parametrize("sequences", [1, 3])
def test_each_heatmap_says_what_its_colours_mean(sequences):
    weights = np.random.default_rng(0).random((sequences, 2, 5)).astype(np.float32)
    none = np.empty((2, 0))
    root = ElementTree.fromstring(to_svg(draw_attention(weights, none, none, none)))
    images = root.findall(f"{SVG}image")
    texts = root.findall(f"{SVG}text")
    for i, matrix in enumerate(weights):
        heatmap, bar = images[2 * i : 2 * i + 2]
        edge = float(heatmap.get("x")) + float(heatmap.get("width"))
        scale = [
            (float(text.get("x")), text.text)
            for text in texts
            if text.get("y") == f"{float(bar.get('y')) + float(bar.get('height')) / 2:.2f}"
            and float(heatmap.get("x")) <= float(text.get("x")) <= edge
        ]
        assert [text for _, text in sorted(scale)] == ["query x key", "0", f"{matrix.max():.3g}"]
        assert float(bar.get("x")) + float(bar.get("width")) < edge
