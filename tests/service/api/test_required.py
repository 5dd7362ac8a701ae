"""Required phrases and glossaries of requests."""

import pytest

from service.api.reading import required
from service.api.reading.required import read_item
from service.errors import MOST_FAULTS
from tests.documentation import events_of

PHRASES = {"required": [["EH1 D", "AE1"], "K"]}


def ask(post, path="/v1/decode", **body):
    status, answer = post(path, **body)
    assert status == 200, answer
    return answer["results"]


def best(post, **body):
    return [result["hypotheses"][0] for result in ask(post, **body)]


def test_every_target_has_the_phrases(post):
    sources = ["read", "attention", "heed"]
    for hypothesis in best(post, source=sources, **PHRASES):
        tokens = hypothesis["tokens"]
        assert "K" in tokens
        assert "AE1" in tokens or "EH1 D" in hypothesis["text"]
        assert "unmet" not in hypothesis


def test_scores_are_those_of_the_model(post):
    (hypothesis,) = best(post, source="read", **PHRASES)
    ids = hypothesis["token_ids"]
    status, scored = post("/v1/score", source=["read"], target=[ids])
    assert status == 200
    assert hypothesis["log_probs"] == pytest.approx(scored["results"][0]["log_probs"], abs=2e-4)
    assert hypothesis["score"] == pytest.approx(scored["results"][0]["mean"], abs=2e-4)


def test_a_glossary_requires_of_each_source_its_own(post):
    glossary = {"heed": "EY1", "read": ["EH1", "EH2"], "queue": "Q"}
    sources = ["heed", "Read", "reader"]
    asked = {"source": sources, "glossary": glossary}
    one, two, none = ask(post, **asked)[0], *ask(post, **asked)[1:]
    assert [one] == ask(post, source=["heed"], required=["EY1"])
    assert [two] == ask(post, source=["Read"], required=[["EH1", "EH2"]])
    assert [none] == ask(post, source=["reader"])  # greedy, as the model's own


def test_a_glossary_applies_to_sentences(post):
    (result,) = ask(post, source="heed\nread", split="sentences", glossary={"read": "EH1"})
    assert result["sentences"][0]["hypotheses"] == best(post, source=["heed"])
    assert result["sentences"][1]["hypotheses"] == best(post, source=["read"], required=["EH1"])


def test_what_does_not_fit_is_unmet(post):
    asked = {"required": [["EH1 D", "AE1 D"], "AH0 N"], "max_new_tokens": 3, "split": "sentences"}
    (result,) = ask(post, source="read", **asked)
    (hypothesis,) = result["sentences"][0]["hypotheses"]
    assert hypothesis["finish_reason"] == "length"
    assert len(hypothesis["unmet"]) == 1
    assert hypothesis["unmet"][0] in asked["required"]
    assert result["hypotheses"][0]["unmet"] == hypothesis["unmet"]


def test_a_stop_counts_only_with_all_phrases(post):
    (hypothesis,) = best(post, source="read", required=["K", "EH1 D"], stop=["D"])
    assert {"K", "EH1", "D"} <= {*hypothesis["tokens"]}
    assert hypothesis["finish_reason"] in ("stop", "eos")


def test_a_phrase_of_the_prefix_is_met(post):
    plain = best(post, source="read", target_prefix="R EH1", beam_size=4)
    assert best(post, source="read", target_prefix="R EH1", beam_size=4, required=["R"]) == plain


def test_attention_shows_a_target_with_the_phrases(post):
    (result,) = ask(post, "/v1/attention", source="read", **PHRASES)
    assert result["target"] == best(post, source="read", **PHRASES)[0]["text"]


