"""Exported files, whose modules also draw the page: heatmaps and lines, of long texts too."""

import re
from itertools import pairwise

import httpx2
import numpy as np
import pytest
from playwright.sync_api import expect

from service.formats.heatmaps import draw_blocks
from service.formats.svg import to_svg
from service.text.tokens import Token
from tests.web.exported import token
from tests.web.places import places
from tests.web.screens import SIZES, check_accessible

WORDS = {
    "english": ["▁the", "house", "of", "my", "old", "friends", "are", "near"],
    "arabic": ["▁في", "بيت", "▁صديقي"],
}


@pytest.fixture
def show_diagonal(show):
    """Open an exported file with one matrix, nearly all of whose weight is on the diagonal."""

    def open_file(rows, columns, language="english", **options):
        weights = np.where(np.eye(rows, columns), 0.9, 0.1 / columns)
        names = [
            [token(words[i % len(words)], i) for i in range(count)]
            for words, count in ((WORDS["english"], rows), (WORDS[language], columns))
        ]
        return show(weights, names[1], names[0], **options)

    return open_file


@pytest.fixture
def export(visit, address, tmp_path):
    """Open the file that the service answers to a request for attention."""

    def open_file(asked, **options):
        file = tmp_path / "attention.html"
        file.write_bytes(ask(address, **asked).content)
        return visit(file.as_uri(), **options)

    return open_file


def ask(address, **body):
    body = {"model": "g2p-en", **body}
    return httpx2.post(f"{address}/v1/attention", json=body, headers={"accept": "text/html"})


@pytest.mark.parametrize(("measure", "said"), [("weight", ""), ("norm", ", by norm")])
def test_an_exported_file_says_whether_its_numbers_are_norms(export, measure, said):
    """In the grid, in the heatmap that is chosen, its table and its legend."""
    page = export({"source": "heed", "attention": {"layers": [0], "measure": measure}})
    hint = page.get_by_text("choose a heatmap to see its tokens")
    expect(hint).to_have_text(f"cross attention{said}: choose a heatmap to see its tokens.")
    legends = page.locator(".legend")
    expect(legends).to_contain_text([f"{measure} in its row: low"])
    page.get_by_role("button", name="layer 0, head 1").click()
    name = f"cross attention{said}, layer 0; head 1"
    expect(page.locator(".heatmap figcaption")).to_have_text(name)
    expect(page.locator(".heatmap canvas")).to_have_accessible_name(re.compile(f"^{name}: "))
    expect(legends).to_contain_text([f"{measure} in its row: low"] * 2)
    page.locator(".table summary").click()
    caption = page.locator(".table caption")
    expect(caption).to_have_text(f"cross attention{said}: rows attend to columns")
    expect(page.get_by_role("region", name=f"{measure}s")).to_be_visible()


