"""All formats of attention hold the same numbers, and pictures can be read."""

import base64
import io
import json
import re
from xml.etree import ElementTree

import httpx2
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from safetensors.numpy import load

from service.formats.colours import VIRIDIS, viridis
from service.formats.fonts import font_of, fonts, has
from service.formats.heatmaps import ROOM, draw_blocks
from service.formats.json import NUMBERS, PIECE, to_json_pieces, write
from service.formats.picture import Cells, Label
from service.formats.png import to_png
from service.formats.svg import to_svg
from service.formats.writers import WRITERS
from service.settings import WEB
from service.tokenizer import Token

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    "<script>'&'</script>",
    "]]>",
    "😀",
    "👩‍👩‍👧",
    "e\u0301\u0302\u0327",
    "שלום",
    "مرحبا",
    "日本語",
    "नमस्ते",
    "\x00\x1b\n\t",
    "\ufffe\U000e0001",
    "▁" * 4096,
    "",
]


def ask(client, form, source="ax", **body):
    """POST a source to the default model and return the answer's bytes in one format."""
    answer = client.post(
        "/v1/attention",
        json={"model": "g2p-en", "source": source, **body},
        headers={"accept": form},
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].partition(";")[0] == form
    assert answer.headers["vary"] == "Accept"
    return answer.content


ALL = {"kinds": ["cross", "encoder", "decoder"], "alignment": "argmax"}
REDUCED = {"reduce_heads": "mean", "rows": [-2, 9], "decimals": 2}


@pytest.mark.parametrize("wanted", [ALL, REDUCED], ids=["all", "reduced"])
@pytest.mark.parametrize("source", ["ax", ["heed", "b", "ax"]])
def test_npz_safetensors_and_json_hold_the_same(client, source, wanted):
    document = json.loads(ask(client, "application/json", source, attention=wanted))
    blocks = {
        f"{i}.0.{block['kind']}": block.pop("data")
        for i, result in enumerate(document["results"])
        for block in result["attention"]
    }
    npz = dict(np.load(io.BytesIO(ask(client, "application/npz", source, attention=wanted))))
    assert json.loads(str(npz.pop("meta"))) == document
    content = ask(client, "application/safetensors", source, attention=wanted)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert json.loads(header["__metadata__"]["meta"]) == document
    for found in (npz, load(content)):
        assert found.keys() == blocks.keys()
        for name, data in blocks.items():
            assert found[name].dtype == np.float32
            np.testing.assert_array_equal(found[name], np.array(data, np.float32))


SHAPES = [
    (0,),
    (2,),
    (0, 3),
    (NUMBERS,),
    (NUMBERS + 1,),
    (3, 1, NUMBERS - 1),
    (2, 2, 40_000),
    (300, 300),
]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(),
    st.text(),
    st.just(np.float32(0.1)),
    st.just(Token("a", 5, 0, 1)),
    st.just([1, "b"] * NUMBERS),
    st.sampled_from(SHAPES).flatmap(
        lambda shape: arrays.arrays(
            np.float32, shape, elements=st.floats(0, 1, width=32), fill=st.just(0.25)
        )
    ),
)
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)


@given(DOCUMENTS)
def test_json_in_pieces_is_what_orjson_writes_at_once(document):
    pieces = to_json_pieces(document)
    assert b"".join(pieces) == orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


@pytest.mark.parametrize(
    "document",
    [
        {"results": [{"data": weights} for weights in np.zeros((6, 8, 128, 128), np.float32)]},
        {"results": [np.zeros(1, np.float32), *np.zeros((300, 1000), np.float32)]},
        {"results": [{"tokens": ["a"] * 1000, "log_probs": np.zeros(2)}] * 300},
        {"results": [{"tokens": ["a"] * 1000}] * 300},
        {"token_ids": [7] * 5 * NUMBERS},
    ],
    ids=["weights", "short first", "tokens beside arrays", "tokens", "ids"],
)
def test_no_part_of_a_document_holds_more_numbers_than_are_written_at_once(document):
    """Parts are what orjson writes without giving up the interpreter's lock."""
    parts = list(write(document))
    assert max(part.count(b",") for part in parts) <= NUMBERS
    assert len(parts) > 4


def block_of(weights, rows, columns):
    return {
        "kind": "cross",
        "layers": [*range(weights.shape[0] if weights.ndim == 4 else 1)],
        "heads": [*range(weights.shape[-3] if weights.ndim > 2 else 1)],
        "axes": [*["layer", "head"][4 - weights.ndim :], "target", "source"],
        "rows": [Token(text, 4, 0, 1) for text in rows],
        "columns": [Token(text, 4, 0, 1) for text in columns],
        "data": weights,
    }


def weights_of(*shape):
    weights = np.random.default_rng(0).random(shape).astype(np.float32) ** 4
    return weights / weights.sum(-1, keepdims=True)


