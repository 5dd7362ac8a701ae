"""Every example in the OpenAPI document returns the answer that it shows."""

import json
import math
import re
import shutil
from pathlib import Path

import httpx2
import pytest

from service.api.answering.examples import ANSWERS
from service.api.protocols.open_inference.models import TASKS
from service.errors import HeedError
from service.settings.settings import DEFAULT_BUNDLE
from tests.conftest import edit_manifest, opened
from tests.documentation import GET, ask, events_of, examples_of

ANSWERED = json.loads(ANSWERS.read_text(encoding="utf-8"))
EXAMPLES = [(path, name) for path, answers in ANSWERED.items() for name in answers]


@pytest.fixture(scope="module")
def document(server):
    return httpx2.get(f"{server}/openapi.json").json()


def test_every_endpoint_has_examples_and_every_example_an_answer(document):
    found = [(path, name) for path, name, _ in examples_of(document)]
    assert sorted(found) == sorted(EXAMPLES)
    others = {"/metrics"}  # tests/service/api/test_metrics.py compares its lines
    assert {path for path, _ in EXAMPLES} == document["paths"].keys() - others


@pytest.mark.parametrize(("path", "name"), EXAMPLES)
def test_an_example_returns_the_answer_it_shows(server, document, path, name):
    (body,) = (body for *which, body in examples_of(document) if which == [path, name])
    operation = document["paths"][path]["get" if name == GET else "post"]
    content = operation["responses"]["200"]["content"]
    ((form, shown),) = (
        (form, examples["examples"][name]["value"])
        for form, examples in content.items()
        if name in examples.get("examples", {})
    )
    with httpx2.Client(base_url=server) as client:
        found = ask(client, path, body)
    assert_alike(found, events_of(shown) if form == "text/event-stream" else shown)


def test_with_other_models_every_example_names_its_own(client):
    document = client.get("/openapi.json").json()
    for path, name, body in examples_of(document):
        if body is not None and path != "/v1/attend":
            assert body["model"] == "g2p-en"
            assert client.post(path, json=body).status_code == 200, name


def test_without_the_default_model_examples_are_for_the_first(tiny, tmp_path):
    bundle = shutil.copytree(tiny, tmp_path / "slots")
    languages = {"source": {}, "target": {"fr": [7], "de": [8]}}
    edit_manifest(bundle, name="slots", source_prefix=["target_language"], languages=languages)
    with opened(bundle, tiny) as client:
        document = client.get("/openapi.json").json()
        for path, _, body in examples_of(document):
            if body is not None and path != "/v1/attend":
                assert body["model"] == "slots"
                known = {"source": "red", "text": "red", "target": "abc"}  # to the fixture
                sent = body | {name: text for name, text in known.items() if name in body}
                answer = client.post(path, json=sent)
                assert answer.status_code == 200, answer.text
    shown = [path for path in document["paths"] if "g2p-en" in json.dumps(document["paths"][path])]
    assert shown == []


def assert_alike(found, shown):
    """Numbers agree to 0.02, since int8 rounds differently on other machines; base64 in length.

    The instruction sets are those of the machine.
    """
    if isinstance(shown, float):
        assert math.isclose(found, shown, abs_tol=0.02)
    elif isinstance(shown, list):
        assert len(found) == len(shown)
        for each in zip(found, shown, strict=True):
            assert_alike(*each)
    elif isinstance(shown, dict):
        assert found.keys() == shown.keys()
        for key in shown.keys() - {"instructions"}:
            assert_alike(found[key], shown[key])
    elif isinstance(shown, str) and len(shown) > 300:
        assert len(found) == len(shown)
    else:
        assert found == shown


def test_the_documented_refusal_is_a_real_one(server, document):
    responses = document["paths"]["/v1/decode"]["post"]["responses"]
    shown = responses["4XX"]["content"]["application/problem+json"]["example"]
    body = json.dumps({"source": "heed", "max_new_tokens": 65})
    headers = {"content-type": "application/json", "x-request-id": shown["request_id"]}
    assert httpx2.post(server + shown["instance"], content=body, headers=headers).json() == shown


def test_the_documented_codes_are_those_of_the_errors(document):
    """In the OpenAPI document, in docs/api.md, and in the code."""
    schema = document["components"]["schemas"]["Problem"]["properties"]["code"]
    table = Path("docs/api.md").read_text().partition("| status | `code` |")[2]
    cells = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")]
    named = {code for cell in cells for code in re.findall(r"`(\w+)`", cell)}
    defined = {each.code for each in HeedError.__subclasses__() if hasattr(each, "code")}
    assert defined - {"client_gone"} <= named
    assert set(schema["enum"]) == named | {"client_gone"}


def path_parameters(document):
    """(method, path, path with the examples in place of its parameters) of each that has some."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parameters = operation.get("parameters", [])
            examples = {p["name"]: p["example"] for p in parameters if p["in"] == "path"}
            if examples:
                yield method, path, path.format(**examples)


def test_the_example_of_a_path_names_a_model_that_is_served(document, tiny):
    named = {path for _, path, _ in path_parameters(document)}
    assert named == {"/v1/models/{name}", "/readyz/{name}"}
    with opened(tiny, DEFAULT_BUNDLE, admin_key="k" * 16) as client:
        assert_named(client, "g2p-en")  # at last it is unloaded
        assert_named(client, "tiny")


def assert_named(client, model):
    for method, path, filled in path_parameters(client.get("/openapi.json").json()):
        assert filled == path.format(name="opus-mt-en-fr" if path.endswith("/load") else model)
        if method == "get":
            assert client.get(filled).status_code == 200
        elif not path.endswith("/load"):
            headers = {"Authorization": f"Bearer {'k' * 16}"}
            assert client.post(filled, headers=headers).status_code == 200


def test_no_header_has_an_example_which_would_be_sent(document):
    parameters = [
        parameter
        for operations in document["paths"].values()
        for operation in operations.values()
        for parameter in operation.get("parameters", [])
        if parameter["in"] == "header"
    ]
    assert parameters
    assert not any("example" in json.dumps(parameter) for parameter in parameters)


def test_clients_get_short_names(document):
    names = [each["operationId"] for item in document["paths"].values() for each in item.values()]
    assert {"decode", "score", "encode", "attention", "list_models"} <= set(names)
    assert len(names) == len(set(names))
    assert not [name for name in document["components"]["schemas"] if "__" in name]  # of modules


def test_every_model_and_output_of_the_open_inference_protocol_is_documented():
    text = Path("docs/protocols.md").read_text()
    rows = re.findall(r"^\| `g2p-en([.\w]*)` \| `/v1/\w+` \| (.*) \|$", text, re.M)
    assert [suffix for suffix, _ in rows] == list(TASKS)
    for suffix, cell in rows:
        named = set(re.findall(r"`(\w+)`", cell)) - {"pooling", "attention", "draft"}
        kinds = ("cross", "decoder", "encoder")  # the outputs of cross stand for those of each
        every = {re.sub(r"^(decoder|encoder)_", "cross_", name) for name in TASKS[suffix].outputs}
        assert named == every | (set(kinds) if "cross" in every else set())
