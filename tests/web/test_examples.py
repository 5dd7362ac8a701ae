"""The model's examples on the page, and an answer of phonemes as it is pronounced."""

import pytest
from playwright.sync_api import expect


def test_an_example_of_the_model_is_decoded(visit):
    page = visit()
    page.locator("#examples").get_by_role("button", name="knight", exact=True).click()
    expect(page.locator("#output")).to_have_text("N AY1 T")
    expect(page.locator("#source")).to_have_value("knight")
    expect(page.locator("#pronunciation [lang]")).to_have_text("/ˈnaɪt/")


@pytest.mark.parametrize(
    ("phonemes", "ipa"),
    [
        ("AH0 T EH1 N SH AH0 N", "/əˈtɛnʃən/"),
        ("K AH0 N S T R AH1 K SH AH0 N", "/kənˈstɹʌkʃən/"),
        ("S EH2 R AH0 N D IH1 P IH0 T IY0", "/ˌsɛɹənˈdɪpɪti/"),
        ("S IH1 NG IH0 NG", "/ˈsɪŋɪŋ/"),
        ("QQ1", None),
    ],
)
def test_arpabet_in_ipa(visit, phonemes, ipa):
    page = visit()
    script = "async (text) => (await import('/web/page/ipa.js')).toIpa(text)"
    assert page.evaluate(script, phonemes) == ipa


def test_what_is_said_is_the_source(visit):
    page = visit("/#source=heed")
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    page.evaluate(
        "() => { speechSynthesis.speak = (each) => (window.said = [each.text, each.lang]) }"
    )
    page.locator("#say").click()
    assert page.evaluate("window.said") == ["heed", "en-US"]


def test_a_model_that_writes_no_phonemes_has_no_pronunciation(visit):
    page = visit("/#model=translator&source=hello")
    expect(page.locator("#output")).not_to_be_empty()
    expect(page.locator("#pronunciation")).to_be_hidden()
