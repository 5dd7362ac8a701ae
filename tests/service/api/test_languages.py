"""Languages of a request, compared with torch and with a bundle whose manifest has their ids."""

import numpy as np
import pytest

from model.checkpoint import load_model
from service.api.reading.languages import language_of
from tests.service.api.conftest import SOURCE, TARGET
from tests.torch_scores import log_probs_of

LANGUAGES = {"source_language": "deu_Latn", "target_language": "fry_Latn"}


@pytest.fixture(scope="module")
def trained(tiny):
    return load_model(tiny)


def greedy_of_torch(trained, source, start, limit):
    ids, found = [], []
    while len(ids) < limit and 2 not in ids:
        log_probs = log_probs_of(trained, source, [*start, *ids])[-1]
        ids.append(int(log_probs.argmax()))
        found.append(float(log_probs.max()))
    return ids, found


def source_ids(trained, text):
    return trained.source_tokenizer.encode(text).ids


@pytest.mark.parametrize("source_language", SOURCE)
@pytest.mark.parametrize("target_language", TARGET)
def test_languages_are_ids_around_the_source_and_before_the_target(
    ask, trained, source_language, target_language
):
    languages = {"source_language": source_language, "target_language": target_language}
    status, answer = ask(
        "slots", "/v1/decode", source="red one two", length_penalty=2.0, **languages
    )
    assert status == 200
    read = [*SOURCE[source_language], *source_ids(trained, "red one two"), 2]
    start = [2, *TARGET[target_language]]
    ids, log_probs = greedy_of_torch(trained, read, start, 9)
    (found,) = answer["results"][0]["hypotheses"]
    assert found["token_ids"] == ids
    np.testing.assert_allclose(found["log_probs"], log_probs, rtol=1e-4, atol=1e-5)
    length = len(ids) + len(start) - 1  # start ids after the first count
    assert found["score"] == pytest.approx(sum(log_probs) / length**2, rel=1e-4)
    assert answer["results"][0]["source_tokens"] == len(read)
    del languages["source_language"]
    given = ask("slots", "/v1/decode", source=[read], length_penalty=2.0, **languages)[1]
    assert given["results"][0]["hypotheses"] == [found]


def test_scores_are_those_of_torch(ask, trained):
    status, answer = ask("slots", "/v1/score", source="blue", target="abc", **LANGUAGES)
    assert status == 200
    ids = [*trained.target_tokenizer.encode("abc").ids, 2]
    read = [5, 6, *source_ids(trained, "blue"), 2]
    log_probs = log_probs_of(trained, read, [2, 8, 9, *ids[:-1]])[2:]
    expected = log_probs[range(len(ids)), ids]
    (found,) = answer["results"]
    np.testing.assert_allclose(found["log_probs"], expected, rtol=1e-4, atol=1e-5)
    assert found["tokens"] == ["a", "b", "c", "<eos>"]


EVERY_KIND = {"kinds": ["encoder", "decoder", "cross"], "alignment": "argmax"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/decode", {"source": ["red", "one two"], "beam_size": 3, "num_hypotheses": 3}),
        ("/v1/decode", {"source": "red", "target_prefix": "ab", "attention": EVERY_KIND}),
        (  # sampling never draws 7, another language
            "/v1/decode",
            {"source": "red", "temperature": 1.0, "seed": 3, "suppress_tokens": [7]},
        ),
        ("/v1/attention", {"source": "three red", "attention": EVERY_KIND}),
        ("/v1/attention", {"source": "red", "target": "abc", "attention": EVERY_KIND}),
        ("/v1/score", {"source": ["red", "one"], "target": ["abc", "i"]}),
        ("/v1/encode", {"source": "three red"}),
        ("/v1/tokenize", {"text": "three red"}),
    ],
)
def test_languages_are_the_ids_of_their_codes(ask, path, body):
    """A bundle with the ids in its manifest gives the same answers."""
    status, found = ask("slots", path, **body, **LANGUAGES)
    assert (status, found["model"]) == (200, "slots")
    assert found["results"] == ask("ids", path, **body)[1]["results"]


