"""The words of an answer, and what speaks for it rather than for another answer."""

import re

import httpx2
import pytest
from playwright.sync_api import expect

from service.settings.settings import DEFAULT_BUNDLE
from tests.conftest import serving
from tests.web.screens import SIZES, check_accessible

SCREENS = [("1280", "light"), ("phone", "dark")]


@pytest.fixture(scope="module")
def address(aligned):
    """The address of a service with a model that aligns several words of a source."""
    with serving("--bundles", f"{DEFAULT_BUNDLE},{aligned}") as address:
        yield address


@pytest.fixture
def read(visit):
    """Open a link, and the words of its answer."""

    def open_page(link, **options):
        page = visit(f"/#{link}", **options)
        expect(page.locator("#heatmap canvas")).to_be_visible()  # nothing moves any more
        page.locator("#reading summary").click()
        expect(page.locator("#target-words button").first).to_be_visible()
        return page

    return open_page


def ask(address, path, **body):
    answer = httpx2.post(f"{address}/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"][0]


def words_of(address, hypothesis=0, **body):
    return ask(address, "decode", words=True, **body)["hypotheses"][hypothesis]["words"]


@pytest.mark.parametrize(("size", "scheme"), SCREENS)
def test_the_words_of_an_answer_are_walked_by_keys(read, address, size, scheme):
    page = read("model=g2p-en&source=read", viewport=SIZES[size], color_scheme=scheme)
    words = words_of(address, model="g2p-en", source="read")
    buttons = page.locator("#target-words button")
    expect(page.locator("#word-said")).to_have_text("Choose a word to see what it is of.")
    buttons.first.focus()
    for i, word in enumerate(words):
        expect(buttons.nth(i)).to_be_focused()
        expect(buttons.nth(i)).to_contain_text(word["text"])
        said = f"“{word['text']}” is of “read”: log-prob {word['log_prob']:.2f}."
        expect(page.locator("#word-said")).to_have_text(said)
        expect(page.locator("#source-words .marked")).to_have_text("read")
        page.keyboard.press("Tab")
    expect(page.locator("#foil")).to_be_focused()
    expect(page.locator("#source-words .marked")).to_have_count(0)
    buttons.first.focus()
    check_accessible(page)


@pytest.mark.parametrize("source", ["red green blue", "  blue red red green"])
def test_a_word_marks_the_source_words_that_it_is_of(read, address, source):
    """The mouse does; off the words, nothing is marked."""
    link = "model=aligned&num_hypotheses=2&beam_size=2&source="
    page = read(link + source.replace(" ", "%20"))
    (word, *_) = words_of(
        address, 0, model="aligned", source=source.strip(), beam_size=2, num_hypotheses=2
    )
    expect(page.locator("#source-words")).to_have_text(source.strip())
    marked = page.locator("#source-words .marked")
    expect(marked).to_have_count(0)
    page.locator("#target-words button").first.hover()
    assert word["source"]
    expect(marked).to_have_text([each["text"] for each in word["source"]])
    page.locator("h1").hover()
    expect(marked).to_have_count(0)


def test_words_follow_the_hypothesis_the_branch_and_the_source(read, address):
    page = read("model=g2p-en&source=read&beam_size=2&num_hypotheses=2")
    buttons = page.locator("#target-words .token")
    texts = page.locator("#hypotheses input")
    for hypothesis in (1, 0):
        texts.nth(hypothesis).check()
        words = words_of(
            address, hypothesis, model="g2p-en", source="read", beam_size=2, num_hypotheses=2
        )
        expect(buttons).to_have_text([word["text"] for word in words])
    page.locator("#alternatives button").first.click()
    expect(page.locator("#branch")).to_be_visible()
    expect(buttons).to_have_text(["D"])  # of a branch, those that were generated
    page.locator("#source").fill("heed")
    expect(buttons).to_have_text(["HH", "IY1", "D"])
    page.locator("#source").fill("")
    expect(buttons).to_have_count(0)


