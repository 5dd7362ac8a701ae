"""The Python client returns what the API sends, and knows all that the OpenAPI document says."""

from collections.abc import Sequence
from dataclasses import fields
from html.parser import HTMLParser
from inspect import signature
from itertools import pairwise
from types import UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import httpx2
import numpy as np
import pytest

from service import client
from service.client import Attention, Heed, Refusal, Token, checked
from tests.busy import busy
from tests.conftest import KEY
from tests.service.processes import run_python

ALL = {"kinds": ["encoder", "decoder", "cross"]}


@pytest.fixture(scope="module")
def heed(server):
    with Heed(server) as heed:
        yield heed


@pytest.fixture(scope="module")
def ask(server):
    def ask(path, **body):
        return httpx2.post(server + path, json=body).json()["results"]

    return ask


def test_it_loads_nothing_of_the_service():
    code = (
        "import sys, service.client; print({'fastapi', 'onnxruntime', 'pydantic', 'tokenizers',"
        " 'service.errors'} & sys.modules.keys())"
    )
    done = run_python("-c", code)
    assert (done.stdout, done.stderr) == ("set()\n", "")


@pytest.mark.parametrize("options", [{}, {"beam_size": 3, "num_hypotheses": 2, "top_log_probs": 2}])
def test_targets_are_those_of_the_api(heed, ask, options):
    results = heed.decode(["heed", "read"], **options)
    for result, expected in zip(
        results, ask("/v1/decode", source=["heed", "read"], **options), strict=True
    ):
        assert result.text == expected["hypotheses"][0]["text"]
        assert result.source_tokens == expected["source_tokens"]
        for found, shown in zip(result.hypotheses, expected["hypotheses"], strict=True):
            assert {name: getattr(found, name) for name in shown} == shown


def test_sentences_and_refused_sources_are_results(heed, ask):
    (result,) = heed.decode("heed\nread", split="sentences")
    assert result.text.split("\n") == [each.text for each in result.sentences]
    assert [(each.start, each.end) for each in result.sentences] == [(0, 4), (5, 9)]
    good, bad = heed.decode(["heed", "7"], partial=True)
    assert good.text == result.sentences[0].text
    assert bad.hypotheses == []
    with pytest.raises(Refusal, match="send only a b c"):
        _ = bad.text


@pytest.mark.parametrize("options", [{}, {"beam_size": 2}])
def test_a_stream_ends_with_the_results(heed, options):
    *events, last = heed.stream("heed", attention={}, **options)
    (expected,) = heed.decode("heed", attention={}, **options)
    assert last.results[0].text == expected.text
    np.testing.assert_array_equal(
        *(each.hypotheses[0].attention["cross"].weights for each in (last.results[0], expected))
    )
    if options:
        assert {each.name for each in events} == {"beam"}
        assert events[-1].data["tentative"] == expected.text
    else:
        assert "".join(each.data["text"] for each in events) == expected.text
    assert not any(each.results for each in events)


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("half \ud83d", {}),
        (["heed", "\udc80"], {}),
        ("heed", {"stop": ["\ud800"]}),
        ("heed", {"temperature": float("nan")}),
        ("heed", {"length_penalty": float("-inf")}),
    ],
)
def test_a_stream_is_refused_as_a_decoding_is(heed, source, options):
    """What Python's JSON can write and httpx2's cannot."""
    refusals = []
    for ask in (heed.decode, heed.stream):
        with pytest.raises(Refusal) as refused:
            [*ask(source, **options)]
        refusals.append({**refused.value.problem, "request_id": None})
    assert refusals[0] == refusals[1]


@pytest.mark.parametrize("key", ["ü", "line\n", "a\rb", "a b", "nul\0", "日本"])
def test_a_key_that_no_header_holds_is_refused_without_telling_it(server, key):
    key = f"secret{key}"
    with pytest.raises(ValueError, match="the API key has a character that a header") as refused:
        Heed(server, key)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("target", [None, ["HH IY1 D", "R EH1 D"]])
