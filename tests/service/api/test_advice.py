"""Refusals of natural guesses say what to send instead."""

import httpx2
import pytest

from service.api.reading.requests import AttentionSelection
from service.app import PROTOCOLS
from service.settings.settings import DEFAULT_BUNDLE
from tests.conftest import KEY, opened
from tests.service.api.bodies import tensor_of

DECODING = [  # as other services call it, or mistyped
    *("/v1/generate", "/generate", "/generate_stream", "/api/predict", "/invocations"),
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/translate"),
    *("/v1/decodes", "/v1/Decode"),
]
ANOTHER = ', or send "partial": true for the answers to the other sources'


def detail_of(answer):
    return answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "near"),
    [
        *((path, "/v1/decode") for path in DECODING),
        ("/embed", "/v1/encode"),
        ("/v1/embeddings", "/v1/encode"),
        ("/health", "/livez"),
        ("/v1/tokenise", "/v1/tokenize"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_path_of_another_service_leads_to_ours(client, method, path, near):
    answer = client.request(method, path)
    assert answer.status_code == 404
    assert f"did you mean {near}?" in detail_of(answer)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/translate", "libretranslate"),
        ("/languages", "libretranslate"),
        ("/frontend/settings", "libretranslate"),
        ("/v1/embeddings", "openai"),
        ("/v2", "open-inference"),
        ("/v2/health/ready", "open-inference"),
        ("/v2/models/g2p-en/infer", "open-inference"),
    ],
)
def test_a_path_of_a_protocol_that_is_off_names_the_setting(client, path, name):
    for method in ("GET", "POST"):
        detail = detail_of(client.request(method, path))
        expected = f"{path} does not exist unless the service is started with HEED_PROTOCOLS={name}"
        assert detail.startswith((f"{expected}: did you mean ", f"{expected}; "))


@pytest.mark.parametrize("path", ["/translations", "/v2s", "/v1/embed", "/v1/decodes", "/models2"])
def test_other_paths_name_no_protocol(client, path):
    assert "HEED_PROTOCOLS" not in client.post(path).text


def test_a_protocol_is_named_with_those_that_are_on(protocol_server):
    answer = httpx2.post(f"{protocol_server}/v2", headers={"Authorization": f"Bearer {KEY}"})
    expected = "HEED_PROTOCOLS=openai,libretranslate,hugging-face,open-inference; "
    assert expected in detail_of(answer)


@pytest.mark.parametrize("name", ["parameters", "options", "generation_config"])
@pytest.mark.parametrize(
    ("path", "field"), [("/v1/decode", "source"), ("/v1/score", "source"), ("/v1/tokenize", "text")]
)
def test_an_object_of_options_is_to_be_put_next_to_the_source(client, path, field, name):
    answer = client.post(path, json={field: "heed", name: {"num_beams": 4}})
    (fault,) = [each for each in answer.json()["errors"] if each["pointer"] == f"/{name}"]
    assert fault["detail"] == f"is not a field: put its fields next to {field}"


@pytest.mark.parametrize("name", AttentionSelection.model_fields)
@pytest.mark.parametrize("path", ["/v1/decode", "/v1/attention"])
def test_a_field_of_attention_is_to_be_put_into_it(post, path, name):
    status, problem = post(path, source="heed", **{name: 1})
    assert status == 422
    expected = "is not a field: put it into attention"
    assert [each["detail"] for each in problem["errors"]] == [expected]
    assert problem["detail"] == f"/{name} {expected}"


@pytest.mark.parametrize("given", [True, False, "cross", "all", ["cross"], 1, []])
@pytest.mark.parametrize("path", ["/v1/decode", "/v1/attention"])
def test_what_selects_no_attention_is_told_how(post, path, given):
    status, problem = post(path, source="heed", attention=given)
    assert status == 422
    assert problem["errors"] == [
        {
            "pointer": "/attention",
            "detail": "must be a JSON object: {} selects all cross-attention,"
            ' {"kinds": ["encoder"]} another kind',
        }
    ]


