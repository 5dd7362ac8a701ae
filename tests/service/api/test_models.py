"""GET /v1/models and /v1/models/{name}."""

import hashlib
import json
import tomllib
from pathlib import Path

import pytest

from tests.service.api.conftest import EXAMPLES

CMUDICT = {  # its pronunciations of the default model's examples
    "attention": "AH0 T EH1 N SH AH0 N",
    "transformer": "T R AE0 N S F AO1 R M ER0",
    "construction": "K AH0 N S T R AH1 K SH AH0 N",
    "knight": "N AY1 T",
    "photograph": "F OW1 T AH0 G R AE2 F",
    "serendipity": "S EH2 R AH0 N D IH1 P IH0 T IY0",
}


def test_the_examples_of_the_default_model_are_pronounced_as_cmudict_does(client, post):
    examples = client.get("/v1/models/g2p-en").json()["examples"]
    assert [example["source"] for example in examples] == [*CMUDICT]
    for example in examples:
        _, answer = post("/v1/decode", **example)
        assert answer["results"][0]["hypotheses"][0]["text"] == CMUDICT[example["source"]]


@pytest.mark.parametrize(
    ("model", "examples"), [("slots", EXAMPLES), ("ids", [])], ids=["some", "none"]
)
def test_examples_are_requests_of_a_model(ask, model, examples):
    assert ask(model, "/v1/models")["examples"] == examples
    for example in examples:
        assert ask(model, "/v1/decode", **example)[0] == 200


def test_a_card_has_what_bundle_json_says_of_the_model(client, g2p):
    card, manifest = client.get("/v1/models/g2p-en").json(), read_manifest(g2p)
    for key in ("name", "task", "licence", "attribution", "examples", "limits", "config"):
        default = {"decoder": "self_attention"} if key == "config" else None  # which may be missing
        assert card[key] == (manifest[key] if default is None else default | manifest[key])
    assert card["decoding"] == {
        **manifest["decoding"],
        "encoder_no_repeat_ngram_size": 0,
        "encoder_repetition_penalty": 1.0,
        "renormalize": False,
    }
    assert card["languages"] == {"source": [], "target": []}


def read_manifest(bundle):
    return json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))


def test_a_card_names_the_versions_of_the_model_and_of_the_service(client, g2p):
    card = client.get("/v1/models/g2p-en").json()
    assert card["version"] == hashlib.sha256((g2p / "bundle.json").read_bytes()).hexdigest()
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert card["service_version"] == project["version"]


def test_the_model_card_is_the_text_in_the_bundle(client, g2p):
    headers = {"accept": "text/markdown, application/json;q=0.5"}
    answer = client.get("/v1/models/g2p-en", headers=headers)
    assert (answer.status_code, answer.text) == (200, (g2p / "MODEL_CARD.md").read_text("utf-8"))
    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    assert "Accept" in answer.headers["vary"]
    browser = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    assert client.get("/v1/models/g2p-en", headers=browser).json()["name"] == "g2p-en"


def test_a_model_without_a_card_says_so(client):
    refused = client.get("/v1/models/tiny", headers={"accept": "text/markdown"})
    assert (refused.status_code, refused.json()["code"]) == (406, "not_acceptable")
    assert "model tiny has no MODEL_CARD.md" in refused.json()["detail"]