def texts_of(root):
    return [text.text or "" for text in root.findall(f"{SVG}text")]


def test_any_token_can_be_drawn():
    """Each is a label of the SVG, long ones shortened; the PNG has a title."""
    count = len(HOSTILE)
    block = block_of(weights_of(count, count), HOSTILE, HOSTILE)
    picture = draw_blocks([block], "<&>\x00", '"')
    root = ElementTree.fromstring(to_svg(picture))
    assert root.get("role") == "img"
    assert root.get("aria-label") == root.find(f"{SVG}title").text
    labels = texts_of(root)[3:]  # after what the picture, the block and the matrix are
    for labelled in (labels[:count], labels[count:]):
        assert labelled[:9] == HOSTILE[:9]
        assert labelled[9] == "␀␛␊␉"
        assert labelled[11] == "▁" * 23 + "…"
    assert not root.findall(f".//{SVG}script")
    image = Image.open(io.BytesIO(to_png(picture)))
    assert image.text["Title"].startswith("cross attention: ")


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (60, 60), (200, 200), (200, 1), (1, 200)])
def test_every_token_has_a_label_that_overlaps_no_other(shape):
    rows, columns = ([f"{side}{i}" for i in range(n)] for side, n in zip("rc", shape, strict=True))
    root = ElementTree.fromstring(
        to_svg(draw_blocks([block_of(weights_of(*shape), rows, columns)], "a", "b"))
    )
    places = {text.text: text for text in root.findall(f"{SVG}text") if text.text in rows + columns}
    assert len(places) == sum(shape)
    for names, axis in ((rows, "y"), (columns, "x")):
        at = np.array([float(places[name].get(axis)) for name in names])
        assert (np.diff(at) >= 12 - 0.01).all()  # the size of the font
    (cells,) = root.findall(f"{SVG}image")
    assert float(cells.get("width")) <= ROOM


def test_a_grid_has_a_title_for_each_matrix_and_one_scale():
    weights = weights_of(2, 3, 4, 5)
    root = ElementTree.fromstring(
        to_svg(draw_blocks([block_of(weights, "abcd", "efghi")], "efghi", "abcd"))
    )
    titles = [f"layer {layer}; head {head}" for layer in range(2) for head in range(3)]
    images = root.findall(f"{SVG}image")
    for image, matrix in zip(images, weights.reshape(6, 4, 5), strict=True):
        content = base64.b64decode(image.get("href").removeprefix("data:image/png;base64,"))
        cells = np.array(Image.open(io.BytesIO(content)))
        np.testing.assert_array_equal(cells, viridis(matrix / weights.max()))
    assert [text for text in texts_of(root) if text.startswith("layer")] == titles
    assert len(root.findall(f"{SVG}image")) == 6
    assert any(f"bright {weights.max():.3g}" in text for text in texts_of(root))
    for i, image in enumerate(root.findall(f"{SVG}image")):
        across, down = (float(image.get(axis)) for axis in "xy")
        first = root.findall(f"{SVG}image")[0]
        assert (across > float(first.get("x"))) == (i % 3 > 0)
        assert (down > float(first.get("y"))) == (i >= 3)


def test_a_picture_of_512_tokens_in_48_heads_is_drawn_smaller():
    tokens = [f"token{i}" for i in range(512)]
    picture = draw_blocks([block_of(weights_of(6, 8, 512, 512), tokens, tokens)], "a", "b")
    cells = [shape for shape in picture.shapes if isinstance(shape, Cells)]
    assert len(cells) == 48
    assert all(max(shape.colours.shape) < 512 for shape in cells)
    png = to_png(picture)
    assert max(Image.open(io.BytesIO(png)).size) < 8000


def test_a_target_without_the_selected_steps_is_a_sentence_and_no_heatmap(client):
    content = ask(client, "image/svg+xml", attention={"rows": [60, 64]})
    root = ElementTree.fromstring(content)
    assert not root.findall(f"{SVG}image")
    assert texts_of(root)[-1] == "cross attention: the target has no such step"
    assert ask(client, "image/png", attention={"rows": [60, 64]})


@pytest.mark.parametrize("upwards", [False, True])
def test_a_png_has_its_labels_where_the_svg_has_them(upwards):
    """Left of the first cell, or turned by 90 degrees and below it."""
    rows, columns = (["a"], ["long label"]) if upwards else (["long label"], ["a"])
    picture = draw_blocks([block_of(weights_of(1, 1), rows, columns)], "", "")
    (cells,) = (shape for shape in picture.shapes if isinstance(shape, Cells))
    image = np.array(Image.open(io.BytesIO(to_png(picture))).convert("L"))
    left, top = round(2 * cells.x), round(2 * cells.y)
    below = image[top + 56 + 4 :, left : left + 56]
    beside = image[top : top + 56, : left - 4]
    dark = (below if upwards else beside) < 100
    places = np.argwhere(dark)
    height, width = np.ptp(places, axis=0)
    assert (height > 3 * width) == upwards
    assert max(height, width) > 80


