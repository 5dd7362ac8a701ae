"""/docs as a new user tries it: what is prefilled runs unchanged, on the opened address."""

import json
import subprocess

from playwright.sync_api import expect


def open_operation(page, operation):
    page.locator(f"[id^=operations-][id$=-{operation}] .opblock-summary").click()
    return page.locator(f"[id^=operations-][id$=-{operation}]")


def test_the_first_curl_asks_the_address_that_was_opened(visit, address):
    shown = visit("/docs").locator(".info code", has_text="curl").first
    expect(shown).to_contain_text(f"curl -s {address}/v1/decode")
    command = shown.inner_text().removeprefix("$ ").partition("\n{")[0]
    body = '{"source": "heed", "model": "g2p-en"}'  # the service of this test has several models
    line = command.replace('{"source": "heed"}', body)
    answer = json.loads(subprocess.check_output(["bash", "-c", line]))
    assert answer["results"][0]["hypotheses"][0]["text"] == "HH IY1 D"


def test_requests_run_as_they_are_prefilled_and_no_time_out_is(visit):
    page = visit("/docs")
    for operation in ("show_model", "model_ready", "list_models", "decode"):
        opened = open_operation(page, operation)
        opened.get_by_role("button", name="Execute").click()
        status = opened.locator(".live-responses-table tbody .response-col_status").first
        expect(status).to_contain_text("200")
    expect(opened.locator("tr[data-param-name=X-Request-Timeout] input")).to_have_value("")
    expect(opened.locator(".curl-command")).to_contain_text("curl")
    expect(opened.locator(".curl-command")).not_to_contain_text("X-Request-Timeout")
