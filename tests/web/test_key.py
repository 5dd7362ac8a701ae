"""The page and /docs of a service that wants an API key."""

import pytest
from playwright.sync_api import expect

from tests.conftest import serving
from tests.web.curl import press_export
from tests.web.screens import check_accessible

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
    said = page.locator("#key-said")
    expect(page.locator("#ask-key")).to_be_visible()
    expect(said).to_be_empty()
    give(page, "wrong-" + KEY)
    expect(said).to_have_text("The service refused this key.")
    expect(page.locator("#ask-key")).to_be_visible()
    check_accessible(page)
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


@pytest.mark.parametrize("key", [f"“{KEY}”", f"0123\u200b{KEY}", "ключ" * 4, "   "])
def test_a_key_that_no_header_can_hold_is_refused_at_once(visit, key):
    page = visit(expected=DENIED)
    give(page, key)
    expect(page.locator("#key-said")).to_have_text("A key has only ASCII characters and no space.")
    give(page, f" {KEY} ")
    expect(page.locator("#output")).to_have_text("AH0 T EH1 N SH AH0 N")
    expect(page.locator("#error")).to_be_empty()


def test_pages_beside_each_other_ask_for_one_key(visit):
    page = visit("/#source=knight&beside=source%3Dnight", expected=DENIED)
    frames = [page.frame_locator(f"iframe >> nth={i}") for i in (0, 1)]
    for each in frames:
        expect(each.locator("#ask-key")).to_be_visible()
    give(page, KEY)
    for each in (page, *frames):
        expect(each.locator("#ask-key")).to_be_hidden()
    for each in frames:
        expect(each.locator("#output")).to_have_text("N AY1 T")


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
