"""The page and /docs behind a proxy that shows them below a prefix."""

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.conftest import serving

PREFIX = "/a/heed"


@pytest.fixture(scope="module")
def behind():
    with serving("--root-path", PREFIX) as address:
        yield address


@pytest.fixture(params=[False, True], ids=["not stripped", "stripped"])
def page(request, browser, behind):
    """A page whose requests go through a proxy. It passes on those below the prefix alone."""
    context = browser.new_context(base_url=behind)
    page = context.new_page()
    page.set_default_timeout(60_000)
    faults = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: said.type == "error" and faults.append(said.text))

    def pass_on(route):
        path = urlsplit(route.request.url).path
        if not path.startswith(f"{PREFIX}/"):
            faults.append(route.request.url)
            return route.abort()
        there = route.request.url.replace(PREFIX, "", 1) if request.param else None
        return route.continue_(url=there)

    page.route(f"{behind}/**", pass_on)
    yield page
    context.close()
    assert not faults


def test_the_page_decodes_and_shows_attention(page):
    page.goto(f"{PREFIX}/")
    page.locator("#source").fill("heed")
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "4")


def test_docs_send_their_example(page):
    page.goto(f"{PREFIX}/docs")
    page.locator("[id^=operations-][id$=-decode] .opblock-summary").click()
    page.get_by_role("button", name="Execute").first.click()
    expect(page.locator(".live-responses-table tbody .response-col_status").first).to_contain_text(
        "200"
    )
