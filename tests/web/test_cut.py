"""An answer that stops at its limit says so, and so does each hypothesis."""

import json

import httpx2
import pytest
from playwright.sync_api import expect


def decode(address, **body):
    answer = httpx2.post(f"{address}/v1/decode", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"][0]["hypotheses"]


def test_an_answer_that_ends_is_not_called_cut(page):
    expect(page.locator("#cut")).to_be_hidden()
    expect(page.locator(".hypothesis").first).not_to_contain_text("cut off")


@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_answer_is_told_with_its_limit(visit, address, stream):
    """The model decodes at most 9 tokens."""
    link = "/#model=translator&source=hello&target_language=heb_Hebr&source_language=eng_Latn"
    page = visit(link + ("&stream=on" if stream else ""))
    expect(page.locator("#heatmap canvas")).to_be_visible()
    body = {"source_language": "eng_Latn", "target_language": "heb_Hebr", "num_hypotheses": 2}
    hypotheses = decode(address, model="translator", source="hello", **body)
    reasons = [each["finish_reason"] for each in hypotheses]
    assert "length" in reasons
    for i, hypothesis in enumerate(hypotheses):
        page.locator("#hypotheses input").nth(i).check()
        expect(page.locator("#output")).to_have_text(hypothesis["text"])
        cut = hypothesis["finish_reason"] == "length"
        row = page.locator(".hypothesis").nth(i)
        said = f"Cut off after {len(hypothesis['tokens'])} tokens"
        if cut:
            expect(page.locator("#cut")).to_contain_text(said)
            expect(row).to_contain_text("cut off")
        else:
            expect(page.locator("#cut")).to_be_hidden()
            expect(row).not_to_contain_text("cut off")


def test_a_cut_branch_counts_the_tokens_that_were_given(page):
    """A branch is answered without the tokens before it."""

    def cut(route):
        answer = route.fetch()
        document = answer.json()
        for each in document["results"][0]["hypotheses"]:
            each["finish_reason"] = "length"
        route.fulfill(response=answer, body=json.dumps(document))

    page.route("**/v1/decode", cut)
    page.locator("#alternatives button").first.click()
    expect(page.locator("#leave-branch")).to_be_visible()
    count = page.locator(".hypothesis .token").count()
    expect(page.locator("#cut")).to_contain_text(f"Cut off after {count} tokens")
