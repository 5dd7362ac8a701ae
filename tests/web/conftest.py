"""A browser; a test fails if its page asks another host, a script fails or an error is logged."""

import os

import pytest
from playwright.sync_api import expect, sync_playwright

from service.settings.settings import DEFAULT_BUNDLE
from tests.conftest import TINY, serving
from tests.web.chromium import CHROMIUM, launch
from tests.web.exported import exported

expect.set_options(timeout=60_000)  # a loaded machine is slow, and a failure is rare


@pytest.fixture(scope="module")
def browser():
    """Skips where there is no Chromium, unless BROWSER_TESTS=required.

    It ends with its module: while it runs, no test of the same process can run an event loop."""
    if CHROMIUM is None:
        assert os.environ.get("BROWSER_TESTS") != "required", "there is no chromium here"
        pytest.skip("no chromium here: the page is not tested")
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def address(translator):
    """The address of a service with three bundles."""
    with serving("--bundles", f"{DEFAULT_BUNDLE},{TINY},{translator}") as address:
        yield address


@pytest.fixture
def visit(browser, address):
    """Open a path of the service in a new window.

    Fail at the end if the page asked another host, a script failed, or the console has an error
    without the text `expected`."""
    contexts, faults = [], []

    def open_page(path="/", expected="", **options):
        context = browser.new_context(
            base_url=address, permissions=["clipboard-read", "clipboard-write"], **options
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: check(request.url))  # even if a policy blocks it
        page.on("console", lambda said: complain(said, expected))
        page.goto(path)
        return page

    def check(url):
        if not url.startswith((address, "data:", "blob:", "file:")):
            faults.append(url)

    def complain(said, expected):
        if said.type == "error" and not (expected and expected in said.text):
            faults.append(f"{said.text} {said.location['url']}")

    yield open_page
    for context in contexts:
        context.close()
    assert not faults


@pytest.fixture
def show(visit, tmp_path):
    """Open an exported file of one matrix of weights: (weights, columns, rows) -> page."""

    def open_file(weights, columns, rows=None, **options):
        file = tmp_path / "attention.html"
        file.write_bytes(exported(weights, columns, rows))
        page = visit(file.as_uri(), **options)
        expect(page.locator(".heatmap canvas")).to_have_attribute("width", str(len(columns)))
        return page

    return open_file


@pytest.fixture
def page(visit):
    """The page after a word was typed and decoded."""
    page = visit()
    expect(page.locator("#output")).not_to_be_empty()  # the page has put its example into the form
    page.locator("#source").fill("heed")
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "4")
    return page
