"""Sequences that are never generated, and options that compare a target with its source."""

from itertools import pairwise

import pytest

from service.serving.model import Model
from tests.documentation import events_of

SOURCES = ["attention", "banana", "heed"]
SEARCHES = [{}, {"beam_size": 3, "num_hypotheses": 3}, {"temperature": 1.0, "seed": 7}]


def ask(post, path="/v1/decode", **body):
    status, answer = post(path, **body)
    assert status == 200, answer
    return answer["results"]


def pairs(*lists):
    return {pair for ids in lists for pair in pairwise(ids)}


@pytest.mark.parametrize("search", SEARCHES)
def test_a_banned_pair_is_not_generated_and_changes_no_other_target(post, search):
    plain = ask(post, source=SOURCES, **search)
    first = plain[0]["hypotheses"][0]["token_ids"]
    banned = [[*pair] for pair in sorted(pairs(first))][:3]
    found = ask(post, source=SOURCES, suppress_tokens=[*banned, [first[0], first[0], 70]], **search)
    others = [hypothesis["token_ids"] for hypothesis in plain[2]["hypotheses"]]
    assert not pairs(*others) & {*map(tuple, banned)}
    assert found[2] == plain[2]
    for hypothesis in found[0]["hypotheses"]:
        assert not pairs(hypothesis["token_ids"]) & {*map(tuple, banned)}
    (alone,) = ask(post, source=SOURCES[:1], suppress_tokens=banned, **search)
    assert [each["token_ids"] for each in alone["hypotheses"]] == [
        each["token_ids"] for each in found[0]["hypotheses"]
    ]


def test_the_target_prefix_counts_as_generated_and_a_stream_keeps_to_bans(client, post):
    (plain,) = ask(post, source="heed", target_prefix="HH")
    second = plain["hypotheses"][0]["token_ids"][0]
    body = {"source": "heed", "target_prefix": "HH", "suppress_tokens": [[28, second]]}
    (found,) = ask(post, **body)
    assert found["hypotheses"][0]["token_ids"][0] != second
    events = client.post("/v1/decode", json={"model": "g2p-en", **body, "stream": True})
    *tokens, (_, done) = events_of(events.text)
    assert done["results"] == [found]
    streamed = [data["token_id"] for name, data in tokens if name == "token"]
    assert streamed == found["hypotheses"][0]["token_ids"]


def test_a_ban_wins_over_a_required_phrase(post):
    """A phrase that is written with a banned sequence is refused; one that a ban makes impossible
    where it stands is unmet."""
    body = {"source": "read", "required": ["EH1 D"]}
    status, problem = post("/v1/decode", **body, suppress_tokens=[[18, 11]])
    assert (status, problem["errors"][0]["pointer"]) == (422, "/required/0")
    assert "needs the tokens EH1 (18), D (11)," in problem["detail"]
    (result,) = ask(post, **body, suppress_tokens=[[i, 18] for i in range(73)])
    assert result["hypotheses"][0]["unmet"] == ["EH1 D"]


def test_tokens_of_the_source_are_compared_where_both_sides_have_one_vocabulary(post, monkeypatch):
    """The default model has two, whose ids are compared here as if they were the same."""
    monkeypatch.setattr(Model, "has_one_vocabulary", True)
    tokens = post("/v1/tokenize", text=SOURCES)[1]["results"]
    read = [{*each["token_ids"]} for each in tokens]
    plain = ask(post, source=SOURCES)
    assert any(
        ids & {*result["hypotheses"][0]["token_ids"]}
        for ids, result in zip(read, plain, strict=True)
    )
    found = ask(post, source=SOURCES, encoder_no_repeat_ngram_size=1)
    for ids, result in zip(read, found, strict=True):
        assert not ids & {*result["hypotheses"][0]["token_ids"]}
    favoured = ask(post, source=SOURCES, encoder_repetition_penalty=100)
    shunned = ask(post, source=SOURCES, encoder_repetition_penalty=0.01)

    def shared(results):
        lists = [result["hypotheses"][0]["token_ids"] for result in results]
        return sum(i in ids for ids, given in zip(read, lists, strict=True) for i in given)

    assert shared(shunned) < shared(plain) < shared(favoured)


def test_options_of_the_source_that_change_nothing_need_no_common_vocabulary(post):
    neutral = {"encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0}
    assert ask(post, source=SOURCES, **neutral) == ask(post, source=SOURCES)