@pytest.mark.parametrize("text", ["abc", "日本", "שלום", "😀"])
def test_a_label_is_written_in_a_font_that_has_it(text):
    """If this machine has one; it always has one for Latin letters."""
    able = [font for font in fonts(12) if all(has(font, letter) for letter in text)]
    assert font_of(text, 12) in (able or fonts(12))
    assert able or text != "abc"


def test_wide_labels_have_the_room_they_need():
    rows = ["W" * 24, "i"]
    picture = draw_blocks([block_of(weights_of(2, 2), rows, ["WWW", "@@@"])], "", "")
    (cells,) = (shape for shape in picture.shapes if isinstance(shape, Cells))
    assert cells.x > font_of(rows[0], 12).getlength(rows[0])
    turned = [shape for shape in picture.shapes if isinstance(shape, Label) and shape.upwards]
    assert [label.text for label in turned] == ["WWW", "@@@"]


def test_every_form_of_a_batch_comes_in_pieces():
    """None holds the interpreter's lock for long."""
    block = block_of(weights_of(4, 4, 30, 30), "a" * 30, "b" * 30)
    results = [{"source": "s", "target": "t", "attention": [block]} for _ in range(150)]
    document = {"model": "m", "results": results}
    for form in ("application/json", "application/npz", "application/safetensors", "text/html"):
        pieces = WRITERS[form](document)
        assert sum(map(len, pieces)) > 8 * PIECE
        assert max(map(len, pieces)) < 4 * PIECE
    assert json.loads(b"".join(to_json_pieces(document)))["results"][149]["source"] == "s"


def test_the_page_has_the_same_colours_as_the_pictures():
    script = (WEB / "view" / "colours.js").read_text(encoding="utf-8")
    found = re.search(r"VIRIDIS = \[[^\n]*\n(.*?)\];", script, re.DOTALL)[1]
    assert [int(number) for number in re.findall(r"\d+", found)] == VIRIDIS.ravel().tolist()


def test_an_exported_page_needs_no_other_file_and_no_text_ends_its_script(client):
    content = ask(client, "text/html", attention={"kinds": ["cross", "encoder"]}).decode()
    assert not re.search(r'(src|href)="(?!data:)', content)
    modules = json.loads(re.search(r'type="importmap">(.*?)</script>', content)[1])["imports"]
    assert all(url.startswith("data:text/javascript;base64,") for url in modules.values())
    scripts = [base64.b64decode(url.partition(",")[2]).decode() for url in modules.values()]
    imported = re.findall(r'^(?:} from|import).*"(.+)";$', "\n".join(scripts), re.MULTILINE)
    assert set(imported) <= modules.keys()
    document = json.loads(re.search(r'id="document">(.*?)</script>', content)[1])
    assert [block["kind"] for block in document["results"][0]["attention"]] == ["cross", "encoder"]
    hostile = {"model": "m", "results": [{"source": "</script><b>", "target": "", "attention": []}]}
    page = b"".join(WRITERS["text/html"](hostile)).decode()
    assert "</script><b>" not in page
    assert json.loads(re.search(r'id="document">(.*?)</script>', page)[1]) == hostile


def test_pictures_take_one_source_and_unknown_forms_are_refused(client):
    for source, accept, detail in (
        ("a", "application/pdf", f"the answer is available as {', '.join(WRITERS)}"),
        (
            ["a", "b"],
            "image/png",
            "answers for several sources are available as application/json, ",
        ),
    ):
        body = {"model": "g2p-en", "source": source}
        answer = client.post("/v1/attention", json=body, headers={"accept": accept})
        assert (answer.status_code, answer.json()["code"]) == (406, "not_acceptable")
        assert answer.json()["detail"].startswith(detail)
        assert answer.json()["detail"].count("image/") == (2 if source == "a" else 0)
    accept = "image/png, application/npz;q=0.5"
    answer = client.post("/v1/attention", json=body, headers={"accept": accept})
    assert answer.headers["content-type"] == "application/npz"


def test_a_large_answer_is_sent_whole(server):
    """More than 10 MB, in pieces."""
    word = "pneumonoultramicroscopicsilicovolcanoconiosis"
    body = {"source": [word] * 40, "attention": {"kinds": ["encoder"]}}
    answer = httpx2.post(f"{server}/v1/attention", json=body, timeout=60)
    assert len(answer.content) == int(answer.headers["content-length"]) > 10_000_000
    results = answer.json()["results"]
    assert len(results) == 40
    assert all(result == results[0] for result in results)
