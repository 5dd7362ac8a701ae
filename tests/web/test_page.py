"""The page at / with the default model, in a browser."""

import json
import re
import shlex

import httpx2
import pytest
from playwright.sync_api import expect

from tests.web.curl import press_export
from tests.web.screens import SIZES, check_accessible
from tests.web.source import replace_source


def test_typing_shows_the_pronunciation_its_probabilities_and_a_heatmap(page, address):
    page.locator("#beam-size").fill("4")
    expect(page.locator("#hypotheses input[type=radio]")).to_have_count(3)
    first = page.locator("#hypotheses label").first
    assert re.findall(r"0\.\d\d", first.inner_text())
    canvas = page.locator("#heatmap canvas")
    assert (canvas.get_attribute("width"), canvas.get_attribute("height")) == ("4", "4")
    page.locator("#hypotheses input").nth(1).check()
    other = page.locator("#output").inner_text()
    assert other != "HH IY1 D"
    body = {"model": "g2p-en", "source": "heed", "beam_size": 4, "num_hypotheses": 3}
    answer = httpx2.post(f"{address}/v1/decode", json=body).json()
    assert other == answer["results"][0]["hypotheses"][1]["text"]


@pytest.mark.parametrize("beam_size", ["1", "4"])
def test_beams_are_shown_as_they_stream(visit, address, beam_size):
    page = visit()
    page.locator("#beam-size").fill(beam_size)
    page.locator("#stream").check()
    page.evaluate("""() => {
      const output = document.querySelector("#output");
      window.seen = [];
      new MutationObserver(() => window.seen.push(output.textContent)).observe(
        output, { childList: true, subtree: true, characterData: true });
    }""")
    replace_source(page, "pronunciation")
    body = {"model": "g2p-en", "source": "pronunciation", "beam_size": int(beam_size)}
    (result,) = httpx2.post(f"{address}/v1/decode", json=body).json()["results"]
    text = result["hypotheses"][0]["text"]
    expect(page.locator("#output")).to_have_text(text)
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "13")
    seen = page.evaluate("window.seen")
    assert len(set(seen)) > 3
    assert seen[-1] == text


def test_an_error_is_a_sentence_and_the_last_result_stays(visit):
    page = visit(expected="422")
    replace_source(page, "heed")
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    page.locator("#source").fill("naïve")
    expect(page.locator("#error")).to_contain_text("g2p-en cannot read “ï”.")
    expect(page.locator("#controls")).to_have_class("stale")
    expect(page.locator("#output")).to_be_hidden()  # below the new text, it would look like its own
    expect(page.locator("#say")).to_be_hidden()
    expect(page.locator(".hypothesis .token").first).to_have_text("HH")
    for drawing in ("#heatmap canvas", "#bipartite .plot svg"):
        expect(page.locator(drawing)).to_have_css("opacity", "0.4")
    with page.expect_response("**/v1/attention"):
        page.locator("#layer").select_option("0")
    expect(page.locator("#error")).to_contain_text(
        "Still shown is the last good result, of “heed”."
    )
    expect(page.locator("#controls")).to_have_class("stale")
    page.locator("#source").fill("naive")
    expect(page.locator("#error")).to_be_empty()
    expect(page.locator("#output")).to_be_visible()
    expect(page.locator("#say")).to_be_visible()
    for drawing in ("#heatmap canvas", "#bipartite .plot svg"):
        expect(page.locator(drawing)).to_have_css("opacity", "1")
    page.locator("#source").fill("")
    expect(page.locator("#result")).to_be_hidden()
    expect(page.locator("#error")).to_be_empty()


def test_as_many_hypotheses_as_beams_are_shown(page):
    field = page.get_by_role("spinbutton", name="Hypotheses")
    expect(field).to_have_accessible_description("1 beam finds 1")  # the model's own beam size
    page.locator("#beam-size").fill("2")
    expect(page.locator("#hypotheses input[type=radio]")).to_have_count(2)
    expect(field).to_have_accessible_description("2 beams find 2")
    page.locator("#beam-size").fill("1")
    expect(page.locator("#hypotheses input[type=radio]")).to_have_count(1)
    expect(page.get_by_text("1 beam finds 1", exact=True)).to_be_visible()
    page.locator("#beam-size").fill("0")
    expect(page.locator("#error")).to_contain_text(re.compile("^Beam size: .* 1"))
    page.locator("#beam-size").fill("5")
    expect(page.locator("#hypotheses input[type=radio]")).to_have_count(3)
    expect(field).to_have_accessible_description("")
    expect(page.locator("#error")).to_be_empty()


def test_a_service_that_does_not_respond_is_a_sentence(visit):
    page = visit(expected="ERR_")
    expect(page.locator("#output")).not_to_be_empty()
    page.route("**/v1/decode", lambda route: route.abort())
    page.locator("#source").fill("heed")
    expect(page.locator("#error")).to_contain_text("The service does not respond.")


def test_a_link_shows_the_same_again(page, visit):
    page.locator("#source").fill("read")
    expect(page.locator("#output")).to_have_text(re.compile("^R "))
    page.locator("#beam-size").fill("4")
    expect(page.locator("#hypotheses input[type=radio]")).to_have_count(3)
    page.locator("#kind").select_option("encoder")
    page.locator("#hypotheses input").nth(1).check()
    text = page.locator("#output").inner_text()
    page.locator("#previous").click()
    press_export(page, "#copy-link")
    link = page.evaluate("navigator.clipboard.readText()")
    other = visit(link)
    expect(other.locator("#output")).to_have_text(text)
    expect(other.locator("#source")).to_have_value("read")
    expect(other.locator("#kind")).to_have_value("encoder")
    assert other.locator("#step-name").inner_text() == page.locator("#step-name").inner_text()


@pytest.mark.parametrize(("hypothesis", "shown"), [("-1", 0), ("1.5", 1), ("9", 2), ("x", 0)])
def test_a_link_to_a_hypothesis_that_is_not_there_shows_another(visit, hypothesis, shown):
    page = visit(f"/#source=heed&beam_size=4&hypothesis={hypothesis}")
    expect(page.locator("#hypotheses input").nth(shown)).to_be_checked()
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "4")


@pytest.mark.parametrize(("scheme", "size"), [("light", "narrow"), ("dark", "1280")])
def test_the_page_is_accessible_and_fits_the_screen(visit, scheme, size):
    """In each state. Long texts: test_60_letters_are_in_sight_and_legible."""
    page = visit(color_scheme=scheme, viewport=SIZES[size], expected="422", reduced_motion="reduce")
    replace_source(page, "construction")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "12")
    check_accessible(page)
    page.locator(".table summary").click()
    page.locator("#previous").click()
    check_accessible(page)
    page.locator("#export summary").click()
    check_accessible(page)
    page.keyboard.press("Escape")
    page.locator("#alternatives button").first.click()
    expect(page.locator("#leave-branch")).to_be_focused()
    page.locator("#playground summary").first.click()
    expect(page.locator("#picture svg")).to_be_visible()
    page.locator("#source").fill("naïve")
    expect(page.locator("#error")).not_to_be_empty()
    check_accessible(page)


def test_a_curl_command_quotes_any_text_for_a_shell(visit):
    page = visit()
    hostile = "it's \"a\" $b `c` \\d 'e'"
    script = "(await import('/web/page/api.js')).curl('v1/decode', { source: text })"
    line = page.evaluate(f"async (text) => {script}", hostile)
    words = shlex.split(line)
    assert json.loads(words[words.index("-d") + 1]) == {"source": hostile}
