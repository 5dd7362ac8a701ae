"""Fields that are wrong or not supported are refused with their place and what to send instead."""

import json
import shutil

import pytest

from service.api.reading.validation_errors import OTHER_NAMES
from tests.conftest import opened
from tests.service.mutations.edit import edit_json

MANY_FIELDS = {f"x{i}": i for i in range(5000)}
BAD = [
    ({"source": ""}, 422, "/source", "holds no token"),
    ({"source": "   "}, 422, "/source", "holds no token"),
    ({"source": []}, 422, "/source", "must have 1 or more items"),
    ({"source": ["cat", ""]}, 422, "/source/1", "holds no token"),
    ({"source": "a" * 10_000}, 413, "/source", "the limit is 64 tokens"),
    ({"source": ["a"] * 257}, 413, "/source", "the limit is 256"),
    ({"source": ["a", "naïve 7"]}, 422, "/source/1", "' ' at offset 5, '7' at offset 6"),
    ({"source": [[5, 6], [5, 57]]}, 422, "/source/1/1", "ids are 0 to 56"),
    ({"source": [[5, -1]]}, 422, "/source/0/1", "ids are 0 to 56"),
    ({"source": [[10**30]]}, 422, "/source/0/0", "ids are 0 to 56"),
    ({"source": [[]]}, 422, "/source/0", "must have 1 or more items"),
    ({"source": 5}, 422, "/source", "must be a text, a list of texts, or a list of lists"),
    ({"source": {"a": 1}}, 422, "/source", "must be a text"),
    ({"source": ["a", 5]}, 422, "/source/1", "must be a string"),
    ({"source": [["a"]]}, 422, "/source/0/0", "must be an integer, the id of a token"),
    ({"source": "a", "suppress_tokens": ["IY1"]}, 422, "/suppress_tokens/0", "the id of a token"),
    ({"source": "a", "suppress_tokens": [["K"]]}, 422, "/suppress_tokens/0/0", "id of a token"),
    ({"source": "a", "target_prefix": ["K"]}, 422, "/target_prefix/0", "the id of a token"),
    ({"source": "a", "force_words_ids": [[5]]}, 422, None, "did you mean required?"),
    ({"source": "a", "constraints": []}, 422, "/constraints", "did you mean required?"),
    ({"source": "a", "stop_strings": "K"}, 422, "/stop_strings", "did you mean stop?"),
    ({"source": "a", "output_scores": True}, 422, None, "did you mean top_log_probs?"),
    ({"source": "a", "attention_mask": [[1]]}, 422, None, "is not a field; the fields are"),
    ({"source": "a", "diversity_penalty": 1}, 422, None, "is not a field; the fields are"),
    ({}, 422, "/source", "is required"),
    ({"source": "a", "qqq": 5}, 422, "/qqq", "is not a field; the fields are model"),
    ({"source": "a", "max_length": 5}, 422, "/max_length", "did you mean max_new_tokens?"),
    ({"source": "a", "num_beams": 5}, 422, "/num_beams", "did you mean beam_size?"),
    ({"source": "a", "num_return_sequences": 5}, 422, None, "did you mean num_hypotheses?"),
    ({"source": "a", "src_lang": "en"}, 422, "/src_lang", "did you mean source_language?"),
    ({"source": "a", "tgt_lang": "fr"}, 422, "/tgt_lang", "did you mean target_language?"),
    ({"source": "a", "do_sample": True}, 422, "/do_sample", "did you mean temperature?"),
    ({"source": "a", "lenght_penalty": 1}, 422, None, "did you mean length_penalty?"),
    ({"source": "a", "attention": {"head": 1}}, 422, "/attention/head", "did you mean heads?"),
    ({"input": "a"}, 422, None, "did you mean source?"),
    ({"source": "a", "max_new_tokens": 0}, 422, "/max_new_tokens", "must be at least 1"),
    ({"source": "a", "max_new_tokens": 65}, 422, "/max_new_tokens", "give 1 to 64"),
    ({"source": "a", "max_new_tokens": "5"}, 422, "/max_new_tokens", "must be an integer"),
    ({"source": "a", "beam_size": 0}, 422, "/beam_size", "must be at least 1"),
    ({"source": "a", "beam_size": 65}, 422, "/beam_size", "must be at most 64"),
    ({"source": "a", "num_hypotheses": 2}, 422, "/num_hypotheses", "beam_size is 1"),
    ({"source": "a", "length_penalty": 1e3}, 422, "/length_penalty", "must be at most 10"),
    ({"source": "a", "attention": {"layers": [0, 3]}}, 422, "/attention/layers/1", "give -3 to 2"),
    ({"source": "a", "attention": {"heads": [4]}}, 422, "/attention/heads/0", "give -4 to 3"),
    ({"source": "a", "attention": {"heads": "some"}}, 422, "/attention/heads", "'all' or a list"),
    ({"source": "a", "attention": {"kinds": ["x"]}}, 422, "/attention/kinds/0", "be 'encoder'"),
    ({"source": "a", "attention": {"kind": []}}, 422, "/attention/kind", "did you mean kinds?"),
    ({"source": "a", "attention": {"heads": [0, -4]}}, 422, "/attention/heads", "a head twice"),
    ({"source": "a", "attention": {"kinds": ["cross"] * 2}}, 422, "/attention/kinds", "kind twice"),
    ({"source": "a", "attention": {"layers": 0}}, 422, "/attention/layers", "list of indices"),
    ({"source": "a\ud800"}, 422, "/source", "surrogate pair at offset 1"),
    ({"source": ["a", "\ud800"]}, 422, "/source/1", "surrogate pair at offset 0"),
    ({"source": "a", "\ud800": 1}, 422, None, "must be valid Unicode"),
    ({"source": "a", **MANY_FIELDS}, 422, "", "has 5002 fields but only these are allowed: model"),
    ({"source": [5, 6]}, 422, "/source", "must be a text, a list of texts, or a list of lists"),
    ({"source": "a", "model": "other"}, 404, None, "give one of g2p-en, tiny"),
]


