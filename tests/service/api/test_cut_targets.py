"""A target that max_new_tokens has cut is decoded further, or the answer says that it was cut.

`short` generates 3 tokens unless it is asked for more, and `endless` never ends a target.
"""

import json
import re

import numpy as np
import pytest

from service.api.answering.respond import FINISH_REASON
from service.api.reading.answer_size import TOKEN_BYTES
from tests.conftest import edit_manifest, opened
from tests.service.api.bodies import tensor_of
from tests.service.api.conftest import copy_of

EOS, POSITIONS = 2, 40
WORDS = ["red", "green blue", "one two three", "two"]
LANGUAGES = {"short": ("en", "fr"), "endless": ("de", "es")}


def limited(tiny, folder, name, **decoding):
    source, target = LANGUAGES[name]
    languages = {"source": {source: [4]}, "target": {target: [7]}}
    bundle = copy_of(tiny, folder, name, languages=languages)
    own = json.loads((bundle / "bundle.json").read_text())["decoding"]
    edit_manifest(bundle, decoding={**own, "max_new_tokens": 3, **decoding})
    return bundle


@pytest.fixture(scope="module")
def client(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("short")
    bundles = [
        limited(tiny, folder, "short"),
        limited(tiny, folder, "endless", suppress_tokens=[EOS]),
    ]
    with opened(*bundles, protocols="libretranslate,open-inference") as client:
        yield client


@pytest.fixture(scope="module")
def decode(client):
    """The first hypothesis of each source, and whether a header tells that one was cut."""

    def decode(source, model="short", path="/v1/decode", **options):
        answer = client.post(path, json={"model": model, "source": source, **options})
        assert answer.status_code == 200, answer.text
        hypotheses = [each["hypotheses"][0] for each in answer.json()["results"]]
        return hypotheses, answer.headers.get(FINISH_REASON)

    return decode


@pytest.fixture(scope="module")
def translate(client):
    def translate(q, model="short", **fields):
        source, target = LANGUAGES[model]
        answer = client.post(
            "/translate", json={"q": q, "source": source, "target": target, **fields}
        )
        assert answer.status_code == 200, answer.text
        return answer.json(), answer.headers.get(FINISH_REASON)

    return translate


def test_a_translation_goes_on_where_the_model_alone_would_stop(translate, decode):
    alone, told = decode(WORDS)
    assert told == "length"
    assert any(each["finish_reason"] == "length" for each in alone)
    whole, _ = decode(WORDS, max_new_tokens=POSITIONS)
    answer, told = translate(WORDS)
    assert answer["translatedText"] == [each["text"] for each in whole]
    assert told == ("length" if any(each["finish_reason"] == "length" for each in whole) else None)


def test_sources_that_are_decoded_again_count_once(client, translate, decode):
    def counts():
        names = ("heed_source_tokens_total", "heed_generated_tokens_total")
        text = client.get("/metrics").text
        found = [re.search(rf'{name}{{model="short"}} (\S+)', text) for name in names]
        return np.array([float(each[1]) if each else 0.0 for each in found])

    before = counts()
    whole, _ = decode(WORDS, max_new_tokens=POSITIONS)
    between = counts()
    translate(WORDS)
    assert (between - before)[1] == sum(len(each["token_ids"]) for each in whole)
    np.testing.assert_array_equal(counts() - between, between - before)


@pytest.mark.parametrize("form", ["text", "html"])
def test_a_translation_that_is_cut_at_the_last_position_says_so(translate, decode, form):
    (whole,), _ = decode("red", "endless", max_new_tokens=POSITIONS)
    answer, told = translate("red", "endless", format=form)
    assert (answer, told) == ({"translatedText": whole["text"], "truncated": True}, "length")
    answer, told = translate(["***", "red"], "endless", format=form)
    assert (answer["truncated"], told) == ([False, True], "length")
    answer, told = translate("***", "endless", format=form)
    assert (answer, told) == ({"translatedText": "***"}, None)
    answer, told = translate("red", "endless", format=form, alternatives=1)
    assert (answer["truncated"], told) == (True, "length")


def test_a_translation_stays_cut_if_more_of_it_would_be_too_large(translate, limit):
    limit(max_answer_bytes=TOKEN_BYTES * 3)
    answer, told = translate("red", "endless")
    assert (answer["truncated"], told) == (True, "length")
    assert len(answer["translatedText"]) < POSITIONS


def test_a_document_says_that_a_sentence_was_cut(decode):
    source = "\n".join(WORDS)
    alone, _ = decode(WORDS)
    reasons = {each["finish_reason"] for each in alone}
    assert "length" in reasons
    (joined,), told = decode(source, split="sentences")
    assert (joined["finish_reason"], told) == ("length", "length")
    (joined,), told = decode(source, split="sentences", allowed_targets=["a", "b"])
    assert (joined["finish_reason"], told) == ("eos", None)


def test_a_document_says_that_a_sentence_was_stopped(decode):
    (first,), _ = decode("red", max_new_tokens=2)
    stop = first["token_ids"][0]
    (joined,), told = decode("red\n***", split="sentences", stop=[stop])
    assert (joined["finish_reason"], told) == ("stop", None)


@pytest.mark.parametrize("split", ["none", "sentences"])
@pytest.mark.parametrize("outputs", [[], ["text"]])
def test_tensors_say_that_a_target_was_cut(client, split, outputs):
    body = {"inputs": [tensor_of("red", "one")], "outputs": [{"name": each} for each in outputs]}
    body["parameters"] = {"split": split, "num_hypotheses": 2, "beam_size": 2}
    answer = client.post("/v2/models/endless/infer", json=body)
    assert answer.headers[FINISH_REASON] == "length"
    found = {each["name"]: each for each in answer.json()["outputs"]}
    if not outputs:
        assert found["finish_reason"]["shape"] == found["text"]["shape"] == [2, 2]
        assert found["finish_reason"]["data"] == ["length"] * 4


def test_attention_of_a_cut_target_says_so(client):
    body = {"model": "endless", "source": "red"}
    assert client.post("/v1/attention", json=body).headers[FINISH_REASON] == "length"
    given = client.post("/v1/attention", json={**body, "target": "a b"})
    assert FINISH_REASON not in given.headers
    assert FINISH_REASON not in client.post("/v1/encode", json=body).headers
