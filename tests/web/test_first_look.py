"""What a newcomer sees without scrolling, and the first mistake."""

import pytest
from playwright.sync_api import expect

from tests.web.places import places
from tests.web.screens import SIZES
from tests.web.source import replace_source

PARTS = ["#result", "#decoding", "#attention-view"]


@pytest.mark.parametrize(
    ("size", "word", "parts", "bottom"),
    [
        ("1280", "construction", PARTS, 800),
        ("1440", "construction", PARTS, 900),
        ("phone", "attention", ["#heatmap canvas"], 500),
    ],
)
def test_a_word_is_seen_without_scrolling(visit, size, word, parts, bottom):
    page = visit(f"/#beam_size=4&source={word}", viewport=SIZES[size])
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", str(len(word)))
    expect(page.locator("#hypotheses input")).to_have_count(3)
    for part, (box,) in zip(parts, places(page, *parts), strict=True):
        assert box["bottom"] <= bottom, part


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["phone", "narrow"])
def test_a_phone_shows_the_steps_below_the_heatmap_and_the_examples_above_it(visit, size, scheme):
    page = visit("/", viewport=SIZES[size], color_scheme=scheme)
    expect(page.locator("#heatmap canvas")).to_be_visible()
    (source,), (examples,), (heatmap,), (steps,), (lines,), (grid,) = places(
        page, "#source", "#examples", "#heatmap", ".steps", "#bipartite", "#overview"
    )
    assert source["bottom"] < examples["top"] < examples["bottom"] < heatmap["top"]
    assert heatmap["bottom"] <= steps["top"] <= heatmap["bottom"] + 16
    assert steps["bottom"] <= min(lines["top"], grid["top"])
    assert steps["bottom"] <= SIZES[size]["height"]  # both are seen at once
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_several_words_are_offered_one_by_one(visit):
    page = visit(expected="422")
    replace_source(page, " heed ")
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    page.locator("#source").fill("Hello, world! “Hello” – …")
    expect(page.locator("#error")).to_contain_text("g2p-en reads one word at a time.")
    words = page.locator("#words button")
    assert words.all_inner_texts() == ["Hello", "world"]
    words.nth(1).click()
    expect(page.locator("#output")).to_have_text("W ER1 L D")
    expect(words).to_have_count(0)
    expect(page.locator("#source")).to_be_focused()


def test_words_lose_their_punctuation_in_any_script(page):
    script = "async (text) => (await import('/web/page/texts.js')).wordsOf(text)"
    text = "«Привет», (don't) -ish ¿qué? ’tis 你好。 हिन्दी। cafe\u0301! e.g. 7% - & don't"
    words = ["Привет", "don't", "-ish", "qué", "’tis", "你好", "हिन्दी", "cafe\u0301", "e.g", "7"]
    assert page.evaluate(script, text) == words
