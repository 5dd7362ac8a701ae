"""The page at / with the default model, in a browser."""

import json
import re
import shlex

import httpx2
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.web.curl import run_curl

WORD = "pneumonoultramicroscopicsilicovolcanoconiosisandsomemoreabcd"  # 60 letters
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 360, "height": 740}}


@pytest.fixture
def page(visit):
    """The page after a word was typed and decoded."""
    page = visit()
    page.locator("#source").fill("heed")
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "4")
    return page


def attend(address, **body):
    answer = httpx2.post(f"{address}/v1/attention", json={"model": "g2p-en", **body})
    return answer.json()["results"][0]["attention"][0]


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


PICKED = [
    ({"#kind": "encoder"}, {"kinds": ["encoder"]}),
    ({"#kind": "decoder"}, {"kinds": ["decoder"]}),
    ({"#layer": "0"}, {"layers": [0]}),
    ({"#head": "1", "#reduce-heads": "none"}, {"heads": [1], "reduce_heads": "none"}),
    ({"#reduce-heads": "max"}, {"reduce_heads": "max"}),
    ({"#layer": "all", "#reduce-layers": "max"}, {"layers": "all", "reduce_layers": "max"}),
    (
        {"#kind": "encoder", "#layer": "all", "#reduce-layers": "rollout"},
        {"kinds": ["encoder"], "layers": "all", "reduce_layers": "rollout"},
    ),
]


@pytest.mark.parametrize(("picked", "selection"), PICKED, ids=lambda each: " ".join(each))
def test_each_picker_shows_what_the_service_answers(page, address, picked, selection):
    for picker, value in picked.items():
        with page.expect_response("**/v1/attention") as sent:
            page.locator(picker).select_option(value)
    asked = json.loads(sent.value.request.post_data)["attention"]
    expected = {"kinds": ["cross"], "layers": [2], "heads": "all", "reduce_heads": "mean"}
    expected |= selection
    expected = {name: value for name, value in expected.items() if value != "none"}
    assert asked == expected
    block = attend(address, source="heed", target="HH IY1 D", attention=expected)
    page.locator(".table summary").click()
    cells = page.locator(".table td:not(:empty)")
    expect(cells).to_have_count(len(block["rows"]) * len(block["columns"]))
    data = block["data"]
    while isinstance(data[0][0], list):
        (data,) = data
    assert cells.all_inner_texts() == [f"{weight:.3f}" for row in data for weight in row]


def test_options_that_the_service_refuses_cannot_be_picked(page):
    rollout = page.locator("#reduce-layers option[value=rollout]")
    expect(rollout).to_be_disabled()
    page.locator("#kind").select_option("encoder")
    expect(rollout).to_be_enabled()
    page.locator("#reduce-heads").select_option("none")
    expect(rollout).to_be_disabled()


def test_one_of_several_matrices_can_be_picked_from_a_grid(page):
    page.locator("#layer").select_option("all")
    page.locator("#reduce-heads").select_option("none")
    buttons = page.locator("#heatmap button")
    expect(buttons).to_have_count(12)
    assert buttons.nth(5).inner_text() == "layer 1; head 1"
    buttons.nth(5).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#heatmap figcaption")).to_have_text("cross attention, layer 1; head 1")
    assert (page.locator("#layer").input_value(), page.locator("#head").input_value()) == ("1", "1")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "application"


def test_arrow_keys_move_over_the_weights_and_say_them(page, address):
    block = attend(
        address,
        source="heed",
        target="HH IY1 D",
        attention={"layers": [2], "reduce_heads": "mean", "reduce_layers": "mean"},
    )
    page.locator("#heatmap [role=application]").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    said = f"row 1: IY1 attends to e with {block['data'][1][1]:.2f}"
    expect(page.locator("#heatmap [aria-live]")).to_have_text(said)
    expect(page.locator("#bipartite .left .pointed")).to_have_text("IY1")
    expect(page.locator("#bipartite .right .pointed")).to_have_text("e")


def test_pointing_at_a_token_shows_in_both_views_what_attends_to_it(page):
    page.locator("#bipartite .right span").first.hover()
    expect(page.locator("#heatmap [aria-live]")).to_contain_text(
        "column 0: h is attended to by HH (0) with"
    )
    assert page.locator("#bipartite .pointed line").count() > 0
    page.locator("#heatmap .rows .token").nth(2).hover()
    expect(page.locator("#heatmap [aria-live]")).to_contain_text("row 2: D attends to d (3) with")


def test_the_steps_of_decoding_can_be_walked_through(page):
    expect(page.locator("#step-name")).to_have_text("Step 3 (0 to 3)")
    page.locator("#previous").click()
    page.locator("#previous").click()
    expect(page.locator("#step-name")).to_have_text("Step 1 (0 to 3)")
    expect(page.locator("#alternatives li")).to_have_count(5)
    assert page.locator("#alternatives li").first.inner_text().startswith("IY1")
    expect(page.locator("#heatmap .current-token")).to_have_text("IY1")
    page.locator("#step").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#step-name")).to_have_text("Step 2 (0 to 3)")


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
    page.locator("#source").fill("pronunciation")
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
    page.locator("#source").fill("heed")
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    page.locator("#source").fill("naïve")
    expect(page.locator("#error")).to_contain_text(
        "Source has 'ï' at offset 2, which the vocabulary lacks"
    )
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    expect(page.locator("#controls")).to_have_class("stale")
    with page.expect_response("**/v1/attention"):
        page.locator("#layer").select_option("0")
    expect(page.locator("#error")).to_contain_text("Below is the last good result, of “heed”.")
    expect(page.locator("#controls")).to_have_class("stale")
    page.locator("#source").fill("naive")
    expect(page.locator("#error")).to_be_empty()
    page.locator("#source").fill("")
    expect(page.locator("#result")).to_be_hidden()
    expect(page.locator("#error")).to_be_empty()


