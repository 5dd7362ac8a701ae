"""Targets whose tokens are bytes, which may end in the middle of a character.

Most bytes of this model's tokens are the first or the middle of a character.
"""

import json

import pytest

from tests.conftest import edit_tokenizer, opened
from tests.documentation import events_of
from tests.service.api.conftest import copy_of

PIECES = ["a", "b", "\u00c3", "\u00a9", "\u00e2", "\u0124", "\u00ac", "\u00ff", "\u00f0"]
CUT = "\ufffd"
SOURCES = ["red green blue", "two", "one three", "blue two", "three red one", "green"]
WAYS = [
    {"max_new_tokens": 1},
    {"max_new_tokens": 6},
    {"max_new_tokens": 9, "temperature": 1.0, "seed": 2, "num_hypotheses": 4},
    {"max_new_tokens": 4, "target_prefix": [6, 8]},
    {"max_new_tokens": 7, "stop": [6, 8, 9, 11, 12]},
]


def write_bytes(tokenizer):
    special = list(tokenizer["model"]["vocab"])[:4]
    tokenizer["model"]["vocab"] = {each: i for i, each in enumerate([*special, *PIECES])}
    tokenizer["decoder"] = {"type": "ByteLevel"}
    tokenizer["decoder"] |= {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}


@pytest.fixture(scope="module")
def client(tiny, tmp_path_factory):
    bundle = copy_of(tiny, tmp_path_factory.mktemp("bytes"), "bytes")
    edit_tokenizer(bundle, "target.tokenizer.json", write_bytes)
    with opened(bundle, protocols="hugging-face") as client:
        yield client


def best(client, source, **options):
    answer = client.post("/v1/decode", json={"source": source, **options})
    assert answer.status_code == 200, answer.text
    (result,) = answer.json()["results"]
    return result["hypotheses"]


def events(client, path, **body):
    return client.post(path, json={**body, "stream": True}).text


def test_the_events_of_tokens_make_the_text_but_for_what_is_cut_by_a_limit(client):
    """An end of the target shows what is incomplete before it; the whole answer always does."""
    ended = {"eos": 0, "length": 0, "stop": 0}
    for source in SOURCES:
        for way in WAYS:
            *tokens, (_, done) = events_of(events(client, "/v1/decode", source=source, **way))
            hypotheses = done["results"][0]["hypotheses"]
            assert hypotheses == best(client, source, **way)
            for i, hypothesis in enumerate(hypotheses):
                text, reason = hypothesis["text"], hypothesis["finish_reason"]
                sent = "".join(token["text"] for _, token in tokens if token["hypothesis"] == i)
                assert sent == text if reason == "eos" else text.rstrip(CUT) == sent.rstrip(CUT)
                assert text.startswith(sent)
                ended[reason] += text.endswith(CUT)
    assert min(ended.values()) > 0, ended


def test_what_beams_call_stable_has_whole_characters(client):
    ends = set()
    for source in SOURCES:
        body = {"source": source, "beam_size": 3, "num_hypotheses": 3, "max_new_tokens": 8}
        *beams, (_, done) = events_of(events(client, "/v1/decode", **body))
        text = done["results"][0]["hypotheses"][0]["text"]
        assert done["results"][0]["hypotheses"] == best(client, **body)
        assert all(text.startswith(beam["stable"]) for _, beam in beams)
        ends.add(text[-1:] == CUT)
    assert ends == {False, True}


@pytest.mark.parametrize("parameters", [{"max_new_tokens": 6}, {"num_beams": 3}], ids=str)
def test_the_last_event_of_hugging_face_completes_the_text(client, parameters):
    ends = set()
    for source in SOURCES:
        body = {"inputs": source, "parameters": parameters}
        lines = events(client, "/models/bytes", **body).splitlines()
        found = [json.loads(line[5:]) for line in lines if line.startswith("data:")]
        text = "".join(each["token"]["text"] for each in found)
        assert text == found[-1]["generated_text"]
        asked = {**body, "parameters": {**parameters, "details": True}}
        answer = client.post("/models/bytes", json=asked).json()
        (answer,) = answer if isinstance(answer, list) else [answer]
        tokens = answer["details"]["tokens"]
        assert "".join(each["text"] for each in tokens) == text
        ends.add(text[-1:] == CUT)
    assert True in ends
