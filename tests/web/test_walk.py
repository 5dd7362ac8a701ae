"""A walk through the page in each size and scheme, by pointer and by keyboard."""

import re

import pytest
from playwright.sync_api import expect

from tests.web.screens import SIZES, check_accessible


def press(node):
    node.focus()
    node.page.keyboard.press("Enter")


def click(node):
    node.click()


@pytest.mark.parametrize(
    ("size", "scheme", "act"),
    [
        ("1280", "light", click),
        ("1440", "dark", press),
        ("phone", "dark", click),
        pytest.param("1280", "dark", press, marks=pytest.mark.long),
        pytest.param("1440", "light", click, marks=pytest.mark.long),
        pytest.param("phone", "light", press, marks=pytest.mark.long),
    ],
)
def test_a_walk_through_the_page(visit, size, scheme, act):
    page = visit(viewport=SIZES[size], color_scheme=scheme, reduced_motion="reduce")
    title = page.locator("#heatmap figcaption")
    own = "N AY1 T"
    act(page.locator("#examples").get_by_role("button", name="knight", exact=True))
    expect(page.locator("#output")).to_have_text(own)
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "6")

    act(page.get_by_role("button", name="layer 1, head 3", exact=True))
    expect(title).to_have_text("cross attention, layer 1; head 3")
    page.go_back()
    expect(title).to_have_text("cross attention, mean of layers 0–2, heads 0–3")

    page.locator("#step").fill("3")
    act(page.locator("#previous"))
    expect(page.locator("#step-name")).to_have_text("Step 2 (0 to 3)")
    act(page.locator("#alternatives button").first)
    expect(page.locator("#branch-name")).to_have_text(re.compile("^What if .* followed AY1\\?$"))
    expect(page.locator("#output")).not_to_have_text(own)
    act(page.locator("#leave-branch"))
    expect(page.locator("#output")).to_have_text(own)

    act(page.locator("#export summary"))
    act(page.locator("#copy-link"))
    expect(page.locator("#status")).to_have_text("Copied.")
    act(page.locator("#playground summary").first)
    expect(page.locator("#picture svg")).to_be_visible()

    check_accessible(page)
