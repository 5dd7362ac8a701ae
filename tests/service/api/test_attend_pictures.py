"""/v1/attend as a picture: what is drawn, and when the Accept header selects it."""

import io
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from service.api.endpoints.attend import EXAMPLES
from service.formats.colours import shrunk, viridis
from service.formats.png import dashes
from tests.service.api.bodies import GOOD, K, Q
from tests.service.formats.blocks import SVG, decoded


def heatmap_of(root):
    """Return the image of the only heatmap, which is higher than that of the bar of colours."""
    heatmap, _ = sorted(root.findall(f"{SVG}image"), key=lambda each: -float(each.get("height")))
    return heatmap


def cells_of(root):
    """Return the colours of the heatmap in an SVG, (T, S, 3)."""
    return decoded(heatmap_of(root))


def picture(client, accept, body):
    answer = client.post("/v1/attend", json=body, headers={"accept": accept})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == accept
    return answer.content


def test_a_regression_is_drawn_with_its_points_prediction_and_truth(client):
    root = ElementTree.fromstring(picture(client, "image/svg+xml", EXAMPLES["learned"]["value"]))
    assert root.find(f"{SVG}title").text == "attention of 50 queries over 50 keys"
    assert len(root.findall(f"{SVG}circle")) == 50
    _frame, truth, prediction = root.findall(f"{SVG}polyline")
    assert "stroke-dasharray" in truth.attrib
    assert [len(line.get("points").split()) for line in (truth, prediction)] == [50, 50]
    assert cells_of(root).shape == (50, 50, 3)


def test_the_colours_of_a_heatmap_are_its_weights(client):
    body = {"mechanism": "average", "queries": [[1], [2]], "keys": [[1], [2]], "values": [[1], [2]]}
    root = ElementTree.fromstring(picture(client, "image/svg+xml", {**body, "causal": True}))
    largest, none, half = (253, 231, 37), (68, 1, 84), tuple(viridis(np.array(0.5)).tolist())
    assert cells_of(root).tolist() == [[[*largest], [*none]], [[*half], [*half]]]


def test_a_png_is_the_same_picture_twice_as_large(client):
    body = EXAMPLES["gaussian"]["value"]
    root = ElementTree.fromstring(picture(client, "image/svg+xml", body))
    image = Image.open(io.BytesIO(picture(client, "image/png", body)))
    assert image.size == tuple(round(2 * float(root.get(side))) for side in ("width", "height"))
    heatmap = heatmap_of(root)
    cells = cells_of(root)
    for place in np.ndindex(cells.shape[:2]):
        row, column = (np.array(place) + 0.5) / cells.shape[:2]
        x = 2 * (float(heatmap.get("x")) + column * float(heatmap.get("width")))
        y = 2 * (float(heatmap.get("y")) + row * float(heatmap.get("height")))
        assert image.getpixel((int(x), int(y))) == tuple(cells[place].tolist())


def test_dashes_are_as_long_on_a_short_line_as_on_a_long_one():
    """6 drawn and 4 left out, regardless of corners."""
    pieces = dashes([(0.0, 0.0), (0.0, 8.0), (3.0, 8.0), (9.0, 8.0)])  # 17 long
    assert [each.tolist() for each in pieces] == [[[0, 0], [0, 6]], [[2, 8], [3, 8], [8, 8]]]
    straight = dashes([(0.0, 0.0), (20.0, 0.0)])
    assert [each.tolist() for each in straight] == [[[0, 0], [6, 0]], [[10, 0], [16, 0]]]


def test_a_line_of_very_many_points_is_drawn_from_some_of_them(client):
    count = 50_000
    body = {"mechanism": "average", "keys": [1], "values": [1], "queries": [0] * count}
    body["truth"] = [0, 1] * (count // 2)
    root = ElementTree.fromstring(picture(client, "image/svg+xml", body))
    for line in root.findall(f"{SVG}polyline")[1:]:
        assert 1000 < len(line.get("points").split()) <= 2000
    assert picture(client, "image/png", body)


def test_a_large_heatmap_is_drawn_from_the_means_of_blocks():
    rows = np.random.default_rng(0).random((401, 30)).astype(np.float32)
    cells = shrunk(rows, 200, 200)
    assert cells.shape == (200, 30)
    np.testing.assert_allclose(cells[0], rows[:2].mean(0), rtol=1e-6)
    np.testing.assert_allclose(cells[-1], rows[398:].mean(0), rtol=1e-6)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("*/*", "application/json"),
        ("image/*", "image/svg+xml"),
        ("image/png;q=1.2.3", "image/png"),
        ("image/png;q=.", "image/png"),
        ("image/png;q=0.9, image/svg+xml;q=0.5", "image/png"),
        ("text/html, application/json;q=0.1", "application/json"),
        ("image/png, application/json", "application/json"),
        ("application/json;q=0, */*", "image/svg+xml"),
        ("image/svg+xml;q=0, image/*", "image/png"),
        ("IMAGE/PNG; Q=0.5", "image/png"),
        ("image/png;q=.5, image/svg+xml;q=0.7", "image/svg+xml"),
        ("image/png;q=0.0001, image/svg+xml;q=0.001", "image/svg+xml"),
        (",", "application/json"),
        ("text/html, */*;q=0.8", "application/json"),
        ([("accept", "text/html"), ("accept", "image/png")], "image/png"),
    ],
)
def test_the_accept_header_selects_the_media_type(client, accept, content_type):
    headers = [("accept", accept)] if isinstance(accept, str) else accept
    answer = client.post("/v1/attend", json=GOOD, headers=headers)
    assert answer.headers["content-type"] == content_type


def test_an_unsupported_accept_is_refused_with_the_supported_types(client):
    for accept in ("application/pdf", "*/*;q=0"):
        answer = client.post("/v1/attend", json=GOOD, headers={"accept": accept})
        assert (answer.status_code, answer.json()["code"]) == (406, "not_acceptable")
    assert "available as application/json, image/svg+xml, image/png;" in answer.json()["detail"]
    many = {**GOOD, "queries": [Q] * 5, "keys": [K] * 5, "values": [[[1.0], [2.0]]] * 5}
    answer = client.post("/v1/attend", json=many, headers={"accept": "image/png"})
    assert answer.status_code == 406
    assert (
        "4 sequences but there are 5: send fewer, or accept application/json"
        in answer.json()["detail"]
    )
