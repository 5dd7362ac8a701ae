"""Type a source into a page that has just been opened."""

from playwright.sync_api import expect


def replace_source(page, text):
    """Replace the source with `text`, once the page has filled in its first one. What arrives
    while Playwright fills a field is kept next to the new text: fill() selects what is there, then
    types."""
    source = page.locator("#source")
    expect(source).not_to_have_value("")
    source.fill(text)
