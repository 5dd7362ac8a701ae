"""What is typed or chosen while the page starts or waits for an answer stays."""

import re

import pytest
from playwright.sync_api import expect

LONG = pytest.mark.long
APP, MODELS, DECODE = "**/web/page/app.js", "**/v1/models", "**/v1/decode"
LINK = "/#model=g2p-en&source=read&beam_size=2&num_hypotheses=2&hypothesis=1&step=0"


def hold(page, pattern):
    """Hold requests from now on. Return a function that lets these and all later ones go."""
    held = []
    page.route(pattern, lambda route: held.append(route))

    def release():
        for route in held:
            route.continue_()
        page.unroute(pattern)

    return release


@pytest.fixture
def opening(visit):
    """Open a link, and hold a request of its start. Return the page, and the function of `hold`."""

    def open_page(link, pattern, **options):
        page = visit("about:blank", **options)
        release = hold(page, pattern)
        with page.expect_request(pattern):
            page.goto(link, wait_until="commit")
        return page, release

    return open_page


@pytest.mark.parametrize(
    ("link", "pattern"),
    [
        (LINK, APP),
        (LINK, MODELS),
        (LINK, DECODE),
        ("/", MODELS),
        pytest.param("/", APP, marks=LONG),
        pytest.param("/", DECODE, marks=LONG),
    ],
)
def test_a_source_typed_during_the_start_stays(opening, link, pattern):
    """The step and hypothesis of the link belong to its own source."""
    page, release = opening(link, pattern)
    page.locator("#source").fill("heed")
    release()
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "4")
    expect(page.locator("#source")).to_have_value("heed")
    expect(page.locator("#hypotheses input").first).to_be_checked()
    expect(page).to_have_url(re.compile("source=heed"))
    expect(page.locator("#step-name")).not_to_have_text(re.compile("^Step 0 "))


@pytest.mark.parametrize("pattern", [pytest.param(APP, marks=LONG), MODELS])
def test_options_chosen_during_the_start_stay(opening, pattern):
    page, release = opening(LINK, pattern)
    page.locator("#num-hypotheses").fill("3")
    page.locator("#beam-size").fill("4")
    page.locator("#stream").check()
    page.locator("#beam-size").focus()
    with page.expect_request(DECODE) as sent:
        release()
    asked = sent.value.post_data_json
    assert {"source": "read", "beam_size": 4, "num_hypotheses": 3, "stream": True}.items() <= (
        asked.items()
    )
    expect(page.locator("#hypotheses input")).to_have_count(3)
    expect(page.locator("#beam-size")).to_be_focused()
    expect(page).to_have_url(re.compile("beam_size=4.*num_hypotheses=3.*stream=on"))


def test_an_option_that_changes_no_answer_leaves_the_step_of_a_link(opening):
    page, release = opening(LINK, DECODE)
    page.locator("#stream").check()
    release()
    expect(page.locator("#hypotheses input").nth(1)).to_be_checked()
    expect(page.locator("#step-name")).to_have_text(re.compile("^Step 0 "))


def test_a_model_chosen_before_the_first_answer_does_not_follow_the_link(opening):
    """Its branch holds ids of another vocabulary."""
    page, release = opening("/#model=g2p-en&source=red&target_prefix=5,6&step=1", DECODE)
    asked = []
    page.on("request", lambda sent: sent.url.endswith("/v1/decode") and asked.append(sent))
    page.locator("#model").select_option("tiny")
    release()
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "1")
    expect(page.locator("#branch")).to_be_hidden()
    assert [each.post_data_json.get("target_prefix") for each in asked] == [None]


def test_an_example_chosen_before_the_first_answer_is_decoded(opening):
    page, release = opening(LINK, DECODE)
    page.locator("#examples").get_by_role("button", name="knight", exact=True).click()
    release()
    expect(page.locator("#output")).to_have_text("N AY1 T")
    expect(page.locator("#hypotheses input").first).to_be_checked()


def test_a_source_typed_after_back_stays(page):
    page.locator("#examples").get_by_role("button", name="knight", exact=True).click()
    expect(page.locator("#output")).to_have_text("N AY1 T")
    release = hold(page, DECODE)
    with page.expect_request(DECODE):
        page.go_back()
    expect(page.locator("#source")).to_have_value("heed")
    page.locator("#source").fill("night")
    release()
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "5")
    expect(page.locator("#output")).to_have_text("N AY1 T")
    expect(page.locator("#source")).to_have_value("night")