@pytest.mark.parametrize("source", ["ice cream", "one two three", "ice\tcream", " ice  cream "])
@pytest.mark.parametrize("path", ["/v1/decode", "/v1/encode", "/v1/attention"])
def test_several_words_for_a_model_of_one_word_are_told_so(post, path, source):
    status, problem = post(path, source=source)
    assert status == 422
    advice = (
        "which the vocabulary lacks: this model reads one word at a time, so send a list of words"
    )
    assert problem["detail"].endswith(advice)
    assert post(path, source=source.split())[0] == 200


def test_a_target_is_not_told_to_be_sent_in_words(post):
    """Each source has one target, so a list of its words would be refused, too."""
    status, problem = post("/v1/score", source="heed", target="HH qq IY1")
    assert status == 422
    assert "'qq' at offset 3, which the vocabulary lacks: send only AA0" in problem["detail"]


@pytest.mark.parametrize("field", ["target", "contrast"])
def test_a_target_of_letters_is_not_told_so_either(tiny, field):
    with opened(tiny) as client:
        body = {"source": "red", "target": "ab", field: "a b"}
        answer = client.post("/v1/attribution", json=body)
    assert answer.status_code == 422
    assert f"/{field} has ' ' at offset 1" in detail_of(answer)
    assert "one word" not in detail_of(answer)


def test_other_characters_are_told_with_the_spaces(post):
    _, problem = post("/v1/decode", source="ice 7")
    assert "'7' at offset 4" in problem["detail"]
    assert "one word at a time, so send a list of words; send only a b c" in problem["detail"]
    _, problem = post("/v1/decode", source="7")
    assert "one word" not in problem["detail"]


@pytest.mark.parametrize("path", ["/v1/decode", "/v1/encode", "/v1/attention"])
@pytest.mark.parametrize(
    ("source", "offered"),
    [
        (["heed", "7"], True),
        (["8", "heed", "a" * 65], True),
        ([[4, 5], [10**6]], True),
        (["7"], False),
        ("7", False),
        (["7", "8"], False),
    ],
)
def test_a_batch_with_valid_sources_is_told_of_partial_answers(post, path, source, offered):
    status, problem = post(path, source=source)
    assert status in (413, 422)
    assert problem["detail"].endswith(ANOTHER) is offered
    assert not any(ANOTHER in fault["detail"] for fault in problem["errors"])
    status, answer = post(path, source=source, partial=True)
    assert status == 200
    assert any("problem" not in each for each in answer["results"]) is offered


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/decode", {"source": ["heed", "7"], "beam_size": 2, "num_hypotheses": 3}),
        ("/v1/decode", {"source": ["a"] * 257}),
        ("/v1/decode", {"source": ["heed", 7]}),
        ("/v1/tokenize", {"text": ["heed", "7"]}),
        ("/v1/score", {"source": ["heed", "7"], "target": ["HH", "HH"]}),
    ],
)
def test_where_partial_answers_do_not_help_they_are_not_named(post, path, body):
    status, problem = post(path, **body)
    assert status in (413, 422)
    assert "partial" not in problem["detail"].partition("fields are")[0]


def test_sentences_of_a_batch_are_told_of_partial_answers(post):
    _, problem = post("/v1/decode", source=["heed\n7b", "heed"], split="sentences")
    assert problem["detail"].endswith(ANOTHER)
    _, problem = post("/v1/decode", source=["heed\n7b"], split="sentences")
    assert ANOTHER not in problem["detail"]


def test_other_protocols_are_not_told_of_our_fields(translator):
    with opened(DEFAULT_BUNDLE, translator, protocols=",".join(PROTOCOLS)) as client:
        assert "HEED_PROTOCOLS" not in client.post("/v1/nothing").text
        pair = {"source": "eng_Latn", "target": "heb_Hebr"}
        refusals = [
            client.post("/v2/models/g2p-en/infer", json={"inputs": [tensor_of("heed", "7")]}),
            client.post("/v1/embeddings", json={"model": "g2p-en", "input": ["heed", "7"]}),
            client.post("/translate", json={"q": ["hello", "hello word"], **pair}),
        ]
    for refusal in refusals:
        assert refusal.status_code == 400
        assert "which the vocabulary lacks" in refusal.text
        assert "partial" not in refusal.text
