"""Sizes of screens, and what holds of every page on each."""

from axe_playwright_python.sync_playwright import Axe

SIZES = {
    "1280": {"width": 1280, "height": 800},
    "1440": {"width": 1440, "height": 900},
    "phone": {"width": 390, "height": 844},
    "narrow": {"width": 360, "height": 780},
}


def check_accessible(page):
    """The page follows the rules of axe, and is not wider than the screen."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
