"""Unknown fields are refused with the fields that were meant, and one list of all fields."""

import pytest

FIELDS = "ields are model, source_language, target_language"


def details_of(post, path, **body):
    status, problem = post(path, **body)
    assert status == 422
    return [fault["detail"] for fault in problem["errors"]], problem["detail"]


def test_the_list_of_fields_is_given_once_with_the_last_unknown_field(post):
    unknown = {"num_beams": 4, "qqq": 1, "max_tokens": 5, "zzz": 1}
    faults, detail = details_of(post, "/v1/decode", source="a", **unknown)
    assert faults[:3] == [
        "is not a field: did you mean beam_size?",
        "is not a field",
        "is not a field: did you mean max_new_tokens?",
    ]
    assert faults[3] == "is not a field"
    assert detail.partition("/zzz is not a field; the f")[2].startswith(FIELDS)
    assert detail.count(FIELDS) == 1
    assert all(f"/{name} is not a field" in detail for name in unknown)
    assert not detail.endswith("…")


def test_each_object_lists_its_own_fields(post):
    body = {"source": "a", "attention": {"head": 1, "qq": 1}, "beams": 3, "qqq": 1}
    faults, detail = details_of(post, "/v1/decode", **body)
    assert faults == [
        "is not a field: did you mean heads?",
        "is not a field",
        "is not a field: did you mean beam_size?",
        "is not a field",
    ]
    assert "/attention/qq is not a field; the fields are kinds, layers" in detail
    assert f"/qqq is not a field; the f{FIELDS}" in detail


def test_the_list_is_given_even_if_more_fields_are_unknown_than_are_reported(post):
    _, detail = details_of(post, "/v1/decode", source="a", **{f"qqq{i}": 1 for i in range(15)})
    assert [FIELDS in fault for fault in detail.split("; /")] == [False] * 9 + [True]


@pytest.mark.parametrize(
    ("path", "name", "meant"),
    [
        ("/v1/tokenize", "inputs", "text"),
        ("/v1/tokenize", "source", "text"),
        ("/v1/tokenize", "sources", "text"),
        ("/v1/tokenize", "sentence", "text"),
        ("/v1/tokenize", "q", "text"),
        ("/v1/decode", "text", "source"),
        ("/v1/decode", "q", "source"),
        ("/v1/decode", "messages", "source"),
        ("/v1/decode", "sentence", "split or source"),
        ("/v1/decode", "sentences", "split or source"),
        ("/v1/decode", "split_sentences", "split"),
        ("/v1/encode", "sentences", "source"),
    ],
)
def test_a_name_that_others_use_leads_to_the_field(post, path, name, meant):
    _, detail = details_of(post, path, **{name: "a"})
    assert f"/{name} is not a field: did you mean {meant}?" in detail
    assert "fields are" not in detail  # there is nearer advice