@pytest.mark.parametrize(
    ("options", "detail"),
    [
        ({"required": ["X1"]}, "/required/0 has 'X1' at offset 0, which the vocabulary lacks"),
        ({"required": [["K", ""]]}, "/required/0/1 must not be empty"),
        ({"required": "K"}, "/required must be a list"),
        ({"required": ["K"], "beam_size": 1}, "/beam_size is 1 but required needs several beams"),
        (
            {"required": ["K"], "num_hypotheses": 5},
            "/num_hypotheses is 5 but beam_size is 4 by default: lower num_hypotheses to at most 4,"
            " or raise beam_size",
        ),
        (
            {"glossary": {"read": "K"}, "num_hypotheses": 2},
            "/num_hypotheses is 2 but beam_size is 1, the model's own: lower num_hypotheses to at"
            " most 1, or raise beam_size",
        ),
        ({"required": ["K"], "temperature": 1.0}, "/required is found by beam search, not by"),
        ({"required": ["K"], "allowed_targets": ["K"]}, "/required may forbid some of"),
        ({"required": ["K K K"], "max_new_tokens": 2}, "/required/0 takes 3 tokens and targets"),
        ({"glossary": {"read": 1}}, "/glossary/read must be a text, or a list of texts"),
        ({"glossary": {"read": "X1"}}, "/glossary/read has 'X1' at offset 0"),
        ({"required": ["K" * 201]}, "/required/0 must have 200 or fewer characters"),
        ({"glossary": {"": "K"}}, "/glossary/ is a key that must not be empty"),
        (
            {"glossary": {"a/b": "", "b" * 201: "K"}},
            "/glossary/a~1b must not be empty; /glossary/bb",
        ),
        ({"glossary": {"[key]": ""}}, "/glossary/[key] must not be empty"),
        ({"glossary": {" ": "K"}}, "/glossary/  has no word"),
        ({"glossary": {f"a{i}": "K" for i in range(2001)}}, "/glossary has 2001 entries"),
        ({"required": [f"{'K ' * i}K" for i in range(33)]}, "/required must have 32 or fewer"),
    ],
)
def test_refusals(post, options, detail):
    status, problem = post("/v1/decode", source="read", **options)
    assert status == 422
    assert problem["detail"].startswith(detail)


def entries_of(sources):
    return [word for source in sources for word in source.split("'")]


def test_a_glossary_asks_for_a_bounded_number_of_phrases(post):
    """Each takes as long to tokenize as several texts, in one thread for all requests."""
    pairs = [a + b for a in "abcdefghijklmnopqrstuvwxyz" for b in "acegikmoqsuw"]
    sources = ["'".join(pairs[i : i + 13]) for i in range(0, 312, 13)]
    targets = ["K", "D", "T", "N", "S", "Z", "B", "P"]
    asked = {"source": sources, "glossary": dict.fromkeys(entries_of(sources), targets)}
    status, problem = post("/v1/decode", **asked)
    assert status == 413
    expected = "/glossary asks for 2496 phrases in all sources and the limit is 2048: send fewer"
    assert problem["detail"].startswith(expected)
    assert ask(post, max_new_tokens=1, **{**asked, "source": sources[:1]})


def test_after_ten_faults_no_more_entries_are_tokenized(post, monkeypatch):
    tried = []

    def read(asked, *others):
        tried.append(asked)
        return read_item(asked, *others)

    monkeypatch.setattr(required, "read_item", read)
    sources = ["'".join("abcdefghijklm"), "'".join("nopqrstuvwxyz")]
    status, _ = post(
        "/v1/decode", source=sources, glossary=dict.fromkeys(entries_of(sources), "X1")
    )
    assert status == 422
    assert len(tried) == MOST_FAULTS


def test_a_suppressed_token_is_named(post):
    (token_id,) = best(post, source="read", required=["K"], max_new_tokens=1)[0]["token_ids"]
    status, problem = post(
        "/v1/decode", source="read", required=["D", "K"], suppress_tokens=[token_id]
    )
    assert status == 422
    assert problem["detail"].startswith(f"/required/1 needs the token K ({token_id}), which")


def test_streams_keep_what_they_call_stable(client):
    body = {"model": "g2p-en", "source": "read", "stream": True, **PHRASES}
    events = events_of(client.post("/v1/decode", json=body).text)
    *beams, (_, done) = events
    text = done["results"][0]["hypotheses"][0]["text"]
    assert beams
    assert all(text.startswith(data["stable"]) for _, data in beams)
