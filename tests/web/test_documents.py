"""A document is decoded sentence by sentence, and a second page shows another answer next to it."""

import httpx2
import pytest
from playwright.sync_api import expect

from tests.web.places import places
from tests.web.screens import SIZES, check_accessible
from tests.web.source import replace_source

LINES = "attention\n\n* * *\nheed\n transformer\n"
BESIDE = "/#model=g2p-en&source=knight&beside=model%3Dg2p-en%26source%3Dnight"
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


def answer_of(address, source):
    body = {"model": "g2p-en", "source": source, "split": "sentences"}
    return httpx2.post(f"{address}/v1/decode", json=body).json()["results"][0]


def test_each_sentence_of_a_document_can_be_opened(visit, address):
    page = visit("/#model=g2p-en&split=on", expected="status of 4")
    replace_source(page, LINES)
    answer = answer_of(address, LINES)
    pairs = page.locator("#sentences li")
    expect(pairs).to_have_count(3)
    expect(page.locator("#sentences button")).to_have_text(["attention", "heed", "transformer"])
    targets = [each["hypotheses"][0]["text"] for each in answer["sentences"]]
    expect(page.locator("#sentences span")).to_have_text(targets)
    assert page.locator("#output").inner_text() == answer["hypotheses"][0]["text"].rstrip("\n")
    expect(page.locator("#attention")).to_be_hidden()
    check_accessible(page)

    page.locator("#sentences button").last.press("Enter")
    expect(page.locator("#source")).to_be_focused()
    expect(page.locator("#output")).to_have_text(targets[2])
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", str(len("transformer")))
    expect(page.locator("#sentences")).to_be_hidden()
    page.go_back()
    expect(pairs).to_have_count(3)
    assert page.locator("#source").input_value() == LINES


def test_a_text_that_is_too_long_is_offered_to_be_split(visit):
    page = visit("/#model=g2p-en", expected="status of 4")
    replace_source(page, "\n".join(["heed"] * 30))
    expect(page.locator("#error")).to_contain_text("Split into sentences")
    page.locator("#split").check()
    expect(page.locator("#sentences li")).to_have_count(30)
    expect(page.locator("#error")).to_have_text("")


def test_only_texts_that_may_have_several_sentences_are_offered_to_be_split(visit):
    page = visit("/#model=tiny&source=red", expected="status of 422")
    for text, offered in (
        ("red", False),
        ("red\nred", True),
        ("red\n", False),
        ("red. red.", True),
        ("red.", False),
        ("red " * 16, True),
    ):
        page.locator("#source").fill(text)
        expect(page.locator("#split")).to_be_visible(visible=offered)


def test_two_models_answer_beside_each_other(visit, address):
    page = visit("/#model=g2p-en&source=knight", expected="status of 422")
    expect(page.locator("#output")).to_have_text("N AY1 T")
    page.locator("#compare").click()
    first, second = (page.frame_locator(f"iframe >> nth={i}") for i in (0, 1))
    for each in (first, second):
        expect(each.locator("#output")).to_have_text("N AY1 T")
        for hidden in ("header", "footer", "#playground"):
            expect(each.locator(hidden).first).to_be_hidden()
    for hidden in ("#controls", "#playground", "footer"):
        expect(page.locator(hidden)).to_be_hidden()
    second.locator("#model").select_option("tiny")
    second.locator("#source").fill("red green")
    expect(second.locator("#heatmap canvas")).to_have_attribute("width", "2")
    expect(first.locator("#heatmap canvas")).to_have_attribute("width", "6")

    page.locator("#copy-both").click()
    other = visit(page.evaluate("navigator.clipboard.readText()").removeprefix(address))
    first, second = (other.frame_locator(f"iframe >> nth={i}") for i in (0, 1))
    expect(first.locator("#output")).to_have_text("N AY1 T")
    expect(second.locator("#source")).to_have_value("red green")
    expect(second.locator("#model")).to_have_value("tiny")

    other.locator("#compare").click()
    expect(other.locator("iframe")).to_have_count(0)
    expect(other.locator("#output")).to_have_text("N AY1 T")
    expect(other.locator("#heatmap canvas")).to_have_attribute("width", "6")


@pytest.mark.parametrize(("size", "below"), [(WIDE, False), (PHONE, True)], ids=["wide", "phone"])
def test_two_answers_share_the_width_or_stand_below_each_other(visit, size, below):
    page = visit(BESIDE, viewport=size)
    for i in (0, 1):
        expect(page.frame_locator(f"iframe >> nth={i}").locator("#heatmap canvas")).to_be_visible()
    ((first, second),) = places(page, "iframe")
    assert (second["top"] >= first["bottom"]) == below
    assert (second["left"] >= first["right"]) != below
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


@pytest.mark.parametrize("size", ["phone", "narrow"])
def test_a_phone_compares_two_answers_that_are_both_in_sight(visit, size):
    page = visit("/#model=g2p-en&source=knight", viewport=SIZES[size], has_touch=True)
    expect(page.locator("#output")).to_have_text("N AY1 T")
    page.locator("#compare").tap()
    frames = [page.frame_locator(f"iframe >> nth={i}") for i in (0, 1)]
    replace_source(frames[1], "night")
    for frame, letters in zip(frames, ("6", "5"), strict=True):
        expect(frame.locator("#heatmap canvas")).to_have_attribute("width", letters)
        for part in ("#source", "#output", "#heatmap canvas"):
            expect(frame.locator(part)).to_be_in_viewport()
    check_accessible(page)
    (first, second), (header,), buttons = places(page, "iframe", "header", "header button")
    assert header["bottom"] <= first["top"]
    assert abs(first["height"] - second["height"]) <= 1
    assert second["bottom"] <= SIZES[size]["height"]
    assert (first["left"], first["right"]) == (0, SIZES[size]["width"])  # no second margin
    assert len(buttons) == 2
    assert all(24 <= button["height"] < 30 for button in buttons)  # one line, room for a thumb
    page.locator("#compare").tap()
    expect(page.locator("iframe")).to_have_count(0)
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "6")