def test_as_many_hypotheses_as_beams_are_shown(page):
    page.locator("#beam-size").fill("1")
    expect(page.locator("#hypotheses input[type=radio]")).to_have_count(1)
    page.locator("#beam-size").fill("0")
    expect(page.locator("#error")).to_contain_text(re.compile("^Beam size: .* 1"))
    page.locator("#beam-size").fill("5")
    expect(page.locator("#hypotheses input[type=radio]")).to_have_count(3)
    expect(page.locator("#error")).to_be_empty()


def test_a_service_that_does_not_respond_is_a_sentence(visit):
    page = visit(expected="ERR_")
    expect(page.locator("#output")).not_to_be_empty()
    page.route("**/v1/decode", lambda route: route.abort())
    page.locator("#source").fill("heed")
    expect(page.locator("#error")).to_contain_text("The service does not respond.")


def test_the_curl_commands_ask_for_what_is_shown(visit):
    page = visit()
    page.locator("#source").fill("don't")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "5")

    text = page.locator("#output").inner_text()
    decoded = run_curl(page, "#copy-curl-decode")["results"][0]
    assert decoded["hypotheses"][0]["text"] == text
    block = run_curl(page, "#copy-curl")["results"][0]["attention"][0]
    assert [token["text"] for token in block["columns"]] == list("don't")
    assert block["layers"] == [2]


@pytest.mark.parametrize("name", ["json", "npz", "safetensors", "svg", "png", "html"])
def test_the_attention_shown_can_be_downloaded_in_every_format(page, name):
    with page.expect_download() as download:
        page.locator(f"#downloads [data-name={name}]").click()
    assert download.value.suggested_filename == f"attention-heed.{name}"
    begins = {"json": b"{", "npz": b"PK", "svg": b"<svg", "png": b"\x89PNG", "html": b"<!doctype"}
    begins["safetensors"] = b'{"__metadata__"'
    with open(download.value.path(), "rb") as file:
        assert begins[name] in file.read(8 + len(begins["safetensors"]))


def test_a_link_shows_the_same_again(page, visit):
    page.locator("#source").fill("read")
    expect(page.locator("#output")).to_have_text(re.compile("^R "))
    page.locator("#beam-size").fill("4")
    expect(page.locator("#hypotheses input[type=radio]")).to_have_count(3)
    page.locator("#kind").select_option("encoder")
    page.locator("#hypotheses input").nth(1).check()
    text = page.locator("#output").inner_text()
    page.locator("#previous").click()
    page.locator("#copy-link").click()
    link = page.evaluate("navigator.clipboard.readText()")
    other = visit(link)
    expect(other.locator("#output")).to_have_text(text)
    expect(other.locator("#source")).to_have_value("read")
    expect(other.locator("#kind")).to_have_value("encoder")
    assert other.locator("#step-name").inner_text() == page.locator("#step-name").inner_text()


@pytest.mark.parametrize(("scheme", "size"), [("light", "phone"), ("dark", "desktop")])
def test_the_page_is_accessible_and_fits_the_screen(visit, scheme, size):
    """In each state, by the rules of axe."""
    page = visit(color_scheme=scheme, viewport=SIZES[size], expected="422", reduced_motion="reduce")

    def check():
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    page.locator("#source").fill(WORD)
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "60")
    check()
    page.locator(".table summary").click()
    page.locator("#previous").click()
    check()
    page.locator("#head").select_option("all")
    page.locator("#reduce-heads").select_option("none")
    expect(page.locator("#heatmap button")).to_have_count(4)
    page.locator("#playground summary").first.click()
    expect(page.locator("#picture")).to_be_visible()
    page.locator("#source").fill("naïve")
    expect(page.locator("#error")).not_to_be_empty()
    check()


def test_a_curl_command_quotes_any_text_for_a_shell(visit):
    page = visit()
    hostile = "it's \"a\" $b `c` \\d 'e'"
    script = "(await import('/web/page/api.js')).curl('v1/decode', { source: text })"
    line = page.evaluate(f"async (text) => {script}", hostile)
    words = shlex.split(line)
    assert json.loads(words[words.index("-d") + 1]) == {"source": hostile}


def test_back_returns_to_the_grid_and_forward_to_the_head(page):
    page.locator("#layer").select_option("all")
    page.locator("#reduce-heads").select_option("none")
    buttons = page.locator("#heatmap button")
    expect(buttons).to_have_count(12)
    for name, index in (("layer 1; head 1", 5), ("layer 2; head 0", 8)):
        buttons.nth(index).click()
        drilled = page.locator("#heatmap figcaption")
        expect(drilled).to_have_text(f"cross attention, {name}")
        page.go_back()
        expect(buttons).to_have_count(12)
        assert (page.locator("#layer").input_value(), page.locator("#source").input_value()) == (
            "all",
            "heed",
        )
        page.go_forward()
        expect(drilled).to_have_text(f"cross attention, {name}")
        assert page.locator("#output").inner_text() == "HH IY1 D"
        page.go_back()
        expect(buttons).to_have_count(12)
