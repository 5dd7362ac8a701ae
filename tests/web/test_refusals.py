"""What the page says of a source that a model cannot read, and what it offers in its place."""

import re

import httpx2
import pytest
from playwright.sync_api import expect

from tests.web.screens import SIZES

ONE_WORD = "g2p-en reads one word at a time"
REFUSED = [
    ("ice cream", ONE_WORD, ["ice", "cream"]),
    ("well-known", ONE_WORD, ["well", "known"]),
    ("mother-in-law", ONE_WORD, ["mother", "in", "law"]),
    ("rock&roll", ONE_WORD, ["rock", "roll"]),
    ("either/or", ONE_WORD, ["either", "or"]),
    ("up\N{EN DASH}down", ONE_WORD, ["up", "down"]),
    ("snake_case", ONE_WORD, ["snake", "case"]),
    ("naïve", "g2p-en cannot read “ï”", ["naive"]),
    ("Cafe\N{COMBINING ACUTE ACCENT}", "g2p-en cannot read “e\u0301”", ["Cafe"]),
    ("Ångström", "g2p-en cannot read “Å” and “ö”", ["Angstrom"]),
    ("Straße", "g2p-en cannot read “ß”", ["Strasse"]),
    ("Øre", "g2p-en cannot read “Ø”", ["Ore"]),
    ("naïve café", ONE_WORD, ["naive", "cafe"]),
    ("crème-brûlée", ONE_WORD, ["creme", "brulee"]),
    ("hello!", "g2p-en cannot read “!”", ["hello"]),
    ("日本", "g2p-en cannot read “日” and “本”", []),
    ("日本 sushi", f"{ONE_WORD}, and it cannot read “日” and “本”", ["sushi"]),
    ("R2D2", "g2p-en cannot read “2”", []),
    ("😀", "g2p-en cannot read “😀”", []),
    ("0123456789", "g2p-en cannot read “0”, “1”, “2”, “3”, “4”, and other signs", []),
]


@pytest.mark.parametrize(("source", "said", "offered"), REFUSED, ids=[each[0] for each in REFUSED])
def test_a_refused_word_is_explained_and_what_can_be_read_is_offered(
    refusing, address, source, said, offered
):
    refusing.locator("#source").fill(source)
    error = refusing.locator("#error")
    expect(error).to_have_text(f"{said}. Still shown is the last good result, of “heed”.")
    assert not re.search("offset|vocabulary|a b c", error.inner_text())
    expect(refusing.locator("#words button")).to_have_text(offered)
    if offered:  # each decodes
        body = {"model": "g2p-en", "source": offered}
        assert httpx2.post(f"{address}/v1/decode", json=body).status_code == 200


@pytest.fixture(scope="module")
def refusing(browser, address):
    """One page for all refusals, after a word that is read."""
    page = browser.new_page(base_url=address)
    page.goto("/#source=heed")
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    yield page
    page.close()


def test_a_model_of_words_is_offered_the_others(visit):
    page = visit("/#model=tiny&source=red%20pink%20green", expected="422")
    expect(page.locator("#error")).to_have_text("tiny cannot read “pink”.")
    page.get_by_role("button", name="red green", exact=True).click()
    expect(page.locator("#source")).to_have_value("red green")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "2")
    page.go_back()
    expect(page.locator("#source")).to_have_value("red pink green")


def test_an_answer_to_an_older_refusal_is_not_shown(visit):
    page = visit("/#source=heed", expected="422")
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    waiting = []
    page.route("**/v1/tokenize", lambda route: waiting.append(route))
    with page.expect_request("**/v1/tokenize"):
        page.locator("#source").fill("naïve")
    page.locator("#source").fill("read")
    expect(page.locator("#output")).to_have_text(re.compile("^R "))
    expect(page.locator("#error")).to_be_empty()
    expect(page.locator("#words button")).to_have_count(0)


@pytest.mark.parametrize("size", ["1280", "phone"])
def test_what_is_still_shown_is_said_without_a_direction(visit, size):
    """Since it is below the error on a phone, and on its right elsewhere."""
    page = visit("/#source=heed", expected="422", viewport=SIZES[size])
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    page.locator("#source").fill("naïve")
    error = page.locator("#error")
    expect(error).to_contain_text("Still shown is the last good result, of “heed”.")
    assert not re.search("below|above|right|left", error.inner_text(), re.IGNORECASE)