def test_language_tokens_are_special(ask):
    tokens = ask("slots", "/v1/tokenize", text="red", **LANGUAGES)[1]["results"][0]
    assert tokens["offsets"] == [None, None, [0, 3], None]
    body = {"source": "red", "attention": {"kinds": ["decoder"]}, **LANGUAGES}
    (result,) = ask("slots", "/v1/attention", **body)[1]["results"]
    (block,) = result["attention"]
    assert [(each["id"], each["start"]) for each in block["columns"][:4]] == [
        (2, None),
        (8, None),
        (9, None),
        (block["rows"][0]["id"], 0),
    ]
    assert result["target"][0] == block["rows"][0]["text"]


def test_samples_hold_no_language_token(ask):
    body = {"source": "red", "temperature": 90.0, "seed": 1, "num_hypotheses": 64, **LANGUAGES}
    found = ask("slots", "/v1/decode", **body)[1]["results"][0]["hypotheses"]
    drawn = {token_id for hypothesis in found for token_id in hypothesis["token_ids"]}
    assert drawn == {1, 2, 4, 5, 6, 10, 11, 12}


def test_a_target_language_may_stand_before_the_source(ask):
    status, found = ask("prefixed", "/v1/encode", source="red", target_language="fra_Latn")
    assert status == 200
    read = ask("tiny", "/v1/tokenize", text="red")[1]["results"][0]["token_ids"]
    assert found["results"] == ask("tiny", "/v1/encode", source=[[7, *read, 2]])[1]["results"]


def test_the_only_language_is_the_default(ask):
    silent = ask("only", "/v1/decode", source="red")[1]
    assert (
        silent
        == ask("only", "/v1/decode", source="red", source_language="en", target_language="fr")[1]
    )
    tokens = ask("only", "/v1/tokenize", text="red")[1]["results"][0]
    assert tokens["token_ids"][1:] == [2, 4]


@pytest.mark.parametrize("target_language", [{}, {"target_language": None}])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/decode", {"source": "red"}),
        ("/v1/score", {"source": "red", "target": "abc"}),
        ("/v1/attention", {"source": "red", "attention": EVERY_KIND}),
    ],
)
def test_a_target_language_that_is_not_given_is_the_default(ask, path, body, target_language):
    body |= {"source_language": "eng_Latn"}
    for named, given in (("fry_Latn", target_language), ("fra_Latn", None)):
        sent = {"target_language": named} if given is None else given
        found = ask("fixed", path, **body, **sent)[1]
        expected = ask("slots", path, **body, target_language=named)[1]
        assert found["results"] == expected["results"]


def test_the_default_is_of_targets_alone(ask):
    status, answer = ask("fixed", "/v1/decode", source="red")
    assert status == 422
    assert [error["pointer"] for error in answer["errors"]] == ["/source_language"]


def test_models_list_their_languages(ask):
    assert ask("fixed", "/v1/models")["languages"]["default_target"] == "fry_Latn"
    assert ask("slots", "/v1/models")["languages"] == {
        "source": ["deu_Latn", "eng_Cyrl", "eng_Latn"],
        "target": ["fra_Latn", "fry_Latn"],
    }
    assert ask("tiny", "/v1/models")["languages"] == {"source": [], "target": []}


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("en", "en"),
        ("en_XX", "en"),
        ("eng_Latn", "en"),
        ("zh-Hans", "zh"),
        ("arb_Arab", "ar"),
        ("als_Latn", "sq"),
        ("est_Latn", "et"),  # and not es
        ("no", "nb"),
        ("ast_Latn", None),
        ("tat_Cyrl", None),  # and not ta
    ],
)
def test_a_code_has_a_language_of_two_letters(code, language):
    known = {"en": "eng", "zh": "zho", "ar": "ara", "sq": "sqi", "es": "spa"}
    known |= {"et": "est", "nb": "nob", "ta": "tam", "as": "asm"}
    assert language_of(code, known) == language
