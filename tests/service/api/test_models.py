"""GET /v1/models and /v1/models/{name}."""

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
