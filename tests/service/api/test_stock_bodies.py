"""Bodies that stock clients of other protocols send, and what their specifications allow, are
answered. The bodies are as the clients in the comments sent them."""

import json
import struct

import pytest

from service.settings.settings import DEFAULT_BUNDLE
from tests.conftest import TINY, opened
from tests.service.api.conftest import copy_of

INFER = "/v2/models/g2p-en/infer"
TENSOR = {"name": "source", "shape": [2], "datatype": "BYTES"}
INPUT = {**TENSOR, "data": ["heed", "read"]}
BODY = {"inputs": [INPUT]}
ASKED = {"q": "red", "source": "en", "target": "fr"}
ID = "2a8a7239-3efd-47fd-9218-ccee7829cb37"


@pytest.fixture(scope="module")
def client(tiny, tmp_path_factory):
    languages = {"source": {"en": [4]}, "target": {"fr": [7]}}
    folder = tmp_path_factory.mktemp("translator")
    translator = copy_of(tiny, folder, "translator", languages=languages)
    bundles = [DEFAULT_BUNDLE, TINY, translator]
    with opened(*bundles, protocols="open-inference,openai,libretranslate") as client:
        yield client


@pytest.fixture(scope="module")
def expected(client):
    """The answer to what our own documentation describes."""
    return client.post(INFER, json=BODY).json()


@pytest.mark.parametrize(
    "fields",
    [
        {"id": ID, "model_name": "g2p-en"},  # kserve 0.21
        {"id": None, "model_name": "g2p-en", "model_version": None, "parameters": None},
        {"model_name": None, "model_version": "", "outputs": None},
        {"parameters": {}, "outputs": []},
        {"parameters": {"priority": 2, "timeout": 5_000_000}},  # tritonclient, if asked to
        {"inputs": [{**INPUT, "parameters": {"content_type": "str"}}]},  # mlserver
        {"inputs": [{**INPUT, "parameters": None}]},
        {"raw_input_contents": [], "user": "me", **{f"extension_{i}": i for i in range(30)}},
        {"inputs": [{**INPUT, "contents": None}]},
    ],
)
def test_what_clients_add_to_a_request_changes_no_tensor(client, expected, fields):
    answer = client.post(INFER, json={**BODY, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.json()["outputs"] == expected["outputs"]
    assert answer.json().get("id") == fields.get("id")


@pytest.mark.parametrize("model", ["tiny", "g2p-en.encode", "g2p-en.score"])
def test_a_model_in_the_body_replaces_that_of_the_path(client, model):
    source = {**TENSOR, "shape": [1], "data": ["red" if model == "tiny" else "heed"]}
    target = {**source, "name": "target", "data": ["HH IY1 D"]}
    body = {"inputs": [source, target][: 2 if "score" in model else 1]}
    there = client.post(f"/v2/models/{model}/infer", json=body).json()
    answer = client.post(INFER, json={**body, "model_name": model})
    assert answer.json() == there
    assert there["model_name"] == model


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"model_name": "g2p"}, "no model 'g2p' is served: did you mean g2p-en?"),
        ({"model_version": "7"}, "model g2p-en has no version '7': ask for"),
    ],
)
def test_a_model_in_the_body_must_be_served(client, fields, part):
    answer = client.post(INFER, json={**BODY, **fields})
    assert answer.status_code == 404
    assert part in answer.json()["error"]


def test_a_version_in_the_body_replaces_that_of_the_path(client, expected):
    version = expected["model_version"]
    path = "/v2/models/g2p-en/versions/7/infer"
    assert client.post(path, json={**BODY, "model_version": version}).json() == expected
    assert client.post(path, json=BODY).status_code == 404


