"""Heads that are switched off on the page."""

import re

import httpx2
from playwright.sync_api import expect

from tests.web.screens import check_accessible

LAST = {"kind": "cross", "layer": 2, "heads": "all"}


def decoded(address, **body):
    answer = httpx2.post(f"{address}/v1/decode", json={"model": "g2p-en", "source": "heed", **body})
    (hypothesis,) = answer.json()["results"][0]["hypotheses"]
    return hypothesis["text"], sum(hypothesis["log_probs"])


def test_a_head_is_switched_off_and_on_from_the_keyboard(visit, address):
    """The page then shows the answer without it, and what all heads would say; Back undoes it."""
    page = visit("/#model=g2p-en&source=heed&kind=cross&layer=2&head=mean")
    switch, said = page.locator("#switch"), page.locator("#without")
    expect(switch).to_have_text("Switch off layer 2, all heads")
    expect(said).to_be_hidden()
    switch.focus()
    page.keyboard.press("Enter")
    without, whole = decoded(address, ablate=[LAST]), decoded(address)
    expect(page.locator("#output")).to_have_text(without[0])
    expect(said).to_contain_text(f"4 heads off. Log-prob {without[1]:.2f}; with all heads")
    expect(said).to_contain_text(f"log-prob {whole[1]:.2f}.")
    off = page.locator("#overview .off")
    expect(off).to_have_count(4)
    expect(off.first).to_have_attribute("aria-label", "layer 2, head 0, off")
    expect(switch).to_have_text("Switch on layer 2, all heads")
    check_accessible(page)
    off.nth(1).click()
    expect(switch).to_have_text("Switch on layer 2, head 1")
    switch.press("Enter")
    expect(off).to_have_count(3)
    page.go_back()
    expect(off).to_have_count(4)
    page.locator("#switch-on").press("Enter")
    expect(said).to_be_hidden()
    expect(off).to_have_count(0)
    expect(page.locator("#output")).to_have_text(whole[0])


def test_the_answer_of_all_heads_has_the_form_of_an_answer(visit, address):
    """Its spaces are spaces: it is a text, and not a token."""
    off = [{"kind": "cross", "layer": layer, "heads": "all"} for layer in range(3)]
    without, whole = decoded(address, source="read", ablate=off), decoded(address, source="read")
    assert without[0] != whole[0]
    heads = ",".join(f"cross.{layer}.{head}" for layer in range(3) for head in range(4))
    page = visit(f"/#model=g2p-en&source=read&ablate={heads}")
    expect(page.locator("#without")).to_contain_text(f"with all heads “{whole[0]}”, log-prob")


def test_an_answer_without_heads_stays_while_that_of_all_heads_fails(visit, address):
    page = visit("/#model=g2p-en&source=heed&ablate=cross.2.0", expected="503")
    said, error = page.locator("#without [role=status]"), page.locator("#error")
    expect(said).to_contain_text("1 head off.")

    def refuse(route):
        if "ablate" in route.request.post_data_json:
            route.continue_()
        else:
            route.fulfill(status=503, json={"detail": "Too busy"})

    page.route("**/v1/decode", refuse)
    page.locator("#source").fill("red")
    expect(error).to_have_text("Too busy.")
    without = decoded(address, source="red", ablate=[{**LAST, "heads": [0]}])
    expect(page.locator("#output")).to_have_text(without[0])
    expect(page.locator("#controls")).not_to_have_class("stale")
    expect(said).to_be_empty()
    page.unroute("**/v1/decode")
    page.locator("#source").fill("heed")
    expect(said).to_contain_text("1 head off.")
    expect(error).to_be_empty()


def test_heads_of_a_link_that_the_model_lacks_are_dropped_and_named(visit, address):
    page = visit("/#model=g2p-en&source=heed&ablate=cross.9.0,encoder.0.1,decoder.0.4")
    said = "The link switches off heads that are not here: cross.9.0, decoder.0.4."
    expect(page.locator("#unmet")).to_have_text(said)
    expect(page.locator("#without")).to_contain_text("1 head off.")
    expect(page.locator("#error")).to_be_empty()
    expect(page).to_have_url(re.compile(r"ablate=encoder\.0\.1(&|$)"))


def test_a_link_keeps_the_heads_that_are_off(visit, address):
    page = visit("/#model=g2p-en&source=heed&ablate=encoder.0.1,cross.1.0,nothing")
    expect(page.locator("#without")).to_contain_text("2 heads off.")
    expect(page.locator("#overview .off")).to_have_count(1)  # of the kind that is shown
