"""Back, Forward and links: choices can be taken back, and what a link cannot have is said."""

import re

import pytest
from playwright.sync_api import expect


def test_back_returns_to_the_former_model_and_its_answer(visit):
    page = visit("/#model=g2p-en&source=red")
    expect(page.locator("#output")).to_have_text("R EH1 D")
    page.locator("#kind").select_option("encoder")
    page.locator("#model").select_option("tiny")
    expect(page.locator("#about")).not_to_contain_text("phonemes")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "1")
    page.go_back()
    expect(page.locator("#model")).to_have_value("g2p-en")
    expect(page.locator("#output")).to_have_text("R EH1 D")
    expect(page.locator("#about")).to_contain_text("phonemes")
    expect(page.locator("#kind")).to_have_value("encoder")
    page.go_back()
    expect(page.locator("#kind")).to_have_value("cross")
    page.go_forward()
    page.go_forward()
    expect(page.locator("#model")).to_have_value("tiny")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "1")


def test_back_returns_to_a_model_whose_source_the_next_cannot_read(visit):
    page = visit(expected="422")
    expect(page.locator("#output")).not_to_be_empty()
    source = page.locator("#source").input_value()
    page.locator("#model").select_option("tiny")
    expect(page.locator("#error")).to_contain_text("tiny cannot read")
    page.go_back()
    expect(page.locator("#model")).to_have_value("g2p-en")
    expect(page.locator("#source")).to_have_value(source)
    expect(page.locator("#output")).not_to_be_empty()
    expect(page.locator("#error")).to_be_empty()


CHOICES = [("#layer", "0", "mean"), ("#head", "1", "mean"), ("#kind", "decoder", "cross")]


@pytest.mark.parametrize(("picker", "value", "former"), CHOICES)
def test_back_returns_to_the_former_choice_of_a_picker(page, picker, value, former):
    title = page.locator("#heatmap figcaption")
    before = title.inner_text()
    page.locator(picker).select_option(value)
    expect(title).not_to_have_text(before)
    page.go_back()
    expect(title).to_have_text(before)
    expect(page.locator(picker)).to_have_value(former)


def test_back_returns_to_the_word_before_an_example(page):
    page.locator("#examples").get_by_role("button", name="knight", exact=True).click()
    expect(page.locator("#output")).to_have_text("N AY1 T")
    page.go_back()
    expect(page.locator("#source")).to_have_value("heed")
    expect(page.locator("#output")).to_have_text("HH IY1 D")


UNKNOWN = [
    ("model=nllb-200&source=heed", "the model “nllb-200”", "g2p-en"),
    ("model=&source=heed", None, None),
    ("model=%3Cimg%20src%3Dx%3E&source=heed", "the model “<img␣src=x>”", "g2p-en"),
    (f"model={'x' * 500}&source=heed", f"the model “{'x' * 24}…”", "g2p-en"),
    ("model=g2p-en&source=heed&layer=9", "the layer “9”", "mean"),
    ("model=g2p-en&source=heed&kind=self", "the kind “self”", "cross"),
    ("model=translator&source=hello&target_language=xyz", "the target language “xyz”", "fra_Latn"),
]


@pytest.mark.parametrize(("link", "asked", "shown"), UNKNOWN, ids=[each[1] for each in UNKNOWN])
def test_a_link_says_what_it_asks_for_and_is_not_here(visit, link, asked, shown):
    page = visit(f"/#{link}")
    expect(page.locator("#heatmap canvas")).to_be_visible()
    unmet = page.locator("#unmet")
    if asked is None:
        expect(unmet).to_be_hidden()
        return
    expect(unmet).to_have_text(
        f"The link asks for {asked}, which is not here. Shown instead: {shown}."
    )
    assert page.locator("#error").inner_text() == ""
    page.locator("#source").fill("hello")
    expect(unmet).to_be_hidden()


def test_a_link_that_can_be_shown_says_nothing(page, visit):
    page.locator("#layer").select_option("0")
    expect(page).to_have_url(re.compile("layer=0"))
    other = visit(page.url)
    expect(other.locator("#heatmap figcaption")).to_contain_text("layer 0")
    expect(other.locator("#unmet")).to_be_hidden()
