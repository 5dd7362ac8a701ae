"""Attention without a model on the page, and the reference of the API."""

import io
import re

import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.web.curl import run_curl


def test_attention_without_a_model(visit):
    page = visit(expected="422")
    page.locator("#playground summary").first.click()
    picture = page.locator("#picture")
    expect(picture).to_be_visible()
    expect(picture).to_have_attribute(
        "alt", re.compile("gaussian attention: heatmap of .* 50 × 50")
    )
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 500
    before = picture.get_attribute("src")
    page.locator("#mechanism").select_option("additive")
    expect(picture).not_to_have_attribute("src", before)
    page.locator("#attend [name=valid_lengths]").fill("[1, 2]")
    expect(page.locator("#attend-error")).to_contain_text(re.compile("^Valid lengths has shape"))
    page.locator("#attend [name=valid_lengths]").fill("")
    page.locator("#attend [name=values]").fill("[1, 2]")
    expect(page.locator("#attend-error")).to_contain_text("give one value for each key")
    page.locator("#attend [name=values]").fill("[1, 2")
    expect(page.locator("#attend-error")).to_contain_text("values is not JSON")
    shape = run_curl(page, "#copy-curl-attend")["shape"]  # the picture shown is the last good one
    assert f"additive attention: heatmap of weights {' × '.join(map(str, shape))}" in (
        picture.get_attribute("alt")
    )
    expect(page.locator("#attend-error")).to_contain_text("values is not JSON")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_playground_picture_lies_on_a_card_that_does_not_glare_in_the_dark(visit, scheme):
    page = visit(color_scheme=scheme)
    page.locator("#playground summary").first.click()
    picture = page.locator("#picture")
    expect(picture).to_be_visible()
    picture.evaluate("image => image.decode()")
    shown = Image.open(io.BytesIO(page.locator("#paper").screenshot())).convert("L")
    paper = shown.getpixel((20, shown.height // 2))
    assert (paper == 255) == (scheme == "light")
    assert paper - min(shown.get_flattened_data()) > 150  # dark enough, and black can still be read


@pytest.mark.parametrize(
    ("path", "landmark"), [("/docs", ".opblock-summary"), ("/redoc", "[data-section-id]")]
)
def test_the_reference_loads_without_a_network(visit, path, landmark):
    page = visit(path)
    expect(page.locator(landmark).first).to_be_visible()
    assert "/v1/decode" in page.content()
