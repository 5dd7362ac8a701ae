"""The Export menu of the page."""

import pytest
from playwright.sync_api import expect

from tests.web.curl import press_export, run_curl
from tests.web.source import replace_source


def test_the_curl_commands_ask_for_what_is_shown(visit):
    page = visit()
    replace_source(page, "don't")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "5")

    text = page.locator("#output").inner_text()
    decoded = run_curl(page, "#copy-curl-decode")["results"][0]
    assert decoded["hypotheses"][0]["text"] == text
    block = run_curl(page, "#copy-curl")["results"][0]["attention"][0]
    assert [token["text"] for token in block["columns"]] == list("don't")
    assert block["layers"] == [0, 1, 2]


@pytest.mark.parametrize("name", ["json", "npz", "safetensors", "svg", "png", "html"])
def test_the_attention_shown_can_be_downloaded_in_every_format(page, name):
    with page.expect_download() as download:
        press_export(page, f"#downloads [data-name={name}]")
    assert download.value.suggested_filename == f"attention-heed.{name}"
    begins = {"json": b"{", "npz": b"PK", "svg": b"<svg", "png": b"\x89PNG", "html": b"<!doctype"}
    begins["safetensors"] = b'{"__metadata__"'
    with open(download.value.path(), "rb") as file:
        assert begins[name] in file.read(8 + len(begins["safetensors"]))


def test_the_menu_is_used_and_left_by_keys(page):
    menu = page.locator("#export")
    names = menu.get_by_role("button").evaluate_all("each => each.map((one) => one.textContent)")
    assert len(set(names)) == len(names)
    summary = menu.locator("summary")
    summary.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#copy-link")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator("#copy-link")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#copy-link")).to_be_hidden()
    expect(summary).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text("Copied.")
    expect(page.locator("#copy-link")).to_be_hidden()
    assert page.evaluate("navigator.clipboard.readText()") == page.url


def test_a_click_elsewhere_closes_the_menu(page):
    page.locator("#export summary").click()
    expect(page.locator("#copy-link")).to_be_visible()
    page.locator("h1").click()
    expect(page.locator("#copy-link")).to_be_hidden()
