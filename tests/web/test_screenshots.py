"""Pictures of the page in light, in dark and on a phone; README's is one of them."""

import io

import pytest
from PIL import Image

from tests.web.places import places
from tests.web.screenshots import SHOTS, take

VIRIDIS = {"dark": (68, 1, 84), "bright": (253, 231, 37)}  # its ends


@pytest.mark.parametrize("name", SHOTS)
def test_a_picture_shows_the_whole_decoding(browser, address, tmp_path, name):
    shot = SHOTS[name]
    page = take(browser, address, shot, tmp_path / name)
    try:
        (heatmap,), (caption,), controls = places(
            page, "#heatmap canvas", "#heatmap figcaption", "#controls > :not(#attention)"
        )
        assert page.evaluate("document.documentElement.scrollWidth") == shot.width
        drawn = Image.open(io.BytesIO(page.locator("#heatmap canvas").screenshot()))
    finally:
        page.close()
    picture = Image.open(tmp_path / name)
    assert picture.size == (shot.width * shot.scale, shot.height * shot.scale)
    assert picture.convert("L").getpixel((4, 4)) > 200 or shot.scheme == "dark"
    assert picture.convert("L").getpixel((4, 4)) < 50 or shot.scheme == "light"
    colours = {colour for _, colour in drawn.convert("RGB").getcolors(2**20)}
    assert len(colours) > 20
    assert VIRIDIS["bright"] in colours
    assert heatmap["bottom"] <= shot.height
    assert caption["height"] < 30  # on one line
    assert shot.width < 1000 or max(each["bottom"] for each in controls) <= shot.height
