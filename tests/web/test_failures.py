"""What the page shows when a request fails, and when the next one succeeds."""

import re

import pytest
from playwright.sync_api import expect

from tests.web.curl import press_export

ATTENTION = "**/v1/attention"


def fail(page, pattern):
    """Let requests fail from now on. Return a function that ends this."""
    page.route(pattern, lambda route: route.fulfill(status=503, json={"detail": "Too busy"}))
    return lambda: page.unroute(pattern)


@pytest.fixture
def stale(visit):
    """A page whose source is refused, below which an older answer is still shown."""
    page = visit("/#source=heed&beam_size=4", expected="status of")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "4")
    page.locator("#source").fill("naïve")
    expect(page.locator("#controls")).to_have_class("stale")
    return page


@pytest.mark.parametrize("part", [".token", "input"])
def test_another_hypothesis_of_an_older_answer_is_not_that_of_the_source(stale, part):
    stale.locator(".hypothesis").nth(1).locator(part).first.click()
    expect(stale.locator(".hypothesis input").nth(1)).to_be_checked()
    expect(stale).to_have_url(re.compile("hypothesis=1"))
    stale.locator("#kind").select_option("encoder")
    expect(stale.locator("#heatmap figcaption")).to_contain_text("encoder")
    expect(stale.locator("#output")).to_be_hidden()
    expect(stale.locator("#controls")).to_have_class("stale")
    expect(stale.locator("#error")).to_contain_text("g2p-en cannot read “ï”. Still shown is")
    expect(stale.locator("#words button")).to_have_text(["naive"])


@pytest.mark.parametrize("choose", ["kind", "step"])
def test_an_answer_stays_while_its_attention_fails(visit, choose):
    page = visit("/#source=heed", expected="503")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "4")
    recover = fail(page, ATTENTION)
    page.locator("#source").fill("red")
    error = page.locator("#error")
    expect(error).to_have_text("The attention of “red” cannot be shown. Too busy.")
    expect(page.locator("#output")).to_have_text("R EH1 D")
    expect(page.locator("#controls")).not_to_have_class("stale")
    expect(page.locator("#heatmap, #bipartite, #overview button")).to_have_count(0)
    recover()
    if choose == "kind":
        page.locator("#kind").select_option("encoder")
    else:
        page.locator("#previous").click()
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "3")
    expect(error).to_be_empty()


def test_attention_that_fails_is_not_shown_as_that_of_another_kind(visit):
    page = visit("/#source=heed", expected="503")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "4")
    recover = fail(page, ATTENTION)
    page.locator("#kind").select_option("encoder")
    expect(page.locator("#error")).to_contain_text("cannot be shown")
    expect(page.locator("#heatmap")).to_have_count(0)
    recover()
    page.locator("#kind").select_option("cross")
    expect(page.locator("#heatmap figcaption")).to_contain_text("cross")
    expect(page.locator("#error")).to_be_empty()


def test_the_playground_loads_when_it_is_opened_again(visit):
    page = visit(expected="503")
    recover = fail(page, "**/openapi.json")
    summary = page.locator("#playground summary").first
    summary.click()
    said = page.locator("#playground-error")
    expect(said).to_have_text("The examples cannot be loaded; open this again to retry. Too busy")
    recover()
    summary.click()
    summary.click()
    expect(page.locator("#picture svg")).to_be_visible()
    expect(said).to_be_empty()


def test_a_start_without_models_can_be_tried_again(visit):
    page = visit("about:blank", expected="status of")
    recover = fail(page, "**/v1/models")
    page.goto("/#source=heed")
    expect(page.locator("#error")).to_have_text(
        "The page cannot start; reload it to try again. Too busy."
    )
    recover()
    page.reload()
    expect(page.locator("#output")).to_have_text("HH IY1 D")


def test_a_download_that_fails_is_forgotten_after_the_next_one(stale):
    said = stale.locator("#error").inner_text()
    recover = fail(stale, ATTENTION)
    press_export(stale, "#downloads [data-name=json]")
    expect(stale.locator("#error")).to_have_text(f"{said} Too busy.")
    recover()
    with stale.expect_download():
        press_export(stale, "#downloads [data-name=json]")
    expect(stale.locator("#error")).to_have_text(said)
