"""The attention of a decoding on the page: its grid of heads, heatmap and lines."""

import json

import httpx2
import pytest
from playwright.sync_api import expect

from tests.web.places import places

LAST_LAYER = 2  # of the default model's decoder
HEADS = [0, 1, 2, 3]


def attend(address, **body):
    answer = httpx2.post(f"{address}/v1/attention", json={"model": "g2p-en", **body})
    return answer.json()["results"][0]["attention"][0]


def asked_of(page):
    """A list that grows with the `attention` of each request of the page to /v1/attention."""
    asked = []
    page.on("request", lambda sent: sent.url.endswith("/v1/attention") and note(sent))

    def note(sent):
        asked.append(json.loads(sent.post_data)["attention"])

    return asked


def table_of(page):
    """The weights that the page shows, as text."""
    page.locator(".table summary").click()
    expect(page.locator(".table td:not(:empty)").first).to_be_visible()
    return page.locator(".table td:not(:empty)").all_inner_texts()


def as_text(block):
    data = block["data"]
    while isinstance(data[0][0], list):
        (data,) = data
    return [f"{weight:.3f}" for row in data for weight in row]


def button(page, name):
    return page.locator("#overview").get_by_role("button", name=name, exact=True)


PICKED = [
    ({"#kind": "encoder"}, {"kinds": ["encoder"]}, "mean of layers 0–3, heads 0–3"),
    ({"#kind": "decoder"}, {"kinds": ["decoder"]}, "mean of layers 0–2, heads 0–3"),
    ({"#layer": "0"}, {"layers": [0], "reduce_layers": None}, "layer 0; mean of heads 0–3"),
    ({"#head": "max"}, {"reduce_heads": "max"}, "mean of layers 0–2; max of heads 0–3"),
    (
        {"#head": "1", "#layer": "max"},
        {"heads": [1], "reduce_heads": None, "layers": "all", "reduce_layers": "max"},
        "max of layers 0–2; head 1",
    ),
    (
        {"#kind": "encoder", "#layer": "rollout"},
        {"kinds": ["encoder"], "layers": "all", "reduce_layers": "rollout"},
        "rollout of layers 0–3; mean of heads 0–3",
    ),
]


@pytest.mark.parametrize(("picked", "selection", "title"), PICKED, ids=str)
def test_reductions_are_what_the_service_answers(page, address, picked, selection, title):
    asked = asked_of(page)
    for picker, value in picked.items():
        page.locator(picker).select_option(value)
    kind = selection.get("kinds", ["cross"])[0]
    expect(page.locator("#heatmap figcaption")).to_have_text(f"{kind} attention, {title}")
    expected = {"kinds": [kind], "layers": "all", "heads": "all"}
    expected |= {"reduce_heads": "mean", "reduce_layers": "mean", **selection}
    expected = {name: value for name, value in expected.items() if value is not None}
    assert asked[-1] == expected
    block = attend(address, source="heed", target="HH IY1 D", attention=expected)
    assert table_of(page) == as_text(block)
    body = {"model": "g2p-en", "source": "heed", "target": "HH IY1 D", "attention": expected}
    picture = httpx2.post(f"{address}/v1/attention", json=body, headers={"accept": "image/svg+xml"})
    assert f">{title}<" in picture.text


def test_a_rollout_can_only_be_picked_where_the_service_accepts_it(page):
    rollout = page.locator("#layer option[value=rollout]")
    expect(rollout).to_be_disabled()
    page.locator("#kind").select_option("encoder")
    expect(rollout).to_be_enabled()
    page.locator("#head").select_option("1")
    expect(rollout).to_be_disabled()


def test_the_grid_shows_every_head_and_enlarges_one_without_a_request(page, address):
    thumbs = page.locator("#overview .cells canvas")
    expect(thumbs).to_have_count(3 * 4)
    asked = asked_of(page)
    button(page, "layer 1, head 3").click()
    title = "cross attention, layer 1; head 3"
    expect(page.locator("#heatmap figcaption")).to_have_text(title)
    expect(page.locator("#heatmap canvas")).to_be_visible()  # beside a grid that stays
    expect(thumbs).to_have_count(3 * 4)
    expect(button(page, "layer 1, head 3")).to_have_attribute("aria-pressed", "true")
    assert page.locator("#overview [aria-pressed=true]").count() == 1
    assert (page.locator("#layer").input_value(), page.locator("#head").input_value()) == ("1", "3")
    selection = {"layers": [1], "heads": [3]}
    block = attend(address, source="heed", target="HH IY1 D", attention=selection)
    assert table_of(page) == as_text(block)
    assert asked == []


