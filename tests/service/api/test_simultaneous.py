"""Sources that still grow: what /v1/decode commits, by the alignment that the bundle names."""

import json
import shutil

import numpy as np
import pytest

from tests.conftest import ALIGNMENT, DEFAULT_BUNDLE, edit_manifest, opened, sender

EVERY = {**ALIGNMENT, "layers": [0, 1, 2], "heads": [0, 1, 2, 3], "second": None}
WORDS = ["thought", "transformer", "unconstitutional", "photograph", "a"]


@pytest.fixture(scope="module")
def aligning(aligned, tmp_path_factory):
    """The default model, aligned by the mean of all heads, and the tiny one."""
    bundle = shutil.copytree(DEFAULT_BUNDLE, tmp_path_factory.mktemp("growing") / "g2p")
    edit_manifest(bundle, name="g2p", alignment=EVERY)
    with opened(bundle, aligned) as client:
        yield client


@pytest.fixture(scope="module")
def grow(aligning):
    """Decode a source that will grow: (source, **options) -> the best hypothesis."""
    send = sender(aligning, model="g2p", source_final=False)

    def decode(source, **options):
        status, answer = send("/v1/decode", source=source, **options)
        assert status == 200, answer
        return answer["results"][0]["hypotheses"][0]

    return decode


@pytest.mark.parametrize("hold", [1, 2, 5, 9])
@pytest.mark.parametrize("source", WORDS)
def test_tokens_before_the_first_that_attends_to_held_source(grow, source, hold):
    mean = {"reduce_heads": "mean", "reduce_layers": "mean"}
    found = grow(source, hold=hold, attention=mean)
    (block,) = found["attention"]
    weights = np.array(block["data"])
    letters = [i for i, token in enumerate(block["columns"]) if token["start"] is not None]
    best = np.array(letters)[weights[:, letters].argmax(1)]
    sounds = [*zip(block["rows"], best, strict=True)]
    expected = []
    for row, letter in sounds:
        if letter in letters[-hold:] or row["start"] is None or hold >= len(letters):
            break
        expected.append(row["id"])
    assert found["committed"]["token_ids"] == expected
    assert found["committed"]["text"] + found["tentative"] == found["text"]


@pytest.mark.parametrize("hold", [1, 3])
@pytest.mark.parametrize("source", WORDS[:4])
def test_what_is_committed_stays(grow, aligning, source, hold):
    """Letter by letter; the whole source then continues from what was committed."""
    committed = {"text": "", "token_ids": []}
    for end in range(1, len(source) + 1):
        found = grow(source[:end], hold=hold, target_prefix=committed["token_ids"])
        assert found["text"].startswith(committed["text"])
        assert found["committed"]["text"].startswith(committed["text"])
        known = len(committed["token_ids"])
        assert found["committed"]["token_ids"][:known] == committed["token_ids"]
        committed = found["committed"]
    assert committed["text"]
    send = sender(aligning, model="g2p")
    _, answer = send("/v1/decode", source=source, target_prefix=committed["token_ids"])
    (whole,) = answer["results"][0]["hypotheses"]
    assert whole["text"].startswith(committed["text"])
    assert not whole.keys() & {"committed", "tentative"}


@pytest.mark.parametrize("source", WORDS)
def test_a_source_that_never_grows_commits_nothing_more(grow, source):
    first = grow(source, hold=2)
    again = grow(source, hold=2, target_prefix=first["committed"]["token_ids"])
    assert again["committed"] == first["committed"]
    assert again["text"] == first["text"]


def test_a_source_of_held_tokens_commits_nothing(grow):
    found = grow("thought", hold=7)
    assert found["committed"] == {"text": "", "token_ids": []}
    assert found["tentative"] == found["text"] != ""
    assert grow("thought", hold=6)["committed"]["text"]


def test_the_default_is_four_tokens(grow):
    usual, four, three = (grow("transformer", **hold) for hold in ({}, {"hold": 4}, {"hold": 3}))
    assert usual == four
    assert usual["committed"] != three["committed"]


def test_beams_batches_and_streams(grow, aligning):
    beams = {"beam_size": 3, "num_hypotheses": 3}
    send = sender(aligning, model="g2p", source_final=False, hold=2, **beams)
    _, answer = send("/v1/decode", source=WORDS)
    for source, result in zip(WORDS, answer["results"], strict=True):
        assert grow(source, hold=2, **beams)["committed"] == result["hypotheses"][0]["committed"]
        for each in result["hypotheses"]:
            assert each["committed"]["text"] + each["tentative"] == each["text"]
    body = {"model": "g2p", "source": WORDS, "source_final": False, "hold": 2, **beams}
    streamed = aligning.post("/v1/decode", json={**body, "stream": True}).text
    done = streamed.split("event: done\ndata: ")[1].split("\n")[0]
    results = json.loads(done)["results"]
    assert [each["hypotheses"][0]["committed"] for each in results] == [
        each["hypotheses"][0]["committed"] for each in answer["results"]
    ]


@pytest.mark.parametrize(
    ("fields", "pointer", "advice"),
    [
        ({"hold": 2}, "/hold", "set source_final to false"),
        ({"hold": 2, "source_final": True}, "/hold", "set source_final to false"),
        ({"source_final": False, "split": "sentences"}, "/split", "set source_final to true"),
        ({"source_final": False, "hold": 0}, "/hold", "must be at least 1"),
    ],
)
def test_contradictions_are_refused(aligning, fields, pointer, advice):
    status, problem = sender(aligning, model="g2p")("/v1/decode", source="thought", **fields)
    assert status == 422
    (fault,) = problem["errors"]
    assert fault["pointer"] == pointer
    assert advice in fault["detail"]


def test_a_model_without_alignment_is_refused(client):
    status, problem = sender(client, model="tiny")("/v1/decode", source="red", source_final=False)
    assert (status, problem["code"]) == (404, "not_supported")
    assert "no head of it was found that aligns" in problem["detail"]
