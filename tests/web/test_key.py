"""The page and /docs of a service that wants an API key."""

import pytest
from playwright.sync_api import expect

from tests.conftest import serving
from tests.web.curl import press_export

KEY = "0123456789abcdef"
DENIED = "401"  # in the console's message of each request without the key


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    file = tmp_path_factory.mktemp("secret") / "keys"
    file.write_text(f"{KEY}\n")
    with serving("--api-keys-file", str(file)) as address:
        yield address


def give(page, key):
    page.get_by_role("textbox", name="This service wants an API key").fill(key)
    page.get_by_role("button", name="Use this key").click()


def test_the_page_asks_for_a_key_until_it_is_right_and_keeps_it(visit):
    page = visit(expected=DENIED)
    give(page, "wrong-" + KEY)
    expect(page.locator("#ask-key")).to_be_visible()
    give(page, KEY)
    expect(page.locator("#output")).to_have_text("AH0 T EH1 N SH AH0 N")
    page.reload()
    expect(page.locator("#output")).to_have_text("AH0 T EH1 N SH AH0 N")
    expect(page.locator("#ask-key")).to_be_hidden()
    assert KEY not in page.url
    press_export(page, "#copy-curl-decode")
    command = page.evaluate("navigator.clipboard.readText()")
    assert '-H "Authorization: Bearer $HEED_API_KEY"' in command
    assert KEY not in command


def test_without_a_key_the_page_says_what_is_missing(visit):
    page = visit(expected=DENIED)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#error")).to_contain_text("wants an API key")


def test_docs_send_the_key_that_is_given_there(visit):
    page = visit("/docs")
    page.get_by_role("button", name="Authorize").first.click()
    page.locator(".auth-container input").fill(KEY)
    page.locator(".auth-btn-wrapper").get_by_role("button", name="Apply credentials").click()
    page.locator(".auth-btn-wrapper").get_by_role("button", name="Close").click()
    page.locator("#operations-service-list_models .opblock-summary").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
