"""Drafts in requests to /v1/decode."""

import json
import shutil

import pytest
from structlog.testing import capture_logs

from tests.conftest import edit_manifest, opened
from tests.documentation import events_of

WORDS = ["attention", "transformer", "photograph"]


def hypotheses(answer):
    assert answer.status_code == 200, answer.text
    return [result["hypotheses"][0] for result in answer.json()["results"]]


def without_counts(answered):
    return [
        {k: v for k, v in each.items() if k not in ("drafted", "accepted")} for each in answered
    ]


def rounded(answered):
    numbers = ("log_probs", "score")
    return [{**each, **{k: pytest.approx(each[k], abs=1e-4) for k in numbers}} for each in answered]


@pytest.fixture(scope="module")
def client(g2p):
    with opened(g2p) as client:
        yield client


def decode(client, **body):
    return client.post("/v1/decode", json={"source": WORDS, **body})


@pytest.mark.parametrize(
    "draft",
    [
        "source",
        ["AH0 T EH1 N SH AH0 N", "", "F OW1 T AH0 G R AE2 F"],
        [[5, 6, 7], [2], [8, 9] * 10],
        [[], [5, 6, 7], []],
    ],
    ids=["source", "texts", "ids", "one of ids"],
)
def test_every_form_of_a_draft_gives_the_answer_of_none(client, draft):
    plain, found = hypotheses(decode(client)), hypotheses(decode(client, draft=draft))
    assert without_counts(found) == rounded(plain)
    nothing = ["", [], [client.get("/v1/models/g2p-en").json()["config"]["eos_id"]]]
    given = [each not in nothing for each in (WORDS if draft == "source" else draft)]
    assert ["drafted" in each for each in found] == given
    assert all(0 <= each.get("accepted", 0) <= each.get("drafted", 0) for each in found)
    assert not [each for each in plain if "drafted" in each]


@pytest.mark.parametrize("stream", [False, True])
def test_drafts_are_counted(client, stream):
    names = ("drafted", "accepted", "generated")
    read = [f'heed_{name}_tokens_total{{model="g2p-en"}} ' for name in names]

    def counts():
        lines = client.get("/metrics").text.splitlines()
        found = [[line for line in lines if line.startswith(start)] for start in read]
        return [float(lines[0].split()[-1]) if lines else 0.0 for lines in found]

    # of which one sound is wrong
    body = {"draft": ["AH0 T EH1 N OY2 AH0 N", "", "F OW1 T AH0 G R AE2 F"], "stream": stream}
    before = counts()
    with capture_logs() as lines:
        answer = decode(client, **body)
    results = events_of(answer.text)[-1][1]["results"] if stream else answer.json()["results"]
    found = [result["hypotheses"][0] for result in results]
    written = [{**each, "generated": len(each["tokens"])} for each in found]
    expected = [sum(each.get(name, 0) for each in written) for name in names]
    assert expected[0] > expected[1] > 0
    assert [a - b for a, b in zip(counts(), before, strict=True)] == expected
    (line,) = [line for line in lines if line["route"] == "/v1/decode"]
    assert [line[f"{name}_tokens"] for name in names] == expected


def test_an_earlier_target_is_accepted(client):
    targets = [each["text"] for each in hypotheses(decode(client))]
    found = hypotheses(decode(client, draft=targets))
    assert [each["accepted"] for each in found] == [each["drafted"] for each in found]
    assert all(each["drafted"] >= len(each["tokens"]) - 3 for each in found)
    (one,) = hypotheses(decode(client, source=WORDS[0], draft=targets[0]))
    assert one["text"] == targets[0]


