"""A browser; a test fails if its page asks another host, a script fails or an error is logged."""

import hashlib
import json
import os
import shutil

import pytest
from playwright.sync_api import expect, sync_playwright

from service.settings import DEFAULT_BUNDLE
from tests.conftest import TINY, edit_manifest, serving
from tests.web.chromium import CHROMIUM, launch

expect.set_options(timeout=20_000)  # a loaded machine is slow, and a failure is rare


@pytest.fixture(scope="package")
def browser():
    """Skips where there is no Chromium, unless BROWSER_TESTS=required.

    It ends before tests of other rooms: Playwright keeps an event loop running in this thread."""
    if CHROMIUM is None:
        assert os.environ.get("BROWSER_TESTS") != "required", "there is no chromium here"
        pytest.skip("no chromium here: the page is not tested")
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


SOURCE_WORDS = {"red": "مرحبا", "green": "بالعالم", "blue": "hello"}
TARGET_LETTERS = dict(zip("abcdefghi", "אבגדהוזחט", strict=True))
SOURCE_CODES = ("arb_Arab", "eng_Latn", "fra_Latn", "zho_Hans", "zho_Hant", "en_XX", "xx1")
TARGET_CODES = ("eng_Latn", "fra_Latn", "heb_Hebr")


def rename_tokens(bundle, file, names):
    """Change tokens of a tokenizer, and the size and hash that the manifest has for its file."""
    tokenizer = json.loads((bundle / file).read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {names.get(token, token): i for token, i in vocabulary.items()}
    (bundle / file).write_text(json.dumps(tokenizer))
    content = (bundle / file).read_bytes()
    files = json.loads((bundle / "bundle.json").read_text())["files"]
    files[file] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit_manifest(bundle, files=files)


@pytest.fixture(scope="session")
def translator(tmp_path_factory):
    """The tiny bundle as a model that translates Arabic and English into Hebrew letters.

    It says nothing of its task, licence and authors.
    """
    bundle = shutil.copytree(TINY, tmp_path_factory.mktemp("web") / "translator")
    manifest = json.loads((bundle / "bundle.json").read_text())
    for key in ("task", "licence", "attribution"):
        del manifest[key]
    (bundle / "bundle.json").write_text(json.dumps(manifest))
    rename_tokens(bundle, "source.tokenizer.json", SOURCE_WORDS)
    rename_tokens(bundle, "target.tokenizer.json", TARGET_LETTERS)
    decoding = json.loads((bundle / "bundle.json").read_text())["decoding"]
    languages = {
        "source": {code: [4 + i % 3] for i, code in enumerate(SOURCE_CODES)},
        "target": {code: [4 + i] for i, code in enumerate(TARGET_CODES)},
    }
    edit_manifest(
        bundle,
        name="translator",
        source_prefix=["source_language"],
        source_suffix=[2],
        decoder_start=[2, "target_language"],
        languages=languages,
        decoding={**decoding, "beam_size": 2, "max_new_tokens": 9, "min_new_tokens": 5},
    )
    return bundle


@pytest.fixture(scope="session")
def address(translator):
    """The address of a service with three bundles."""
    with serving("--bundles", f"{DEFAULT_BUNDLE},{TINY},{translator}") as address:
        yield address


@pytest.fixture
def visit(browser, address):
    """Open a path of the service in a new window.

    Fail at the end if the page asked another host, a script failed, or the console has an error
    without the text `expected`."""
    contexts, faults = [], []

    def open_page(path="/", expected="", **options):
        context = browser.new_context(
            base_url=address, permissions=["clipboard-read", "clipboard-write"], **options
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: check(request.url))  # even if a policy blocks it
        page.on("console", lambda said: complain(said, expected))
        page.goto(path)
        return page

    def check(url):
        if not url.startswith((address, "data:", "blob:", "file:")):
            faults.append(url)

    def complain(said, expected):
        if said.type == "error" and not (expected and expected in said.text):
            faults.append(f"{said.text} {said.location['url']}")

    yield open_page
    for context in contexts:
        context.close()
    assert not faults


@pytest.fixture
def page(visit):
    """The page after a word was typed and decoded."""
    page = visit()
    page.locator("#source").fill("heed")
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "4")
    return page
