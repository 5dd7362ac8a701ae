"""Pictures of the page, in Chromium: `python -m tests.web.screenshots` takes those of README and of
links to the page."""

from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import expect, sync_playwright

from service.settings.settings import DEFAULT_BUNDLE, WEB
from tests.conftest import serving
from tests.web.chromium import launch

WORD = "photograph"  # f is written as ph, twice
LETTERS = "misunderstandingknightmisunderstandingknightmisunderstanding"  # 60
PREVIEW = WEB / "page" / "preview.png"
README = Path("docs/page.png")


class Shot(NamedTuple):
    width: int
    height: int
    scheme: str = "light"
    beams: int = 4
    scale: float = 1  # pixels of the picture for one of the page


SHOTS = {
    "page.png": Shot(1280, 768, scale=1.5),
    "dark.png": Shot(1440, 900, "dark"),
    "phone.png": Shot(390, 844, "dark", scale=2),
    "preview.png": Shot(1280, 672, beams=1, scale=0.9375),  # 1200 x 630, as links want
}


LONG_SHOTS = {
    "long-1280.png": Shot(1280, 800, "light"),
    "long-1440.png": Shot(1440, 900, "dark"),
    "long-phone.png": Shot(390, 844, "light", scale=2),
}


def take_long(browser, address, shot, file):
    """Write a picture of the whole page with a source of 60 letters, and return the page."""
    page = open_page(browser, address, shot, LETTERS)
    page.screenshot(path=file, full_page=True)
    return page


def take(browser, address, shot, file):
    """Write a picture of a decoding, whose last F is pointed at, and return the page."""
    page = open_page(browser, address, shot, WORD)
    page.locator("#heatmap .rows .token", has_text="F").last.hover()
    page.screenshot(path=file)
    return page


def open_page(browser, address, shot, source):
    page = browser.new_page(
        base_url=address,
        viewport={"width": shot.width, "height": shot.height},
        device_scale_factor=shot.scale,
        color_scheme=shot.scheme,
        reduced_motion="reduce",
    )
    page.goto(f"/#source={source}&beam_size={shot.beams}")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", str(len(source)))
    expect(page.locator("#busy")).to_be_hidden()
    return page


def main():
    with (
        serving("--bundles", str(DEFAULT_BUNDLE)) as address,
        sync_playwright() as playwright,
        launch(playwright) as browser,
    ):
        for file in (README, PREVIEW):
            take(browser, address, SHOTS[file.name], file)


if __name__ == "__main__":
    main()
