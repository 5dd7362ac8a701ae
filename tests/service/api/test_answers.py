"""Answers are exactly as their response models, and so /openapi.json, describe them."""

import json

import pytest
from pydantic import ValidationError

from service.api.answering import decode_answer, responses
from service.api.answering.examples import SIMPLE
from service.api.endpoints import attend, attention, encode, models, score, tokenize
from service.api.endpoints.decode import body as decode_body
from service.bundle.manifest import Config
from tests.documentation import events_of

ENDPOINTS = {  # the model of each one's answer, and the examples of its requests
    "/v1/decode": (decode_answer.DecodeAnswer, decode_body.EXAMPLES),
    "/v1/attention": (attention.AttentionAnswer, attention.EXAMPLES),
    "/v1/score": (score.ScoreAnswer, score.EXAMPLES),
    "/v1/encode": (encode.EncodeAnswer, encode.EXAMPLES),
    "/v1/tokenize": (tokenize.TokenizeAnswer, tokenize.EXAMPLES),
    "/v1/detokenize": (tokenize.DetokenizeAnswer, tokenize.IDS_EXAMPLES),
    "/v1/attend": (attend.AttendAnswer, attend.EXAMPLES),
}
ALL_KINDS = ["encoder", "decoder", "cross"]
ALIGNED = {"kinds": ALL_KINDS, "alignment": "argmax", "rows": [0, 2], "decimals": 3}
REDUCED = {**ALIGNED, "reduce_heads": "max", "reduce_layers": "mean", "alignment": "threshold"}
MODELS = {**ALIGNED, "alignment": "model"}
ROLLOUT = {"kinds": ["encoder", "decoder"], "reduce_heads": "mean", "reduce_layers": "rollout"}
REQUESTS = [
    *(
        (path, each["value"])
        for path, (_, examples) in ENDPOINTS.items()
        for name, each in examples.items()
        if name != SIMPLE  # for other models
    ),
    *(
        ("/v1/decode", {"source": ["heed", "a"], **how, "top_log_probs": 3, "attention": selected})
        for how in (
            {},
            {"beam_size": 3, "num_hypotheses": 2, "early_stopping": False, "length_penalty": 0.5},
            {"temperature": 1.0, "seed": 1, "num_hypotheses": 2, "top_k": 9, "top_p": 0.9},
            {"target_prefix": "HH", "stop": ["IY1", 4], "min_new_tokens": 1},
            {"stream": True},
            {"stream": True, "beam_size": 2},
            {"split": "sentences", "beam_size": 2, "num_hypotheses": 2},
            {"split": "sentences", "stream": True},
            {"split": "sentences", "stream": True, "beam_size": 2},
        )
        for selected in (ALIGNED, REDUCED, MODELS, ROLLOUT)
    ),
    *(
        ("/v1/attention", {"source": "heed", "attention": selected, **target})
        for selected in (ALIGNED, REDUCED, MODELS, ROLLOUT)
        for target in ({}, {"target": "HH IY1 D"}, {"target_prefix": "HH", "beam_size": 2})
    ),
    ("/v1/score", {"source": [[5, 6], [7]], "target": [[4, 5], [2]]}),
    *(
        ("/v1/encode", {"source": ["heed", "a"], "pooling": pooling, "encoding": encoding})
        for pooling in ("none", "mean", "max", "first", "last")
        for encoding in ("float", "base64")
    ),
    ("/v1/tokenize", {"text": ["heed", "a"]}),
    ("/v1/detokenize", {"token_ids": [[1, 5], [6, 2]], "side": "source"}),
]
EVENTS = {"token": decode_answer.StreamedToken, "beam": decode_answer.StreamedBeam}
PLACE_FIELDS = {"sentence", "start", "end"}


def assert_valid(model, content):
    """Every required field is there in its own type, and no field that the model lacks."""
    model.model_validate_json(content, strict=True, extra="forbid")


@pytest.mark.parametrize(
    ("path", "body"),
    REQUESTS,
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_answers_are_as_documented(client, path, body):
    model = {} if path == "/v1/attend" else {"model": "g2p-en"}
    answer = client.post(path, json={**model, **body})
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        assert_valid(ENDPOINTS[path][0], answer.content)
        return
    *events, (last, done) = events_of(answer.text)
    assert last == "done"
    assert_valid(ENDPOINTS[path][0], json.dumps(done))
    for name, event in events:
        assert_valid(EVENTS[name], json.dumps(event))
        assert event.keys() & PLACE_FIELDS == (PLACE_FIELDS if "split" in body else set())


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/livez", models.Health),
        ("/readyz", models.Health),
        ("/v1/models/none", responses.Problem),
        ("/v1/decode", responses.Problem),
    ],
)
def test_answers_to_get_are_as_documented(client, path, model):
    assert_valid(model, client.get(path).content)


@pytest.mark.parametrize(
    ("path", "model"), [("/v1/models", models.ModelList), ("/v1/models/tiny", models.ModelCard)]
)
def test_cards_of_models_are_as_documented(client, path, model):
    """But for `config`, which may have other fields than the documented ones."""
    document = client.get(path).json()
    for card in document.get("models", [document]):
        card["config"] = {name: card["config"][name] for name in Config.model_fields}
    assert_valid(model, json.dumps(document))


def test_a_refusal_is_as_documented(client):
    body = {"model": "g2p-en", "source": ["naïve", "a"], "beam_size": 0}
    assert_valid(responses.Problem, client.post("/v1/decode", json=body).content)


@pytest.mark.parametrize(
    "usage",
    [
        {"source_tokens": 1},
        {"source_tokens": 1, "target_tokens": None},
        {"source_tokens": 1, "target_tokens": "1"},
        {"source_tokens": 1, "target_tokens": 1, "more": 1},
    ],
)
def test_a_nested_field_of_another_type_or_name_would_be_noticed(usage):
    """The oracle itself."""
    content = json.dumps({"model": "a", "results": [], "usage": usage})
    with pytest.raises(ValidationError):
        assert_valid(decode_answer.DecodeAnswer, content)