def test_attention_is_an_array_for_each_kind(heed, ask, target):
    source = ["heed", "read"]
    found = heed.attention(source, target, attention=ALL)
    asked = {"source": source, "target": target, "attention": ALL}
    for each, expected in zip(found, ask("/v1/attention", **asked), strict=True):
        assert (each.source, each.target) == (expected["source"], expected["target"])
        assert [*each.attention] == ALL["kinds"]
        for block in expected["attention"]:
            part = each.attention[block["kind"]]
            assert part.weights.dtype == np.float32
            np.testing.assert_allclose(part.weights, block["data"], atol=1e-6)
            assert [vars(token) for token in part.rows] == block["rows"]
            assert [vars(token) for token in part.columns] == block["columns"]
            assert (part.axes, part.layers, part.heads) == (
                block["axes"],
                block["layers"],
                block["heads"],
            )


def test_scores_are_those_of_the_api(heed, ask):
    (found,) = heed.score("read", "R EH1 D")
    assert [vars(found)] == ask("/v1/score", source="read", target="R EH1 D")


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("contrast", [None, ["HH IH1 D", "R EH1 D"]])
def test_attribution_is_that_of_the_api(heed, ask, unit, contrast):
    asked = {"source": ["heed", "read"], "contrast": contrast, "unit": unit}
    for found, expected in zip(
        heed.attribution(**asked), ask("/v1/attribution", **asked), strict=True
    ):
        blocks = {block["kind"]: block for block in expected["attribution"]}
        assert [vars(token) for token in found.tokens] == blocks["target"]["rows"]
        assert [vars(part) for part in found.parts] == blocks["target"]["columns"]
        np.testing.assert_allclose(found.losses, blocks["target"]["data"], atol=1e-6)
        assert found.source_share == expected["source_share"]
        if contrast:
            assert vars(found.contrast) == expected["contrast"]
            np.testing.assert_allclose(found.lead_losses, blocks["contrast"]["data"], atol=1e-6)
        else:
            assert (found.contrast, found.lead_losses) == (None, None)


def test_what_heads_are_worth_is_that_of_the_api(heed, ask):
    (found,) = heed.attribution("heed", of="heads")
    (expected,) = ask("/v1/attribution", source="heed", of="heads")
    assert {*found.heads} == {block["kind"] for block in expected["attribution"]}
    for block in expected["attribution"]:
        np.testing.assert_allclose(found.heads[block["kind"]], block["data"], atol=1e-6)
    assert (found.losses, found.source_share) == (None, None)


def test_models_are_listed(heed):
    assert [each["name"] for each in heed.models()] == ["g2p-en"]


class Table(HTMLParser):
    """The headings and the titles of the cells of a table."""

    def __init__(self, text):
        super().__init__()
        self.headings, self.cells, self.shades = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag == "td":
            self.cells.append(float(dict(attrs)["title"]))
            self.shades.append(float(dict(attrs)["style"].split("/ ")[1].rstrip(")")))

    def handle_data(self, data):
        self.headings.append(data)


def test_a_notebook_shows_the_mean_of_all_heads():
    weights = np.array([[[[0.2, 0.8], [0.9, 0.1]], [[0.4, 0.6], [0.1, 0.9]]]], np.float32)
    rows, columns = ([Token(text, 0, None, None) for text in side] for side in ("<&", "bd"))
    block = Attention("cross", [0], [0, 1], ["layer", "head"], rows, columns, weights)
    table = Table(block._repr_html_())
    assert table.headings == ["cross attention", "b", "d", "<", "&"]
    np.testing.assert_allclose(table.cells, [0.3, 0.7, 0.5, 0.5])
    np.testing.assert_allclose(table.shades, [0.429, 1, 0.714, 0.714], atol=1e-3)


def test_errors_are_the_problems_of_the_service(heed):
    with pytest.raises(Refusal, match="422 invalid: /beam_size must be at most 64") as refused:
        heed.decode("heed", beam_size=65)
    assert refused.value.problem["errors"][0]["pointer"] == "/beam_size"
    with pytest.raises(Refusal, match="404 unknown_model"):
        next(heed.stream("heed", model="x"))


def test_an_error_page_of_a_proxy_is_an_error_of_http():
    request = httpx2.Request("POST", "http://localhost/v1/decode")
    with pytest.raises(httpx2.HTTPStatusError, match="502 Bad Gateway"):
        checked(httpx2.Response(502, text="<h1>Bad Gateway</h1>", request=request))