def test_binary_tensors_come_with_the_name_of_the_model(client, expected):
    """As kserve 0.21 sends them."""
    head = {
        "id": "mine",
        "model_name": "g2p-en",
        "inputs": [{**TENSOR, "parameters": {"binary_data_size": 16}}],
        "outputs": [{"name": "text", "parameters": {"binary_data": True}}, {"name": "score"}],
        "parameters": {"beam_size": 1},
    }
    header = json.dumps(head).encode()
    tail = b"".join(struct.pack("<I", 4) + word for word in (b"heed", b"read"))
    length = {"Inference-Header-Content-Length": str(len(header))}
    answer = client.post(INFER, content=header + tail, headers=length)
    size = int(answer.headers["Inference-Header-Content-Length"])
    text, score = json.loads(answer.content[:size])["outputs"]
    outputs = {each["name"]: each for each in expected["outputs"]}
    assert score == outputs["score"]
    texts = [each.encode() for each in outputs["text"]["data"]]
    packed = [struct.pack("<I", len(each)) + each for each in texts]
    assert answer.content[size:] == b"".join(packed)
    assert text["parameters"] == {"binary_data_size": len(b"".join(packed))}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"parameters": {"num_beams": 4}}, "/num_beams is not one of the parameters"),
        ({"parameters": {"sequence_id": 1}}, "/sequence_id is not one of the parameters"),
        (
            {"outputs": [{"name": "text", "parameters": {"classification": 3}}]},
            "/outputs/0/parameters has classification, an extension that is not supported",
        ),
        (
            {"inputs": [{**TENSOR, "parameters": {"shared_memory_region": "a"}}]},
            "/inputs/0/parameters has shared_memory_region, an extension that is not",
        ),
        ({"model_name": 5}, "/model_name must be a string"),
        ({"beam_size": 4}, "/beam_size must be in parameters"),
        ({"parameter": {"beam_size": 4}}, "has parameter: did you mean parameters?"),
        ({"options": {"beam_size": 4}}, "has options: did you mean parameters?"),
        ({"output": [{"name": "text"}]}, "has output: did you mean outputs?"),
        (
            {"outputs": [{"name": "text", "parameter": {}}]},
            "has parameter: did you mean parameters",
        ),
        ({"outputs": [{"name": "text", "parameters": {"binary_date": True}}]}, "mean binary_data?"),
        ({"outputs": 5}, '/outputs must be a list, such as [{"name": "text"}]'),
    ],
)
def test_what_would_change_the_answer_is_refused(client, change, part):
    answer = client.post(INFER, json={**BODY, **change})
    assert answer.status_code == 400
    assert part in answer.json()["error"]


@pytest.mark.parametrize("twice", ['"id": "a", "id": "b"', '"parameters": {"seed": 1, "seed": 2}'])
def test_a_field_that_is_given_twice_is_refused(client, twice):
    answer = client.post(INFER, content=f'{{"inputs": [{json.dumps(INPUT)}], {twice}}}')
    assert answer.status_code == 400
    assert "twice in an object: send it once" in answer.json()["error"]


@pytest.mark.parametrize(
    "body",
    [
        {"input": ["heed"], "model": "g2p-en", "encoding_format": "base64"},  # openai 3.57
        {"model": "g2p-en", "input": ["heed"]},  # litellm 1.110, hosted_vllm/
        {"model": "g2p-en", "input": ["heed"], "dimensions": 8, "encoding_format": "base64"},
        {"model": "g2p-en", "input": [[4, 5, 6]], "encoding_format": "base64"},  # langchain-openai
        {"model": "g2p-en", "input": "heed", "user": None, "dimensions": None},
    ],
)
def test_bodies_of_openai_clients_are_answered(client, body):
    answer = client.post("/v1/embeddings", json=body)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["data"]) == 1


@pytest.mark.parametrize(
    "sent",
    [
        {"json": ASKED},  # npm's translate 3.1
        {"data": ASKED},  # libretranslatepy 2.1
        # as the page of LibreTranslate shows it, and as it sends it
        {"json": {**ASKED, "format": "text", "alternatives": 0, "api_key": ""}},
        {"data": {**ASKED, "format": "text", "alternatives": "1", "api_key": "", "secret": "x"}},
    ],
)
def test_bodies_of_libretranslate_clients_are_answered(client, sent):
    answer = client.post("/translate", **sent)
    assert answer.status_code == 200, answer.text
    assert answer.json()["translatedText"]
