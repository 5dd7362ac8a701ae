"""All formats of attention hold the same numbers."""

import base64
import io
import json
import re
import weakref
from xml.etree import ElementTree

import httpx2
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load

from service.formats.colours import VIRIDIS
from service.formats.json import LEAST_PIECE, NUMBERS, to_json_pieces, write
from service.formats.writers import WRITERS
from service.settings.settings import WEB
from service.text.tokens import Token
from tests.service.formats.blocks import SVG, block_of, texts_of, weights_of


def ask(client, form, source="ax", **body):
    """POST a source to the default model and return the answer's bytes in one format."""
    answer = client.post(
        "/v1/attention",
        json={"model": "g2p-en", "source": source, **body},
        headers={"accept": form},
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].partition(";")[0] == form
    assert "Accept" in answer.headers["vary"].split(", ")
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


PROBLEM = orjson.Fragment(b'{"problem":{}}')  # as in a partial answer
SHAPES = [(0,), (2,), (0, 3), (NUMBERS,), (NUMBERS + 1,)]
SHAPES += [(3, 1, NUMBERS - 1), (2, 2, 40_000), (300, 300)]
LEAVES = st.one_of(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(),
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


@settings(max_examples=50)
@given(DOCUMENTS)
def test_json_in_pieces_is_what_orjson_writes_at_once(document):
    whole = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    assert b"".join(to_json_pieces(document)) == whole


@pytest.mark.parametrize(
    "document",
    [
        {"results": [{"data": weights} for weights in np.zeros((6, 8, 128, 128), np.float32)]},
        {"results": [PROBLEM, *({"data": each} for each in np.zeros((6, 8, 128, 128)))]},
        {"results": [np.zeros(1, np.float32), *np.zeros((300, 1000), np.float32)]},
        {"results": [{"tokens": ["a"] * 1000, "log_probs": np.zeros(2)}] * 300},
        {"results": [{"tokens": ["a"] * 1000}] * 300},
        {"token_ids": [7] * 5 * NUMBERS},
    ],
    ids=["weights", "problem first", "short first", "tokens with arrays", "tokens", "ids"],
)
def test_no_part_of_a_document_holds_more_numbers_than_are_written_at_once(document):
    """Parts are what orjson writes without giving up the interpreter's lock."""
    parts = list(write(document))
    assert max(part.count(b",") for part in parts) <= NUMBERS
    assert len(parts) > 4


def test_a_target_without_the_selected_steps_is_a_sentence_and_no_heatmap(client):
    content = ask(client, "image/svg+xml", attention={"rows": [60, 64]})
    root = ElementTree.fromstring(content)
    assert not root.findall(f"{SVG}image")
    assert texts_of(root)[-1] == "cross attention: the target has no such step"
    assert ask(client, "image/png", attention={"rows": [60, 64]})


def test_every_form_of_a_batch_comes_in_pieces():
    """None holds the interpreter's lock for long."""
    block = block_of(weights_of(4, 4, 30, 30), "a" * 30, "b" * 30)
    result = {"source": "s", "target": "t", "attention": [block]}
    for form in ("application/json", "application/npz", "application/safetensors", "text/html"):
        pieces = [*WRITERS[form]({"model": "m", "results": [result] * 150})]
        assert sum(map(len, pieces)) > 8 * LEAST_PIECE
        assert max(map(len, pieces)) < 4 * LEAST_PIECE
        if form == "application/json":
            assert json.loads(b"".join(pieces))["results"][149]["source"] == "s"


@pytest.mark.parametrize("shape", [(6, 8, 60, 60), (12, 8, 64, 128)], ids=["groups", "one by one"])
def test_results_that_were_read_are_not_kept(shape):
    """A client that reads slowly keeps what it has not read, and no more than a few pieces."""
    arrays = [np.zeros(shape, np.float32) for _ in range(40)]
    kept = [weakref.ref(each) for each in arrays]
    pieces = to_json_pieces({"model": "m", "results": [{"data": each} for each in arrays]})
    del arrays
    read = 0
    for piece in pieces:
        read += piece.count(b'"data"')
        assert sum(each() is not None for each in kept[: max(0, read - 2)]) == 0
    assert read == 40


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
    headers = {"accept-encoding": "identity"}
    answer = httpx2.post(f"{server}/v1/attention", json=body, headers=headers, timeout=60)
    assert len(answer.content) > 10_000_000
    results = answer.json()["results"]
    assert len(results) == 40
    assert all(result == results[0] for result in results)
