"""The page with other models than the default one: languages, and texts from right to left."""

import re

import httpx2
import pytest
from playwright.sync_api import expect

from tests.web.curl import press_export, run_curl
from tests.web.places import places
from tests.web.screens import SIZES, check_accessible
from tests.web.source import replace_source

ARABIC = "مرحبا بالعالم"


@pytest.fixture
def page(visit):
    """The page after the translator has decoded an English text, with the languages it chose."""
    page = visit("/#model=translator&source=hello")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "3")
    return page


def pick(page, language, code):
    """Return the request for a decoding that picking a language makes."""
    with page.expect_request("**/v1/decode") as sent:
        page.locator(language).select_option(code)
    return sent.value.post_data_json


def test_languages_have_names_where_their_codes_are_known(page):
    options = page.locator("#source-language option")
    assert options.all_inner_texts() == [
        "Arabic (arb_Arab)",
        "Chinese (zho_Hans)",
        "English (en_XX)",
        "English (eng_Latn)",
        "French (fra_Latn)",
        "Traditional Chinese (zho_Hant)",
        "xx1",
    ]


def test_a_model_without_task_and_licence_is_only_named(page):
    expect(page.locator("#about")).to_have_text("translator")
    expect(page.locator("#credit")).to_have_text("")


def test_a_language_is_found_by_typing_its_name(page):
    page.locator("#source-language").focus()
    with page.expect_request("**/v1/decode") as sent:
        page.keyboard.type("trad")
    assert sent.value.post_data_json["source_language"] == "zho_Hant"


def test_english_into_another_language_is_the_first_choice(page, visit):
    assert page.locator("#source-language").input_value() == "eng_Latn"
    assert page.locator("#target-language").input_value() == "fra_Latn"
    reader = visit("/#model=translator&source=hello", locale="he-IL")
    expect(reader.locator("#target-language")).to_have_value("heb_Hebr")


def test_a_model_without_languages_has_no_pickers_and_gets_no_languages(page):
    with page.expect_request("**/v1/decode") as sent:
        page.locator("#model").select_option("g2p-en")
    assert not {"source_language", "target_language"} & set(sent.value.post_data_json)
    expect(page.locator("#source-language")).to_be_hidden()
    expect(page.locator("#target-language")).to_be_hidden()
    expect(page).not_to_have_url(re.compile("source_language"))


def test_the_languages_stay_when_models_are_switched(page):
    pick(page, "#source-language", "zho_Hant")
    pick(page, "#target-language", "heb_Hebr")
    page.locator("#model").select_option("g2p-en")
    page.locator("#model").select_option("translator")
    expect(page.locator("#source-language")).to_have_value("zho_Hant")
    expect(page.locator("#target-language")).to_have_value("heb_Hebr")


def test_the_languages_are_part_of_every_request_and_of_the_link(page, visit, address):
    chosen = {"source_language": "fra_Latn", "target_language": "heb_Hebr"}

    def asks(path):
        """Wait for a request to this path with the chosen languages."""
        return page.expect_request(
            lambda sent: sent.url.endswith(path) and chosen.items() <= sent.post_data_json.items()
        )

    pick(page, "#source-language", "fra_Latn")
    with asks("/v1/attention"), asks("/v1/decode"):
        pick(page, "#target-language", "heb_Hebr")
    body = {"model": "translator", "source": "hello", **chosen}
    answer = httpx2.post(f"{address}/v1/decode", json=body).json()
    text = answer["results"][0]["hypotheses"][0]["text"]
    expect(page.locator("#output")).to_have_text(text)

    answer = run_curl(page, "#copy-curl-decode")
    assert answer["results"][0]["hypotheses"][0]["text"] == text
    with asks("/v1/attention"):
        press_export(page, "#downloads [data-name=svg]")
    with asks("/v1/decode"):
        page.locator("#stream").check()
    expect(page.locator("#output")).to_have_text(text)

    press_export(page, "#copy-link")
    other = visit(page.evaluate("navigator.clipboard.readText()"))
    expect(other.locator("#output")).to_have_text(text)
    expect(other.locator("#source-language")).to_have_value("fra_Latn")
    expect(other.locator("#target-language")).to_have_value("heb_Hebr")


def test_an_untouched_beam_size_is_the_models_own(page):
    beam_size = page.locator("#beam-size")
    expect(beam_size).to_have_attribute("placeholder", "2")
    expect(page.locator("#hypotheses input[type=radio]")).to_have_count(2)
    request = pick(page, "#target-language", "eng_Latn")
    assert "beam_size" not in request
    assert request["num_hypotheses"] == 2
    with page.expect_request("**/v1/decode") as sent:
        beam_size.fill("3")
    assert sent.value.post_data_json["beam_size"] == 3
    expect(page.locator("#hypotheses input[type=radio]")).to_have_count(3)  # else 2 are shown still
    with page.expect_request("**/v1/decode") as sent:
        beam_size.fill("")
    assert "beam_size" not in sent.value.post_data_json
    page.locator("#model").select_option("g2p-en")
    expect(beam_size).to_have_attribute("placeholder", "1")


def lefts(page, tokens):
    """The left edges of elements, without those that a line break has put below the first."""
    (boxes,) = places(page, tokens)
    return [box["left"] for box in boxes if box["top"] == boxes[0]["top"]]


def test_texts_from_right_to_left_are_shown_so(page):
    replace_source(page, ARABIC)
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "4")
    for shown in ("#source", "#output", ".tokens >> nth=0"):
        direction = page.locator(shown).evaluate("node => getComputedStyle(node).direction")
        assert direction == "rtl", shown
    tokens = lefts(page, ".hypothesis:first-child .with-probability")
    assert len(tokens) > 4
    assert tokens == sorted(tokens, reverse=True)
    assert page.locator("#heatmap .columns .token").all_inner_texts()[1:3] == ARABIC.split()
    columns = lefts(page, "#heatmap .columns .token")
    assert columns == sorted(columns)
    expect(page.locator("#heatmap figcaption")).to_contain_text("first token is on the left")


@pytest.mark.parametrize(("scheme", "size"), [("light", "phone"), ("dark", "1280")])
def test_the_page_with_languages_is_accessible_and_fits_the_screen(visit, scheme, size):
    page = visit("/#model=translator&source=hello", color_scheme=scheme, viewport=SIZES[size])
    replace_source(page, ARABIC)
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "4")
    check_accessible(page)


def test_a_text_beyond_the_limit_is_refused_in_words(visit):
    page = visit("/#model=translator&source=hello", expected="413")
    replace_source(page, "hello " * 30)
    error = page.locator("#error")
    expect(error).to_contain_text("Source has more than 20 tokens: shorten it, or")
    expect(error).to_contain_text("choose “Split into sentences”.")
    expect(page.get_by_label("Split into sentences")).to_be_visible()


def test_a_slow_decoding_says_so_until_its_answer_comes(page):
    waiting = []
    page.route("**/v1/decode", lambda route: waiting.append(route))
    expect(page.locator("#busy")).to_be_hidden()
    page.locator("#source").fill("hello hello")
    expect(page.locator("#busy")).to_be_visible()
    waiting.pop().continue_()
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "4")
    expect(page.locator("#busy")).to_be_hidden()


def test_another_model_can_be_picked(visit):
    page = visit(expected="422")  # tiny cannot read the first source
    page.locator("#model").select_option("tiny")
    page.locator("#source").fill("red green")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "2")
    expect(page.locator("#head option")).to_have_count(7)
    expect(page.locator("#limits")).to_contain_text("up to 20 tokens")