def test_a_draft_may_have_what_the_vocabulary_lacks(client):
    """It is only a guess. The rest of it is accepted, as is that of one with a wrong sound. A draft
    of no tokens is none."""
    target = hypotheses(decode(client, source=WORDS[2]))[0]
    sounds = target["text"].split()
    accepted = {}
    for name, other in (("unknown", "?"), ("wrong", "OY2"), ("none", "   ")):
        draft = other if name == "none" else " ".join([*sounds[:3], other, *sounds[4:]])
        found = hypotheses(decode(client, source=WORDS[2], draft=draft))[0]
        assert found["token_ids"] == target["token_ids"]
        accepted[name] = found.get("accepted")
    assert accepted["unknown"] >= accepted["wrong"] > 0
    assert accepted["none"] is None


def test_a_source_is_a_draft_where_the_target_has_its_tokens(client):
    """The letters A and B are sounds, too: as ids of sources they are others."""
    found = hypotheses(client.post("/v1/decode", json={"source": ["zz"], "draft": "source"}))
    assert found[0]["accepted"] <= found[0]["drafted"] <= 2


def test_sentences_have_their_own_source_as_a_draft(client):
    body = {"source": "attention\n\ntransformer", "split": "sentences"}
    plain, found = (decode(client, **body, **more).json() for more in ({}, {"draft": "source"}))
    texts = [each["results"][0]["hypotheses"][0]["text"] for each in (plain, found)]
    assert texts[0] == texts[1]
    sentences = found["results"][0]["sentences"]
    assert all("accepted" in each["hypotheses"][0] for each in sentences)


def test_a_stream_ends_with_the_counts(client):
    target = hypotheses(decode(client, source=WORDS[0]))[0]
    body = {"source": WORDS[0], "draft": target["text"], "stream": True}
    events = events_of(client.post("/v1/decode", json=body).text)
    tokens = [data["token_id"] for name, data in events if name == "token"]
    assert tokens == target["token_ids"]
    (done,) = events[-1][1]["results"]
    assert done["hypotheses"][0]["accepted"] > 0


def test_a_refused_source_takes_its_draft_with_it(client):
    body = {"source": ["7", WORDS[0]], "draft": ["AH0", "AH0 T EH1 N SH AH0 N"], "partial": True}
    failed, found = decode(client, **body).json()["results"]
    assert "hypotheses" not in failed
    assert found["hypotheses"][0]["accepted"] > 3


@pytest.mark.parametrize(
    ("body", "pointer", "says"),
    [
        ({"beam_size": 4}, "/beam_size", "is 4: set beam_size to 1, or omit draft"),
        ({"num_hypotheses": 2}, "/num_hypotheses", "omit num_hypotheses, or omit draft"),
        ({"temperature": 1.0}, "/temperature", "omit one"),
        ({"required": ["EH1"]}, "/required", "several beams, which cannot be combined with draft"),
        ({"required": ["EH1"], "beam_size": 4}, "/beam_size", "is 4: set beam_size to 1"),
        ({"glossary": {WORDS[0]: "EH1"}}, "/glossary", "several beams"),
        ({"ablate": [{"kind": "cross", "layer": 0, "heads": [0]}]}, "/ablate", "omit one"),
        ({"split": "sentences", "draft": ["AH0"] * 3}, "/draft", '"source"'),
        ({"draft": ["AH0", "AH0"]}, "/draft", "2 drafts for 3 sources: give one for each source"),
        ({"draft": "AH0"}, "/draft", "1 draft for 3 sources"),
        ({"draft": [["AH0"], [5], [5]]}, "/draft/0/0", "the id of a token"),
        ({"draft": [[], [5], "AH0"]}, "/draft/2", "must be a list"),
        ({"draft": 7}, "/draft", 'must be "source", a text, a list of texts'),
        ({"draft": [[5], [5, 9999], [5]]}, "/draft/1/1", "9999"),
    ],
)
def test_what_cannot_have_a_draft_is_refused_by_name(client, body, pointer, says):
    answer = decode(client, **{"draft": "source", **body})
    assert answer.status_code == 422, answer.text
    faults = {each["pointer"]: each["detail"] for each in answer.json()["errors"]}
    assert says in faults[pointer]