HEADERS = [
    ("layer 0, all heads", "layer 0; mean of heads 0–3"),
    ("all layers, head 2", "mean of layers 0–2; head 2"),
    ("all layers, all heads", "mean of layers 0–2, heads 0–3"),
]


@pytest.mark.parametrize(("name", "title"), HEADERS)
def test_a_header_of_the_grid_reduces_its_row_or_column(page, name, title):
    button(page, name).click()
    expect(page.locator("#heatmap figcaption")).to_have_text(f"cross attention, {title}")
    expect(button(page, name)).to_have_attribute("aria-pressed", "true")


def test_the_grid_is_walked_by_arrow_keys(page):
    page.locator("#kind").focus()
    page.keyboard.press("Shift+Tab")
    expect(button(page, "all layers, all heads")).to_be_focused()  # what is shown
    for _ in range(LAST_LAYER + 1):
        page.keyboard.press("ArrowDown")
    expect(button(page, f"layer {LAST_LAYER}, all heads")).to_be_focused()
    for key in ("ArrowRight", "ArrowUp", "ArrowRight", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    expect(button(page, "layer 1, head 1")).to_be_focused()
    page.keyboard.press("Enter")
    title = "cross attention, layer 1; head 1"
    expect(page.locator("#heatmap figcaption")).to_have_text(title)
    expect(button(page, "layer 1, head 1")).to_be_focused()
    for _ in range(5):
        page.keyboard.press("ArrowLeft")  # and stays at the edge
    expect(button(page, "layer 1, all heads")).to_be_focused()


def test_back_returns_to_the_former_head_and_forward_to_the_next(page):
    title = page.locator("#heatmap figcaption")
    button(page, "layer 1, head 1").click()
    expect(title).to_have_text("cross attention, layer 1; head 1")
    button(page, "layer 0, all heads").click()
    expect(title).to_have_text("cross attention, layer 0; mean of heads 0–3")
    page.go_back()
    expect(title).to_have_text("cross attention, layer 1; head 1")
    page.go_back()
    expect(title).to_have_text("cross attention, mean of layers 0–2, heads 0–3")
    page.go_forward()
    expect(title).to_have_text("cross attention, layer 1; head 1")
    expect(page.locator("#source")).to_have_value("heed")
    expect(page.locator("#output")).to_have_text("HH IY1 D")


def strokes(page):
    script = "lines => [...new Set(lines.map((line) => getComputedStyle(line).stroke))]"
    return set(page.locator("#bipartite .all line").evaluate_all(script))


def test_lines_have_a_colour_for_each_head_with_a_legend(page):
    button(page, f"layer {LAST_LAYER}, all heads").click()
    legend = page.locator("#bipartite .heads > span")
    expect(legend).to_have_count(len(HEADS))
    assert [text.strip() for text in legend.all_inner_texts()] == [f"head {i}" for i in HEADS]
    swatches = page.locator("#bipartite .heads line").evaluate_all(
        "lines => lines.map((line) => getComputedStyle(line).stroke)"
    )
    assert len(set(swatches)) == len(HEADS)
    assert strokes(page) <= set(swatches)
    assert len(strokes(page)) > 1
    button(page, "layer 2, head 1").click()
    expect(legend).to_have_count(0)
    assert len(strokes(page)) == 1


@pytest.mark.parametrize("source", ["heed", "antidisestablishmentarianism"])
def test_a_row_of_the_heatmap_lines_up_with_its_token_in_the_lines(page, source):
    page.locator("#source").fill(source)
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", str(len(source)))
    names = ("#heatmap .rows > span", "#bipartite .left > span", "#heatmap .cells")
    rows, tokens, (cells,) = places(page, *names)
    height = cells["height"] / len(rows)
    expected = [cells["top"] + (i + 0.5) * height for i in range(len(rows))]
    assert len(rows) > 1
    assert middles(rows) == pytest.approx(expected, abs=1)
    assert middles(tokens) == pytest.approx(middles(rows), abs=0.5)


def middles(boxes):
    return [(box["top"] + box["bottom"]) / 2 for box in boxes]


def test_what_is_shown_is_not_drawn_again(page):
    heatmap = page.locator("#heatmap")
    heatmap.evaluate("node => { node.same = true }")
    asked = asked_of(page)
    opened = page.locator("#step-name").inner_text()
    page.locator("#step").fill("3")
    page.locator("#source").fill("heed ")  # the same request, shown at the step it opens on
    expect(page.locator("#step-name")).to_have_text(opened)
    assert "3 (" not in opened
    assert heatmap.evaluate("node => node.same")
    assert asked == []


def test_arrow_keys_move_over_the_weights_and_say_them(page, address):
    selection = {"reduce_heads": "mean", "reduce_layers": "mean"}
    block = attend(address, source="heed", target="HH IY1 D", attention=selection)
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


def test_a_text_too_long_for_the_grid_is_asked_for_one_head_at_a_time(visit):
    """With as many layers and heads as the page is told, the weights would be too many."""
    page = visit("/#model=g2p-en")
    expect(page.locator("#overview canvas")).to_have_count(12)

    def enlarge(route):
        answer = route.fetch()
        document = answer.json()
        document["results"][0]["source_tokens"] = 1_000_000
        route.fulfill(response=answer, json=document)

    page.route("**/v1/decode", enlarge)
    asked = asked_of(page)
    page.locator("#source").fill("heed")
    expect(page.locator("#heatmap canvas")).to_have_attribute("width", "4")
    expect(page.locator("#overview canvas")).to_have_count(0)
    button(page, "layer 1, head 3").click()
    expect(page.locator("#heatmap figcaption")).to_have_text("cross attention, layer 1; head 3")
    assert [each["layers"] for each in asked] == ["all", [1]]


def test_the_page_opens_on_the_attention_that_aligns_and_marks_its_heads(page):
    """Of the default model it is the mean of all; a bundle may name others, or none."""
    place = [page.locator(picker).input_value() for picker in ("#layer", "#head")]
    assert place == ["mean", "mean"]
    expect(page.locator("#overview .aligning")).to_have_count((LAST_LAYER + 1) * len(HEADS))
    expect(page.locator("#aligning")).to_contain_text("The mean of the marked heads aligns")
    page.locator("#kind").select_option("encoder")
    expect(page.locator("#aligning")).to_be_empty()
    expect(page.locator("#overview .aligning")).to_have_count(0)


@pytest.mark.parametrize(
    ("alignment", "place", "marked", "said"),
    [
        ({"layers": [1], "heads": [3]}, ["1", "3"], ["layer 1, head 3"], "The marked head aligns"),
        (None, ["2", "mean"], [], "No head of this model is known to align."),
    ],
)
def test_another_alignment_is_opened_on_and_marked(page, address, alignment, place, marked, said):
    def change(route):
        answer = route.fetch()
        document = answer.json()
        for model in document["models"]:
            model["alignment"] = alignment and {**alignment, "agreement": 0.9}
        route.fulfill(response=answer, json=document)

    page.route("**/v1/models", change)
    page.goto(f"{address}/?source=heed")
    expect(page.locator("#aligning")).to_contain_text(said)
    assert [page.locator(picker).input_value() for picker in ("#layer", "#head")] == place
    buttons = page.locator("#overview .aligning")
    assert [each.get_attribute("aria-label") for each in buttons.all()] == marked


@pytest.mark.parametrize("heads", [8, 16])
def test_the_grid_shows_all_heads_side_by_side(page, address, heads):
    """Of a model with more heads than the default one, as most have."""

    def widen(route):
        answer = route.fetch()
        document = answer.json()
        (block,) = document["results"][0]["attention"]
        if "head" in block["axes"]:
            block["heads"] = [*range(heads)]
            block["shape"][block["axes"].index("head")] = heads
            block["data"] = [layer * (heads // len(HEADS)) for layer in block["data"]]
        route.fulfill(response=answer, json=document)

    page.route("**/v1/attention", widen)
    page.goto(f"{address}/?source=heed")
    expect(page.locator("#overview canvas")).to_have_count((LAST_LAYER + 1) * heads)
    grid = page.locator("#overview")
    assert grid.evaluate("grid => grid.scrollWidth <= grid.clientWidth")
