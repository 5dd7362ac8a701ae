"""Attention without a model on the page, and the reference of the API."""

import io
import re

import httpx2
import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.web.curl import run_curl
from tests.web.screens import SIZES, check_accessible


@pytest.fixture
def open_playground(visit):
    """Open the playground, and return the page after its first picture is drawn."""

    def open_page(**options):
        page = visit(**options)
        page.locator("#playground summary").first.click()
        expect(page.locator("#picture svg")).to_be_visible()
        return page

    return open_page


def name_of(mechanism, shape):
    return re.compile(f"^{mechanism} attention: heatmap of weights {' × '.join(map(str, shape))}")


def test_attention_without_a_model(open_playground):
    page = open_playground(expected="422")
    picture = page.locator("#picture svg")
    expect(picture).to_have_attribute("aria-label", name_of("gaussian", [50, 50]))
    page.locator("#mechanism").select_option("additive")
    expect(picture).to_have_attribute("aria-label", name_of("additive", [50, 50]))
    expect(page.locator("#attend [name=queries]")).to_be_hidden()
    page.locator("#given summary").click()
    page.locator("#attend [name=valid_lengths]").fill("[1, 2]")
    expect(page.locator("#attend-error")).to_contain_text(re.compile("^Valid lengths has shape"))
    page.locator("#attend [name=valid_lengths]").fill("")
    page.locator("#attend [name=values]").fill("[1, 2]")
    expect(page.locator("#attend-error")).to_contain_text("give one value for each key")
    page.locator("#attend [name=values]").fill("[1, 2")
    expect(page.locator("#attend-error")).to_contain_text("values is not JSON")
    shape = run_curl(page, "#copy-curl-attend")["shape"]  # the picture shown is the last good one
    expect(picture).to_have_attribute("aria-label", name_of("additive", shape))
    expect(page.locator("#attend-error")).to_contain_text("values is not JSON")


def test_the_width_has_a_name(open_playground):
    page = open_playground()
    width = page.get_by_role("slider", name=re.compile("^Width .*: the higher, the narrower"))
    expect(width).to_have_attribute("id", "width")


def test_an_edited_example_is_the_readers_own(open_playground):
    page = open_playground()
    example = page.get_by_label("Example")
    picture = page.locator("#picture svg")
    names = page.locator("#example option").all_inner_texts()
    assert "Regression of 50 points: scaled dot products" in names
    assert len(set(names)) == len(names)  # each tells itself from the others
    chosen = page.locator("#example option:checked")
    page.locator("#given summary").click()
    for edit in (
        lambda: page.locator("#mechanism").select_option("average"),
        lambda: page.locator("#causal").check(),
        lambda: page.locator("#attend [name=valid_lengths]").fill("[7]"),
    ):
        example.select_option("Regression of 50 points: scaled dot products")
        expect(chosen).to_have_text("Regression of 50 points: scaled dot products")
        edit()
        expect(chosen).to_have_text("own numbers")
    example.select_option("Two sequences, which see their first 2 and first 3 keys")
    expect(picture).to_have_attribute("aria-label", name_of("scaled_dot_product", [2, 1, 4]))


def luminance(colour):
    """Relative luminance of a CSS colour without transparency (WCAG 2.2)."""
    shares = [int(each) / 255 for each in re.fullmatch(r"rgb\((.*)\)", colour)[1].split(",")]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return sum(w * each for w, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_picture_has_the_colours_of_the_theme(open_playground, scheme):
    """The service writes black on white."""
    page = open_playground(color_scheme=scheme)
    shown = Image.open(io.BytesIO(page.locator("#picture").screenshot())).convert("RGB")
    ground = luminance(f"rgb{shown.getpixel((2, 2))}")
    assert (ground > 0.5) == (scheme == "light")
    inks = {"text": "fill", "circle": "fill", "polyline:not(rect + polyline)": "stroke"}
    for shape, ink in inks.items():
        script = "(nodes, ink) => nodes.map((node) => getComputedStyle(node)[ink])"
        for colour in page.locator(f"#picture {shape}").evaluate_all(script, ink):
            low, high = sorted((ground, luminance(colour)))
            assert (high + 0.05) / (low + 0.05) >= 3, (shape, colour)
    check_accessible(page)


def test_the_reference_loads_without_a_network(visit):
    page = visit("/docs")
    expect(page.locator(".opblock-summary").first).to_be_visible()
    expect(page.locator("body")).to_contain_text("/v1/decode")
    expect(page.locator("body")).to_contain_text("First request")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_docs_lead_back_to_the_page_in_the_colours_of_the_theme(visit, scheme):
    page = visit("/docs", color_scheme=scheme)
    expect(page.locator(".opblock-summary").first).to_be_visible()
    ground = page.locator("html").evaluate("node => getComputedStyle(node).backgroundColor")
    assert ground == {"light": "rgba(0, 0, 0, 0)", "dark": "rgb(28, 32, 34)"}[scheme]
    page.get_by_role("link", name="Type a text and see its attention").click()
    expect(page.locator("#source")).to_be_visible()


def test_code_within_a_line_of_the_docs_is_not_higher_than_it(visit):
    page = visit("/docs", viewport=SIZES["phone"])
    page.locator(".opblock-summary", has_text="/v1/decode").click()
    code = page.locator(".opblock.is-open :is(p, li) > code")
    expect(code.first).to_be_visible()
    script = """(nodes) => nodes.map((node) => [
      node.getClientRects()[0].height,
      parseFloat(getComputedStyle(node.parentElement).lineHeight),
    ])"""
    for box, line in code.evaluate_all(script):
        assert box <= line


def test_a_link_to_the_page_has_a_preview(address):
    """Its address is absolute: The Open Graph protocol knows no other."""
    page = httpx2.get(address).text
    (image,) = re.findall(r'<meta property="og:image" content="(.*?)">', page)
    assert image.startswith(f"{address}/")
    picture = Image.open(io.BytesIO(httpx2.get(image).content))
    assert (picture.format, picture.size) == ("PNG", (1200, 630))
