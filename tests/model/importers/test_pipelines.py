"""What Hugging Face's clients get for their parameters is what `generate` makes of them."""

import json

import pytest
import torch

from tests.conftest import opened
from tests.model.importers.checkpoints import write_m2m100
from tests.model.importers.served import convert, post

TEXT = "The weather is fine today and we are going out."

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Hugging Face's model, the id of French, and a service of the bundle."""
    folder = tmp_path_factory.mktemp("m2m100") / "checkpoint"
    folder.mkdir()
    theirs = write_m2m100(folder)
    bundle = convert(folder)
    (french,) = json.loads((bundle / "bundle.json").read_text())["languages"]["target"]["fr"]
    with opened(bundle, precision="fp32", protocols="hugging-face") as client:
        yield theirs, french, client


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"num_beams": 1},
        {"num_beams": 4, "num_return_sequences": 3},
        {"max_length": 10},
        {"max_new_tokens": 9},
        {"min_length": 12, "max_length": 15},
        {"min_new_tokens": 13, "max_new_tokens": 14},
        {"num_beams": 5, "length_penalty": 2.0, "early_stopping": True},
        {"no_repeat_ngram_size": 2},
        {"repetition_penalty": 1.5, "num_beams": 1},
    ],
)
def test_a_translation_is_that_of_generate(served, parameters):
    theirs, french, client = served
    (source,) = post(client, "/v1/tokenize", text=TEXT, source_language="en")
    found = theirs.generate(
        torch.tensor([source["token_ids"]]), forced_bos_token_id=french, **parameters
    )
    ids = [each[2:].tolist() for each in found]  # after the start token and the language
    expected = [each["text"] for each in post(client, "/v1/detokenize", token_ids=ids)]
    body = {"inputs": TEXT, "parameters": {"src_lang": "en", "tgt_lang": "fr", **parameters}}
    answer = client.post("/", json=body)
    assert [each["translation_text"] for each in answer.json()] == expected