@pytest.mark.parametrize("size", ["1280", "phone"])
def test_numbers_of_a_table_stay_whole_and_scroll_in_their_box(show_diagonal, size):
    page = show_diagonal(60, 60, viewport=SIZES[size])
    page.locator(".table summary").click()
    expect(page.locator(".table td:not(:empty)").first).to_be_visible()
    script = """(cells) => cells.map((cell) => {
      const range = document.createRange();
      range.selectNodeContents(cell);
      return range.getClientRects().length;
    })"""
    assert set(page.locator(".table td:not(:empty)").evaluate_all(script)) == {1}
    assert page.locator(".table .box").evaluate("box => box.scrollWidth > box.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("size", ["1280", "phone"])
@pytest.mark.parametrize("count", [10, 120])
def test_labels_never_overlap_and_long_texts_scroll_in_their_box(show_diagonal, size, count):
    page = show_diagonal(count, count, viewport=SIZES[size])
    down, across = ("top", "bottom"), ("left", "right")
    sides = {
        ".heatmap .rows .token": down,
        ".heatmap .columns > :not(.thinned) > .token": across,
        ".bipartite .left .token": down,
        ".bipartite .right .token": down,
    }
    *axes, views = places(page, *sides, ".views .box")
    for labels, (start, end) in zip(axes, sides.values(), strict=True):
        assert len(labels) == count or (len(labels) >= count // 4 and start == "left")
        assert all(one[end] <= next_one[start] + 0.5 for one, next_one in pairwise(labels))
    assert all(box["height"] <= SIZES[size]["height"] for box in views)
    check_accessible(page)


def test_keys_move_to_labels_that_are_out_of_sight(show_diagonal):
    page = show_diagonal(200, 200, viewport=SIZES["1280"])
    page.locator(".bipartite .box").focus()
    far = page.locator(".bipartite .left .token").last
    expect(far).not_to_be_in_viewport()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("PageDown")
    expect(page.locator("[aria-live]")).to_contain_text("row 199: ")
    page.locator(".bipartite .box").scroll_into_view_if_needed()
    expect(far).to_be_in_viewport()


def test_tokens_from_right_to_left_keep_their_letters_and_their_place_in_sentences(show_diagonal):
    page = show_diagonal(3, 12, "arabic")
    expect(page.locator(".heatmap figcaption")).to_contain_text("first token is on the left")
    (columns,) = places(page, ".heatmap .columns .token")
    starts = [box["left"] for box in columns]
    assert starts == sorted(starts)
    page.locator(".heatmap .rows .token").first.hover()
    said = page.locator("[aria-live]")
    expect(said).to_contain_text("row 0: ▁the attends to ▁في (0) with 0.90, بيت (1) with 0.01")
    ends = """node => [...node.children].map((name) => {
      const range = document.createRange();
      range.selectNodeContents(name.nextSibling);
      return [name.getBoundingClientRect().right, range.getBoundingClientRect().left];
    })"""
    pairs = said.evaluate(ends)
    assert len(pairs) == 4
    for name, number in pairs:
        assert abs(name - number) < 1  # the number follows on the right


def test_pictures_write_from_right_to_left_with_punctuation_on_its_side(visit, tmp_path):
    source = ["▁مرحبا", "."]
    block = {
        "kind": "cross",
        "layers": [0],
        "heads": [0],
        "axes": ["target", "source"],
        "rows": [Token("▁שלום", 9, 0, 4), Token("▁hello", 9, 5, 10)],
        "columns": [Token(text, 9, i, i + 1) for i, text in enumerate(source)],
        "data": np.ones((2, 2), np.float32),
    }
    file = tmp_path / "attention.svg"
    file.write_bytes(to_svg(draw_blocks([block], "مرحبا!", "שלום.")))
    page = visit(file.as_uri())
    texts = page.locator("text").evaluate_all("""(nodes) => nodes.map((node) => ({
      text: node.textContent,
      right: node.getBBox().x + node.getBBox().width,
      letters: [...node.textContent].map((_, i) => node.getExtentOfChar(i).x),
    }))""")
    title, *_, hebrew, english, arabic, _ = texts
    assert [hebrew["text"], english["text"], arabic["text"]] == ["▁שלום", "▁hello", "▁مرحبا"]
    assert abs(hebrew["right"] - english["right"]) < 1  # both end at the cells
    assert english["letters"] == sorted(english["letters"])
    for label in (hebrew, arabic):
        assert label["letters"] == sorted(label["letters"], reverse=True)
    left = dict(zip(title["text"], title["letters"], strict=True))
    assert sorted(["م", "ا", "!", "→", "ש", "."], key=left.get) == ["!", "ا", "م", "→", ".", "ש"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_exported_page_works_from_a_file(export, scheme):
    asked = {"source": "heed", "attention": {"kinds": ["cross", "encoder"]}}
    page = export(asked, color_scheme=scheme)
    expect(page.locator("h1")).to_have_text("heed → HH IY1 D")
    expect(page.locator(".grid button")).to_have_count(12 + 16)
    page.locator(".grid button").first.click()
    expect(page.locator(".heatmap canvas")).to_have_attribute("width", "4")
    page.locator(".heatmap .rows .token").first.hover()
    expect(page.locator("[aria-live]")).to_contain_text("row 0: HH attends to h (0) with")
    check_accessible(page)


def test_an_exported_page_says_which_source_has_no_such_step(export):
    """It shows the others."""
    page = export({"source": ["ax", "unbelievable"], "attention": {"rows": [6, 12], "layers": [0]}})
    expect(page.get_by_text("cross attention: the target has no such step.")).to_be_visible()
    expect(page.locator(".grid button")).to_have_count(4)


def test_an_exported_page_works_where_the_service_answers_it(visit, address):
    """The policy of the service, which forbids other addresses, allows what the file holds."""
    answer = ask(address, source="heed", attention={"layers": [0], "heads": [0]})
    policy = {"content-security-policy": answer.headers["content-security-policy"]}
    page = visit()
    page.route(
        "**/exported",
        lambda route: route.fulfill(
            body=answer.content, headers={"content-type": "text/html", **policy}
        ),
    )
    page.goto("/exported")
    expect(page.locator(".heatmap canvas")).to_have_attribute("width", "4")