LACKING = [
    ({"source": "naïve 7 é7"}, [["ï", " ", "7", "é"]]),
    ({"source": "it's\u200b"}, [["\u200b"]]),
    ({"source": "a\n7\n8 9", "split": "sentences"}, [["7"], ["8", " ", "9"]]),
    ({"source": ["é", ""]}, [["é"], None]),
    ({"source": ["0123456789" * 6] * 10}, [None] * 10),  # too much to list
]


@pytest.mark.parametrize(("body", "unknown"), LACKING)
def test_programs_are_told_what_the_vocabulary_lacks(post, body, unknown):
    status, problem = post("/v1/decode", **body)
    assert status == 422
    assert [fault.get("unknown") for fault in problem["errors"]] == unknown


@pytest.mark.parametrize(("body", "status", "pointer", "said"), BAD)
def test_bad_input_is_refused_with_its_place_and_what_is_allowed(
    client, caplog, body, status, pointer, said
):
    content = json.dumps({"model": "g2p-en", **body})
    headers = {"content-type": "application/json"}
    answer = client.post("/v1/decode", content=content, headers=headers)
    document = answer.json()
    assert (answer.status_code, document["status"]) == (status, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert document["request_id"] == answer.headers["x-request-id"]
    assert document["instance"] == "/v1/decode"
    assert said in document["detail"] + str([fault["detail"] for fault in document["errors"]])
    if pointer is not None:
        assert document["errors"][0]["pointer"] == pointer
    assert len(answer.content) < 2000
    assert "Traceback" not in caplog.text
    assert client.post("/v1/decode", json={"model": "g2p-en", "source": "a"}).status_code == 200


def test_every_name_of_another_library_leads_to_a_field(client):
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    fields = {name for each in schemas.values() for name in each.get("properties", ())}
    for theirs, ours in OTHER_NAMES.items():
        assert {*ours} <= fields
        assert theirs not in ours


@pytest.mark.parametrize("name", ["a/b", "~", "as text", "\n"])
def test_the_pointer_to_an_unknown_field_leads_to_it(client, name):
    answer = client.post("/v1/decode", json={"model": "g2p-en", "source": "a", name: 1})
    (fault,) = answer.json()["errors"]
    assert fault["pointer"] == "/" + name.replace("~", "~0").replace("/", "~1")


def test_a_model_must_be_named_where_there_are_several(client):
    answer = client.post("/v1/decode", json={"source": "a"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/model"


def test_targets_must_match_their_sources(post):
    status, document = post("/v1/attention", source=["a", "b"], target=["EY1"])
    assert (status, document["errors"][0]["pointer"]) == (422, "/target")
    status, document = post("/v1/attention", source="a", target="EY1", max_new_tokens=3)
    assert (status, document["errors"][0]["pointer"]) == (422, "/max_new_tokens")
    status, document = post("/v1/attention", source="a", target="EY1 QQ")
    assert status == 422
    assert "'QQ' at offset 4" in document["detail"]


def test_attention_that_a_bundle_cannot_show_is_not_supported(tiny, tmp_path):
    copy = shutil.copytree(tiny, tmp_path / "blind")
    edit_json("bundle.json", lambda manifest: manifest["precisions"]["fp32"].pop("attention"), copy)
    with opened(copy) as blind:
        refused = blind.post("/v1/attention", json={"source": "red"})
        assert (refused.status_code, refused.json()["code"]) == (404, "not_supported")
        assert refused.json()["detail"].endswith("cannot show cross attention: select encoder")
        kinds = {"attention": {"kinds": ["encoder"]}}
        assert blind.post("/v1/attention", json={"source": "red", **kinds}).status_code == 200
        assert blind.get("/v1/models").json()["models"][0]["attention"] == ["encoder"]