def test_a_key_is_sent(protocol_server):
    with Heed(protocol_server) as without, pytest.raises(Refusal, match="401 unauthorized"):
        without.models()
    with Heed(protocol_server, KEY) as heed:
        assert [each["name"] for each in heed.models()] == ["g2p-en", "translator"]


@pytest.mark.parametrize(
    ("refusals", "requests", "raised"),
    [(1, 2, KeyError), (9, 3, Refusal)],  # the server answers without results
)
def test_a_busy_service_is_asked_three_times(refusals, requests, raised):
    with busy(refusals) as (address, times), Heed(address) as heed, pytest.raises(raised):
        heed.decode("heed")
    assert len(times) == requests
    assert all(later - earlier >= 1 for earlier, later in pairwise(times))


@pytest.mark.parametrize("wait", ["Wed, 21 Oct 2099 07:28:00 GMT", "", "-5"])
def test_a_wait_that_is_not_a_number_of_seconds_is_a_second(wait):
    with busy(1, wait) as (address, times), Heed(address) as heed:
        assert heed.post("/v1/decode").status_code == 200
    assert len(times) == 2


# In step with the OpenAPI document: what a method or a class leaves out, and what it adds
OPTIONS = {
    "decode": ("DecodeRequest", {"stream"}, set()),
    "stream": ("DecodeRequest", {"stream"}, set()),
    "attention": ("AttentionRequest", {"partial"}, set()),
    "attribution": ("AttributionRequest", {"partial"}, set()),
    "score": ("ScoreRequest", set(), set()),
    "Selection": ("AttentionSelection", set(), set()),
}
PARTS = {
    "Token": ("Token", set(), set()),
    "Hypothesis": ("Hypothesis", {"attention"}, {"attention"}),
    "Attention": ("AttentionBlock", {"data", "shape", "alignment"}, {"weights", "alignment"}),
    "Attended": ("AttentionResult", {"attention"}, {"attention"}),
    "SourceWord": ("SourceWord", set(), set()),
    "Foil": ("Foil", set(), set()),
    "Attributed": (
        "AttributionResult",
        {"attribution", "contrast"},
        {"tokens", "parts", "losses", "lead_losses", "contrast", "heads"},
    ),
    "Score": ("ScoreResult", set(), set()),
    "Result": ("DecodedSentence", set(), {"sentences", "problem"}),
}


JSON_TYPES = {
    int: "integer",
    float: "number",
    bool: "boolean",
    str: "string",
    type(None): "null",
    list: "array",
    Sequence: "array",
}


def hints_of(name):
    """The types of the options of a method, of a TypedDict or of the fields of a dataclass."""
    if name in OPTIONS and name != "Selection":
        hints = get_type_hints(getattr(Heed, name))
        (options,) = hints.pop("options").__args__
        names = signature(getattr(Heed, name)).parameters.keys() - {"self", "options"}
        return {each: hints[each] for each in names} | get_type_hints(options)
    return get_type_hints(getattr(client, name))


def kinds_of(schema, schemas):
    """The types and the choices that a schema allows."""
    if "$ref" in schema:
        return kinds_of(schemas[schema["$ref"].split("/")[-1]], schemas)
    variants = schema.get("anyOf") or schema.get("oneOf")
    if variants:
        return set[str]().union(*(kinds_of(each, schemas) for each in variants))
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return {*choices} or {schema["type"]}


def kinds_of_type(hint):
    """The same of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {*arguments}
    if origin in (Union, UnionType):
        return set[str]().union(*map(kinds_of_type, arguments))
    return {JSON_TYPES.get(origin or hint, "object")}


@pytest.mark.parametrize("name", [*OPTIONS, *PARTS])
def test_it_knows_what_the_openapi_document_says(document, name):
    schema, without, own = (OPTIONS | PARTS)[name]
    schemas = document["components"]["schemas"]
    properties, hints = schemas[schema]["properties"], hints_of(name)
    if name in PARTS:
        assert hints.keys() == {each.name for each in fields(getattr(client, name))}
    assert hints.keys() - own == properties.keys() - without
    for field in hints.keys() - own:
        kinds = kinds_of_type(hints[field])
        assert kinds | {"null"} == kinds_of(properties[field], schemas) | {"null"}, field
