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


OWN = [{"source": "green red blue"}, {"source": "red"}]


LANGUAGES = {"source_language": "arb_Arab", "target_language": "heb_Hebr"}


@pytest.fixture
def open_with_examples(visit):
    """Open the page of a service whose models have these examples."""

    def open_page(examples, path):
        page = visit("/livez", expected="404")  # it has no icon

        def give(route):
            answer = route.fetch()
            document = answer.json()
            for model in document["models"]:
                model["examples"] = examples
            route.fulfill(response=answer, json=document)

        page.route("**/v1/models", give)
        page.goto(path)
        return page

    return open_page


@pytest.mark.parametrize(
    ("path", "opened"),
    [("/#model=tiny", "green red blue"), ("/#model=tiny&source=blue", "blue")],
)
def test_a_model_opens_on_its_first_example_unless_a_link_has_a_source(
    open_with_examples, path, opened
):
    page = open_with_examples(OWN, path)
    expect(page.locator("#source")).to_have_value(opened)
    width = str(len(opened.split()))
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", width)
    expect(page.locator("#error")).to_be_empty()


def test_a_text_that_is_typed_before_the_models_are_known_stays(visit):
    page = visit("/livez", expected="404")
    waiting = []
    page.route("**/v1/models", lambda route: waiting.append(route))
    with page.expect_request("**/v1/models"):
        page.goto("/")
    page.locator("#source").fill("heed")
    waiting.pop().continue_()
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    expect(page.locator("#source")).to_have_value("heed")


def test_an_example_is_opened_in_its_languages(open_with_examples):
    page = open_with_examples([{"source": "hello hello", **LANGUAGES}], "/#model=translator")
    expect(page.locator("#source")).to_have_value("hello hello")
    expect(page.locator("#source-language")).to_have_value("arb_Arab")
    expect(page.locator("#target-language")).to_have_value("heb_Hebr")
    expect(page.locator("#heatmap canvas")).to_be_visible()