def test_words_of_another_answer_go_when_there_are_none(read):
    page = read("model=g2p-en&source=read", expected="503")

    def refuse(route):
        if "words" in route.request.post_data_json:
            route.fulfill(status=503, json={"detail": "Too busy"})
        else:
            route.continue_()

    page.route("**/v1/decode", refuse)
    page.locator("#source").fill("heed")
    expect(page.locator("#word-said")).to_have_text("Too busy")
    expect(page.locator("#target-words button")).to_have_count(0)
    expect(page.locator("#source-words")).to_be_empty()


def test_closed_words_are_not_asked_for(visit):
    page = visit("about:blank")
    asked = []
    page.on("request", lambda sent: sent.method == "POST" and asked.append(sent.post_data_json))
    page.goto("/#model=g2p-en&source=read")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "4")
    assert not any("words" in body for body in asked)
    assert len(asked) == 3  # the decoding, and the attention of the grid and of the heatmap


def numbers_of(page):
    expect(page.locator("#foil-tokens li")).not_to_have_count(0)
    return page.locator("#foil-tokens .probability").all_inner_texts()


@pytest.mark.parametrize(
    ("answer", "foil", "size", "scheme"),
    [(0, "R EH1 D", *SCREENS[0]), (1, "R IY1 D", *SCREENS[1])],
)
def test_tokens_speak_for_the_answer_or_for_another(read, address, answer, foil, size, scheme):
    """Each token has the service's number, whose sign the sentence explains."""
    screen = {"viewport": SIZES[size], "color_scheme": scheme}
    link = "model=g2p-en&source=read&beam_size=2&num_hypotheses=2"
    page = read(f"{link}&hypothesis={answer}", **screen)
    page.get_by_label("Why not this answer?").fill(f" {foil} ")
    target = page.locator("#output").inner_text()
    body = {"model": "g2p-en", "source": "read", "target": target, "contrast": foil}
    result = ask(address, "attribution", **body)
    lead, (*_, leads) = result["contrast"]["lead"][1], result["attribution"][1]["data"]
    assert min(leads) < 0 < max(leads)
    said = (
        f"The answer leads it by {lead:.2f}" if lead > 0 else f"It leads the answer by {-lead:.2f}"
    )
    expect(page.locator("#foil-said")).to_contain_text(f"{said} in log-prob.")
    assert numbers_of(page) == [f"{number:+.1f}" for number in leads]
    against = page.locator("#foil-tokens .against")
    expect(against).to_have_text([f"{number:.1f}" for number in leads if number < 0])
    expect(page.locator("#foil-tokens .token")).to_have_text(list("read"))
    check_accessible(page)


@pytest.mark.parametrize(
    ("foil", "said"),
    [
        ("R IY1 D", "That is the answer itself."),
        ("read me", "g2p-en cannot write “read”, “me”."),
        ("R " * 70, re.compile("^Contrast ")),
    ],
)
def test_what_cannot_be_compared_is_said_beside_it(read, foil, said):
    page = read("model=g2p-en&source=read", expected="status of 4")
    page.locator("#foil").fill("R EH1 D")
    numbers_of(page)
    page.locator("#foil").fill(foil)
    expect(page.locator("#foil-said")).to_have_text(said)
    expect(page.locator("#foil-tokens li")).to_have_count(0)
    expect(page.locator("#error")).to_be_empty()
    page.locator("#foil").fill("")
    expect(page.locator("#foil-said")).to_be_empty()


def test_a_link_keeps_the_other_answer(read, visit):
    page = read("model=g2p-en&source=read")
    page.locator("#foil").fill("R EH1 D")
    numbers = numbers_of(page)
    expect(page).to_have_url(re.compile("foil=R"))
    other = visit(page.url)
    assert numbers_of(other) == numbers
    expect(other.locator("#target-words button")).to_have_count(3)
