"""Steps of a decoding on the page, and branches: what would follow another token."""

import io
import re

import httpx2
import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.web.places import places
from tests.web.screens import SIZES


def ask(address, path, **body):
    answer = httpx2.post(f"{address}{path}", json={"model": "g2p-en", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"][0]


def decode(address, **body):
    return ask(address, "/v1/decode", num_hypotheses=1, top_log_probs=5, **body)["hypotheses"][0]


def at_step(page, step):
    expect(page.locator("#step-name")).to_have_text(re.compile(f"^Step {step} "))


def least_certain(hypothesis):
    """The step of the least probable token: nothing follows the end, so that it does not count."""
    return min(range(len(hypothesis["tokens"]) - 1), key=hypothesis["log_probs"].__getitem__)


@pytest.mark.parametrize("word", ["heed", "attention", "read", "a", "knight", "photograph"])
def test_the_page_opens_on_the_least_certain_step(visit, address, word):
    """All rows are seen until the reader walks from step to step."""
    page = visit(f"/#source={word}")
    hypothesis = decode(address, source=word)
    assert hypothesis["tokens"][-1] == "<eos>"
    step = least_certain(hypothesis)
    at_step(page, step)
    token = hypothesis["tokens"][step]
    expect(page.locator("#alternatives .taken .token")).to_have_text(token)
    expect(page.locator("#heatmap .current-token")).to_have_text(token)
    expect(page.locator("#heatmap .later")).to_be_hidden()
    page.locator("#source").fill("heed")
    at_step(page, least_certain(decode(address, source="heed")))


def test_later_rows_are_dimmed_while_the_reader_walks(visit):
    page = visit("/#source=heed", reduced_motion="reduce")
    expect(page.locator("#heatmap canvas")).to_have_attribute("height", "4")
    later = page.locator("#heatmap .later")
    for step in (0, 1):
        page.locator(".hypothesis .with-probability").nth(step).click()
        at_step(page, step)
        expect(later).to_be_visible()
        (dimmed,), (cells,) = places(page, "#heatmap .later", "#heatmap .cells")
        part = (cells["bottom"] - dimmed["top"]) / cells["height"]
        assert part == pytest.approx((3 - step) / 4, abs=0.05)
    page.locator("#source").fill("read")
    expect(page.locator("#output")).to_have_text(re.compile("^R "))
    expect(later).to_be_hidden()


def test_a_link_opens_on_its_own_step(visit):
    page = visit("/#source=heed&step=3")
    at_step(page, 3)
    expect(page.locator("#alternatives .taken .token")).to_have_text("<eos>")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["1280", "1440", "phone"])
def test_the_last_row_has_an_outline_at_the_edge_of_the_heatmap(visit, size, scheme):
    """There it lies on the page, whose ground is light or dark."""
    screen = {"viewport": SIZES[size], "color_scheme": scheme, "reduced_motion": "reduce"}
    page = visit("/#source=heed&step=3", **screen)
    at_step(page, 3)
    page.locator("#heatmap").scroll_into_view_if_needed()
    page.mouse.move(0, 0)
    (row,) = places(page, "#heatmap .current")[0]
    shot = Image.open(io.BytesIO(page.screenshot())).convert("L")
    ground = shot.getpixel((2, shot.height - 2))
    middle = (row["left"] + row["right"]) / 2, (row["top"] + row["bottom"]) / 2
    for x, y in ((row["right"] + 0.5, middle[1]), (middle[0], row["bottom"] + 0.5)):
        assert abs(shot.getpixel((int(x), int(y))) - ground) > 100


def test_the_steps_of_decoding_can_be_walked_through(page):
    page.locator("#step").fill("3")
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


def test_a_token_a_row_or_a_cell_goes_to_its_step(page):
    page.locator(".hypothesis .with-probability").nth(1).click()
    at_step(page, 1)
    page.locator("#heatmap .rows .token").nth(2).click()
    at_step(page, 2)
    page.locator("#bipartite .left .token").nth(1).click()
    at_step(page, 1)
    ((cells,),) = places(page, "#heatmap .cells")
    first_of_four = {"x": cells["width"] / 2, "y": cells["height"] / 8}
    page.locator("#heatmap .cells").click(position=first_of_four)
    at_step(page, 0)
    expect(page.locator("#heatmap .current-token")).to_have_text("HH")
    expect(page).to_have_url(re.compile("step=0"))


def test_enter_goes_to_the_step_of_a_row(page):
    page.locator("#heatmap [role=application]").focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    at_step(page, 1)


def test_rows_of_the_source_are_not_steps(page):
    page.locator("#step").fill("3")
    page.locator("#kind").select_option("encoder")
    expect(page.locator("#heatmap figcaption")).to_contain_text("encoder attention")
    page.locator("#heatmap .rows .token").first.click()
    at_step(page, 3)


def test_a_token_of_another_hypothesis_shows_that_hypothesis_at_its_step(page):
    page.locator("#beam-size").fill("4")
    expect(page.locator("#hypotheses input")).to_have_count(3)
    page.locator(".hypothesis").nth(1).locator(".with-probability").nth(1).click()
    at_step(page, 1)
    expect(page.locator("#hypotheses input").nth(1)).to_be_checked()


@pytest.mark.parametrize(("motion", "moves"), [("no-preference", True), ("reduce", False)])
def test_the_row_of_a_step_moves_unless_motion_is_unwanted(visit, motion, moves):
    page = visit(reduced_motion=motion)
    current = page.locator("#heatmap .current")
    expect(current).to_be_visible()
    duration = current.evaluate("node => parseFloat(getComputedStyle(node).transitionDuration)")
    assert (duration > 0) == moves


def alternative(hypothesis, step):
    """Return the most probable token that was not decoded and is not special."""
    taken = hypothesis["token_ids"][step]
    return next(
        each for each in hypothesis["top_log_probs"][step] if each["id"] > 3 and each["id"] != taken
    )


def choice_of(page, other):
    """The button of an alternative."""
    token = page.get_by_text(other["token"], exact=True)
    return page.locator("#alternatives button").filter(has=token)


def branch_of(page, address, source="read", step=1):
    """Go to a step by pointer, and return its first alternative and the ids up to it."""
    page.locator("#source").fill(source)
    own = decode(address, source=source)
    expect(page.locator("#output")).to_have_text(own["text"])
    page.locator(".hypothesis .with-probability").nth(step).click()
    other = alternative(own, step)
    return own, other, [*own["token_ids"][:step], other["id"]]


def check_branch(page, address, source, prefix):
    """The page shows the text, the probabilities and the score of the whole branch."""
    hypothesis = decode(address, source=source, target_prefix=prefix)
    ids = [*prefix, *hypothesis["token_ids"]]
    expect(page.locator("#output")).to_have_text(hypothesis["text"])
    expect(page.locator("#heatmap canvas")).to_have_attribute("height", str(len(ids)))
    scored = ask(address, "/v1/score", source=source, target=[ids])
    tokens = page.locator(".hypothesis .token").all_inner_texts()
    assert tokens == scored["tokens"]
    shown = [
        float(text.lstrip("<"))
        for text in page.locator(".hypothesis .probability").all_inner_texts()
    ]
    expected = [2.718281828**each for each in scored["log_probs"]]
    assert shown == pytest.approx(expected, abs=0.02)
    score = float(page.locator(".hypothesis .score").inner_text())
    assert score == pytest.approx(scored["mean"], abs=0.02)  # the model's length penalty is 1


def test_an_alternative_shows_what_would_follow_it(page, address):
    own, other, prefix = branch_of(page, address)
    choice_of(page, other).click()
    check_branch(page, address, "read", prefix)
    at_step(page, 1)
    expect(page.locator("#branch-name")).to_have_text(
        f"What if {other['token']} followed {own['tokens'][0]}?"
    )
    expect(page.locator("#alternatives .taken")).to_contain_text(other["token"])
    expect(page.locator(".hypothesis .given")).to_have_count(2)
    page.locator("#leave-branch").click()
    expect(page.locator("#output")).to_have_text(own["text"])
    expect(page.locator("#branch")).to_be_hidden()
    page.go_back()
    check_branch(page, address, "read", prefix)


def test_a_branch_of_a_branch_is_in_the_address_and_back_leaves_one_at_a_time(page, visit, address):
    own, other, first = branch_of(page, address)
    choice_of(page, other).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#leave-branch")).to_be_focused()
    hypothesis = decode(address, source="read", target_prefix=first)
    page.locator("#next").click()
    second = alternative(hypothesis, 0)
    choice_of(page, second).click()
    prefix = [*first, second["id"]]
    check_branch(page, address, "read", prefix)
    expect(page).to_have_url(re.compile("target_prefix=" + "%2C".join(map(str, prefix))))
    check_branch(visit(page.url), address, "read", prefix)
    page.go_back()
    check_branch(page, address, "read", first)
    page.go_back()
    expect(page.locator("#output")).to_have_text(own["text"])
    expect(page.locator("#branch")).to_be_hidden()


def test_leaving_a_branch_takes_the_focus_from_nobody_who_has_gone_on(page, address):
    own, other, _ = branch_of(page, address)
    choice_of(page, other).click()
    expect(page.locator("#leave-branch")).to_be_focused()
    waiting = []
    page.route("**/v1/attention", lambda route: waiting.append(route))
    page.locator("#leave-branch").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#step")).to_be_focused()
    expect(page.locator("#output")).to_have_text(own["text"])
    page.locator("#source").focus()
    waiting.pop().continue_()
    expect(page.locator("#heatmap canvas")).to_have_attribute("height", str(len(own["token_ids"])))
    expect(page.locator("#source")).to_be_focused()


def test_another_text_leaves_the_branch(page, address):
    _, other, _ = branch_of(page, address)
    choice_of(page, other).click()
    expect(page.locator("#branch")).to_be_visible()
    page.locator("#source").fill("heed")
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    expect(page.locator("#branch")).to_be_hidden()
    expect(page).not_to_have_url(re.compile("target_prefix=[0-9]"))


def test_a_link_to_a_branch_that_the_model_does_not_offer_shows_its_own_answer(visit):
    page = visit("/#model=g2p-en&source=heed&target_prefix=72%2C72")
    expect(page.locator("#output")).to_have_text("HH IY1 D")
    expect(page.locator("#branch")).to_be_hidden()


def test_neither_the_decoded_token_nor_the_end_can_be_branched_to(page):
    page.locator(".hypothesis .with-probability").nth(2).click()
    at_step(page, 2)
    expect(page.locator("#alternatives .taken button")).to_have_count(0)
    texts = page.locator("#alternatives li:has(button) .token").all_inner_texts()
    assert texts
    assert not {"<eos>", "<pad>", "<bos>"} & set(texts)
    others = page.locator("#alternatives li:not(:has(button)) .token").all_inner_texts()
    page.locator("#next").click()
    at_step(page, 3)
    expect(page.locator("#alternatives .taken .token")).to_have_text("<eos>")
    assert others[0] == "D"