def test_several_hypotheses_are_the_only_fault_of_their_number(client):
    """Not the beams or the temperature that would find them: a draft takes neither."""
    (fault,) = decode(client, draft="source", num_hypotheses=2).json()["errors"]
    assert fault["pointer"] == "/num_hypotheses"
    assert "beam_size" not in fault["detail"]


def test_phrases_are_the_only_fault_if_the_model_has_one_beam(client):
    """Not the beams that they would need: to send beam_size 1 would be refused, too."""
    for name, asked in (("required", ["EH1"]), ("glossary", {WORDS[0]: "EH1"})):
        answer = decode(client, draft="source", **{name: asked})
        assert [each["pointer"] for each in answer.json()["errors"]] == [f"/{name}"]


def test_a_refused_draft_refuses_its_source_alone_in_a_partial_request(client):
    target = hypotheses(decode(client, source=WORDS[0]))[0]["token_ids"]
    body = {"draft": [target, [9999], [5] * 99]}
    refused = decode(client, **body)
    assert refused.status_code == 422
    assert 'send "partial": true' in refused.json()["detail"]
    first, second, third = decode(client, **body, partial=True).json()["results"]
    assert first["hypotheses"][0]["accepted"] > 3
    assert [each["problem"]["status"] for each in (second, third)] == [422, 413]
    assert [each["problem"]["errors"][0]["pointer"] for each in (second, third)] == [
        "/draft/1/0",
        "/draft/2",
    ]
    events = events_of(decode(client, **body, partial=True, stream=True).text)
    assert {data["result"] for name, data in events if name == "token"} == {0}
    last = decode(client, draft=[[9999], [9999], [5]], partial=True).json()["results"]
    assert ["hypotheses" in each for each in last] == [False, False, True]


def test_the_models_own_beams_are_named(g2p, tmp_path):
    bundle = shutil.copytree(g2p, tmp_path / "beams")
    decoding = json.loads((bundle / "bundle.json").read_text())["decoding"]
    edit_manifest(bundle, name="beams", decoding={**decoding, "beam_size": 3})
    with opened(bundle) as client:
        assert client.get("/v1/models/beams").json()["drafts"] is True
        refused = decode(client, draft="source")
        found = hypotheses(decode(client, draft="source", beam_size=1))
    assert "is 3, the model's own: set beam_size to 1" in refused.text
    assert "accepted" in found[0]


def test_a_bundle_without_the_graph_says_what_to_run(g2p, tmp_path):
    bundle = shutil.copytree(g2p, tmp_path / "older")
    precisions = json.loads((bundle / "bundle.json").read_text())["precisions"]
    for graphs in precisions.values():
        (bundle / graphs.pop("draft_step")).unlink()
    files = json.loads((bundle / "bundle.json").read_text())["files"]
    kept = {name: each for name, each in files.items() if "draft_step" not in name}
    edit_manifest(bundle, name="older", precisions=precisions, files=kept)
    with opened(bundle) as client:
        assert client.get("/v1/models/older").json()["drafts"] is False
        answer = decode(client, draft="source")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_supported")
    assert "lacks the graph draft_step; export or convert it again" in answer.json()["detail"]


def test_a_text_may_have_as_many_tokens_as_a_target(client):
    """Its eos is not counted, so a target that was cut off is a draft, too."""
    longest = client.get("/v1/models/g2p-en").json()["limits"]["max_target_length"]
    cut = decode(client, source="heed", min_new_tokens=longest)
    (target,) = hypotheses(cut)
    assert target["finish_reason"] == "length"
    (again,) = hypotheses(
        decode(client, source="heed", min_new_tokens=longest, draft=target["text"])
    )
    assert again["token_ids"] == target["token_ids"]
    assert again["accepted"] > 0
    refused = decode(client, source="heed", draft=target["text"] + " HH")
    assert refused.status_code == 413
    assert f"has {longest + 1} tokens; the limit is {longest}" in refused.text
