"""A language that is missing, unknown or without effect is refused with what to send instead."""

import pytest

from service.api.reading.languages import SAME_LANGUAGE, nearest

LANGUAGES = {"source_language": "deu_Latn", "target_language": "fry_Latn"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/decode", {"source": [[4, 5]], "target_language": "fra_Latn"}),
        ("/v1/score", {"source": [[4]], "target": "a", "target_language": "fra_Latn"}),
        ("/v1/encode", {"source": "red", "source_language": "deu_Latn"}),
        ("/v1/encode", {"source": [[4]]}),
        ("/v1/tokenize", {"text": "abc", "side": "target"}),
    ],
)
def test_only_languages_that_are_read_are_required(ask, path, body):
    assert ask("slots", path, **body)[0] == 200


REFUSED = [
    (
        "tiny",
        {"source_language": "en"},
        "/source_language has no effect: this model has no languages: omit source_language",
    ),
    (
        "prefixed",
        {"source_language": "en", "target_language": "fra_Latn"},
        "/source_language has no effect: this model has no source languages: omit source_language",
    ),
    (
        "slots",
        {"target_language": "fra_Latn"},
        "/source_language is required, because this model has 3 source languages: give one, such"
        " as deu_Latn, eng_Cyrl, eng_Latn; `languages` of model slots lists all",
    ),
    (
        "slots",
        {"source_language": "eng_Latn"},
        "/target_language is required, because this model has 2 target languages: give one, such"
        " as fra_Latn, fry_Latn; `languages` of model slots lists all",
    ),
    (
        "slots",
        {**LANGUAGES, "target_language": "x" * 65},
        "/target_language must have 64 or fewer characters",
    ),
]


@pytest.mark.parametrize(("model", "languages", "detail"), REFUSED)
def test_refusals_say_which_language_to_send(ask, model, languages, detail):
    for path, body in (
        ("/v1/decode", {"source": "red"}),
        ("/v1/attention", {"source": "red"}),
        ("/v1/score", {"source": "red", "target": "a"}),
    ):
        status, problem = ask(model, path, **body, **languages)
        assert (status, problem["detail"]) == (422, detail)


@pytest.mark.parametrize(
    ("model", "languages", "advice"),
    [
        ("slots", {"source_language": "EN"}, "did you mean eng_Cyrl or eng_Latn?"),
        ("slots", {"source_language": "English"}, "did you mean eng_Cyrl or eng_Latn?"),
        ("slots", {"target_language": "frz_Latn"}, "did you mean fry_Latn or fra_Latn?"),
        ("slots", {"target_language": "zh"}, "give another, such as fra_Latn, fry_Latn."),
        ("only", {"target_language": "fr_XX"}, "did you mean fr?"),
    ],
)
def test_an_unknown_language_is_answered_with_the_nearest(ask, model, languages, advice):
    ((slot, code),) = languages.items()
    body = {"source": "red", **(LANGUAGES if model == "slots" else {}), **languages}
    status, problem = ask(model, "/v1/decode", **body)
    assert (status, problem["detail"]) == (
        422,
        f"/{slot} is {code!r}, which this model does not know: {advice} `languages` of model"
        f" {model} lists its {slot.removesuffix('_language')} languages",
    )


def test_both_unknown_languages_are_named(ask):
    languages = {"source_language": "eng", "target_language": "fra"}
    _, problem = ask("slots", "/v1/decode", source="red", **languages)
    assert [each["pointer"][1:] for each in problem["errors"]] == [*languages]
    assert "; /target_language is 'fra', which this model does not know:" in problem["detail"]


@pytest.mark.parametrize("model", ["slots", "prefixed", "tiny"])
@pytest.mark.parametrize("slot", LANGUAGES)
def test_a_language_has_no_effect_on_the_tokens_of_a_target(ask, model, slot):
    body = {"text": "abc", "side": "target"}
    assert ask(model, "/v1/tokenize", **body)[0] == 200
    status, problem = ask(model, "/v1/tokenize", **body, **{slot: LANGUAGES[slot]})
    assert status == 422
    assert problem["detail"] == (
        f"/{slot} has no effect on the tokens of targets, which hold no language: omit {slot}"
    )


@pytest.mark.parametrize(
    ("model", "path", "others", "slot", "code", "ids"),
    [
        ("slots", "decode", {"target_language": "fra_Latn"}, "source_language", "deu_Latn", "5, 6"),
        ("slots", "encode", {}, "source_language", "deu_Latn", "5, 6"),
        ("prefixed", "decode", {}, "target_language", "fry_Latn", "8, 9"),
        ("only", "decode", {}, "source_language", "en", "4"),
    ],
)
def test_a_language_that_ids_must_hold_is_refused_with_its_ids(
    ask, model, path, others, slot, code, ids
):
    body = {"source": [[4, 5]], **others}
    assert ask(model, f"/v1/{path}", **body)[0] == 200
    status, problem = ask(model, f"/v1/{path}", **body, **{slot: code})
    expected = f"sources given as ids, which must hold those of their language ({ids}): omit {slot}"
    assert (status, expected in problem["detail"]) == (422, True)


NLLB = ["deu_Latn", "est_Latn", "fra_Latn", "jpn_Jpan", "pes_Arab", "spa_Latn", "zho_Hans"]
M2M100 = ["de", "es", "et", "fr", "ja", "zh"]


@pytest.mark.parametrize(
    ("given", "codes", "meant"),
    [
        ("fr", NLLB, ["fra_Latn"]),
        ("es", NLLB, ["spa_Latn"]),  # not est_Latn, which is Estonian
        ("es_XX", NLLB, ["spa_Latn"]),
        ("et", NLLB, ["est_Latn"]),
        ("ja", NLLB, ["jpn_Jpan"]),
        ("fa", NLLB, ["pes_Arab"]),
        ("zh-CN", NLLB, ["zho_Hans"]),
        ("fra_Latn", M2M100, ["fr"]),
        ("spa_Latn", M2M100, ["es"]),
        ("est_Latn", M2M100, ["et"]),
        ("jpn_Jpan", M2M100, ["ja"]),
        ("zho_Hant", M2M100, ["zh"]),
    ],
)
def test_a_code_of_another_list_finds_its_language(given, codes, meant):
    assert nearest(given, codes) == meant


def test_no_pair_of_codes_is_one_that_begins_alike():
    assert all(len(pair) == 5 and not pair[2:].startswith(pair[:2]) for pair in SAME_LANGUAGE)