def test_back_to_another_model_offers_nothing_of_the_last_answer(visit):
    """Its pickers are of the model that is shown next."""
    page = visit("/#model=g2p-en&source=red")
    expect(page.locator("#output")).to_have_text("R EH1 D")
    page.locator("#model").select_option("tiny")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "1")
    release = hold(page, DECODE)
    with page.expect_request(DECODE):
        page.go_back()
    expect(page.locator("#model")).to_have_value("g2p-en")
    expect(page.locator("#attention")).to_be_hidden()
    release()
    expect(page.locator("#output")).to_have_text("R EH1 D")


@pytest.mark.parametrize(
    "pattern", [pytest.param(APP, marks=LONG), MODELS, pytest.param(DECODE, marks=LONG)]
)
def test_another_address_during_the_start_is_shown(opening, pattern):
    page, release = opening(LINK, pattern)
    page.evaluate("location.hash = '#source=heed&step=2'")
    release()
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    expect(page.locator("#source")).to_have_value("heed")
    expect(page.locator("#step-name")).to_have_text(re.compile("^Step 2 "))


@pytest.mark.parametrize(
    ("picker", "value", "title"),
    [
        ("#kind", "encoder", "encoder"),
        pytest.param("#layer", "0", "layer 0", marks=LONG),
        pytest.param("#head", "max", "max of", marks=LONG),
    ],
)
def test_attention_chosen_while_an_answer_is_awaited_stays(page, picker, value, title):
    release = hold(page, DECODE)
    with page.expect_request(DECODE):
        page.locator("#source").fill("attention")
    page.locator(picker).select_option(value)
    expect(page.locator("#heatmap figcaption")).to_contain_text(title)
    release()
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "9")
    expect(page.locator("#heatmap figcaption")).to_contain_text(title)
    expect(page.locator(picker)).to_have_value(value)


def test_a_step_chosen_while_heads_are_switched_off_stays(page):
    release = hold(page, DECODE)
    with page.expect_request(DECODE):
        page.locator("#switch").click()
    page.locator("#step").fill("0")
    release()
    expect(page.locator("#without")).to_be_visible()
    expect(page.locator("#step-name")).to_have_text(re.compile("^Step 0 "))


def test_a_stream_offers_no_steps_before_its_end(visit):
    """A step of no answer is an error."""
    page = visit("about:blank")
    page.add_init_script("""addEventListener("DOMContentLoaded", () => {
      window.empty = 0;
      const result = document.querySelector("#result");
      const list = document.querySelector("#hypotheses > div");
      new MutationObserver(() => { if (!result.hidden && !list.children.length) empty += 1; })
        .observe(result, { attributes: true });
    })""")
    page.goto("/#source=pronunciation&stream=on")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "13")
    assert page.evaluate("window.empty") == 0


@pytest.mark.parametrize("pattern", [MODELS, DECODE])
def test_a_comparison_begins_with_what_was_typed(opening, pattern):
    page, release = opening(LINK, pattern)
    page.locator("#source").fill("heed")
    page.locator("#compare").click()
    release()
    for i in (0, 1):
        frame = page.frame_locator(f"iframe >> nth={i}")
        expect(frame.locator("#source")).to_have_value("heed")
        expect(frame.locator("#output")).to_have_text("HH IY1 D")
    page.evaluate("dispatchEvent(new Event('blur'))")  # the page writes its address now
    expect(page).to_have_url(re.compile("source=heed.*beside="))


def test_a_comparison_keeps_what_is_typed_while_the_outer_page_starts(opening):
    beside = "/#model=g2p-en&source=read&beside=%23model%3Dg2p-en%26source%3Dnight"
    page, release = opening(beside, MODELS)
    first = page.frame_locator("iframe >> nth=0").locator("#source")
    first.fill("heed")
    release()
    expect(page.frame_locator("iframe >> nth=0").locator("#output")).to_have_text("HH IY1 D")
    expect(first).to_be_focused()


def test_the_playground_takes_numbers_when_its_own_are_there(page):
    release = hold(page, "**/openapi.json")
    with page.expect_request("**/openapi.json"):
        page.locator("#playground summary").first.click()
    expect(page.locator("#attend")).to_be_hidden()
    release()
    expect(page.locator("#picture svg")).to_be_visible()
