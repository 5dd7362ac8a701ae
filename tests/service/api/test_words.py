"""The words of decoded targets, compared with their tokens, with the model's alignment and with
torch."""

import asyncio
import shutil

import httpx2
import numpy as np
import pytest

from model.checkpoint import load_model
from service.api.answering import stream
from tests.conftest import TINY, edit_tokenizer, opened, sender
from tests.documentation import events_of
from tests.torch_scores import log_probs_of

SOURCE = "red green blue two"
UNKNOWN = 3


@pytest.fixture(scope="module")
def spaced(aligned, tmp_path_factory):
    """A model whose targets have words of several letters, since its e stands for a space."""
    bundle = shutil.copytree(aligned, tmp_path_factory.mktemp("words") / "words")

    def write_spaces(tokenizer):
        spaces = {"type": "Replace", "pattern": {"Regex": "[e-i]"}, "content": " "}
        tokenizer["decoder"] = {"type": "Sequence", "decoders": [{"type": "Fuse"}, spaces]}

    edit_tokenizer(bundle, "target.tokenizer.json", write_spaces)
    with opened(bundle) as client:
        yield client


@pytest.fixture(scope="module")
def ask(spaced):
    return sender(spaced)


def hypotheses(post, **body):
    status, document = post("/v1/decode", words=True, **body)
    assert status == 200, document
    return [each for result in document["results"] for each in result["hypotheses"]]


OPTIONS = [
    {},
    {"target_prefix": [4, 5], "max_new_tokens": 7},
    {"beam_size": 3, "num_hypotheses": 3},
    {"temperature": 2.0, "seed": 3, "num_hypotheses": 4},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_word_has_the_log_probs_of_its_tokens(ask, options):
    for each in hypotheses(ask, source=SOURCE, **options):
        prefix = len(options.get("target_prefix", []))
        letters = [*each["text"]]
        assert [word["text"] for word in each["words"]] == each["text"].split()
        for word in each["words"]:
            places = range(word["start"], word["end"])
            assert "".join(letters[i] for i in places) == word["text"]
            own = [each["log_probs"][i - prefix] for i in places if i >= prefix]
            assert word["log_prob"] == pytest.approx(sum(own), abs=1e-5)
            assert word["mean_log_prob"] == pytest.approx(np.mean(own), abs=1e-5)


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"repetition_penalty": 1.5}])
def test_entropies_are_those_of_the_torch_model(fp32_server, g2p, options):
    """A penalty lowers what is chosen, and leaves the model's own distribution."""
    body = {"source": "thorough", "words": True, **options}
    answer = httpx2.post(f"{fp32_server}/v1/decode", json=body, timeout=60).json()
    (hypothesis,) = answer["results"][0]["hypotheses"]
    trained = load_model(g2p)
    source = trained.source_tokenizer.encode(body["source"]).ids
    read = [trained.transformer.config.bos_id, *hypothesis["token_ids"][:-1]]
    log_probs = log_probs_of(trained, source, read)
    expected = -(np.exp(log_probs) * log_probs).sum(1)[:-1]  # without that of eos
    found = [word["entropy"] for word in hypothesis["words"]]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS)
def test_the_source_share_of_a_word_is_what_the_torch_model_loses(ask, options):
    """Words of several tokens have the product of their probabilities."""
    trained = load_model(TINY)
    source = trained.source_tokenizer.encode(SOURCE).ids
    prefix = options.get("target_prefix", [])
    for each in hypotheses(ask, source=SOURCE, source_share=True, **options):
        ids = [*prefix, *each["token_ids"]]
        read = [trained.transformer.config.bos_id, *ids[:-1]]
        given, without = (
            log_probs_of(trained, row, read)[range(len(ids)), ids]
            for row in (source, [UNKNOWN] * len(source))
        )
        for word in each["words"]:
            places = [i for i in range(word["start"], word["end"]) if i >= len(prefix)]
            expected = 1 - min(1, np.exp(without[places].sum() - given[places].sum()))
            assert word["source_share"] == pytest.approx(expected, abs=1e-3)


def test_without_cross_attention_no_word_depends_on_the_source(ask):
    ablate = [{"kind": "cross", "layer": i, "heads": "all"} for i in (0, 1)]
    for switched_off, depends in ((ablate, False), ([], True)):
        (each,) = hypotheses(ask, source=SOURCE, source_share=True, ablate=switched_off)
        assert (max(word["source_share"] for word in each["words"]) > 1e-4) is depends


def test_source_shares_are_refused_without_words(post):
    status, problem = post("/v1/decode", source="read", source_share=True)
    assert (status, problem["errors"][0]["pointer"]) == (422, "/source_share")


def test_source_shares_need_a_model_that_can_score():
    with opened(TINY, score=False) as client:
        body = {"source": SOURCE, "words": True, "source_share": True}
        status, problem = sender(client)("/v1/decode", **body)
    assert (status, problem["code"]) == (404, "not_supported")
    assert problem["detail"].startswith("model tiny cannot score targets")


def test_source_shares_of_too_many_rows_are_refused(post, limit):
    limit(max_rows=5)
    body = {"source": ["read", "red", "reed"], "words": True}
    assert post("/v1/decode", **body)[0] == 200
    status, problem = post("/v1/decode", **body, source_share=True)
    assert (status, problem["errors"][0]["pointer"]) == (413, "/source_share")
    assert "takes 6 rows" in problem["detail"]
    body["source"] = body["source"][:2]
    assert post("/v1/decode", **body, source_share=True)[0] == 200


def test_words_of_the_prefix_alone_are_left_out(ask):
    (each,) = hypotheses(ask, source=SOURCE, target_prefix=[4, 8, 5])
    assert each["text"].startswith("a b")
    assert each["words"][0]["start"] == 2


@pytest.mark.parametrize("options", OPTIONS)
def test_source_words_are_those_that_the_model_aligns(ask, options):
    for each in hypotheses(ask, source=SOURCE, **options):
        ids = [*options.get("target_prefix", []), *each["token_ids"]]
        wanted = {"alignment": "model"}
        if "target_prefix" in options:
            wanted["rows"] = [len(options["target_prefix"]), 99]
        body = {"source": SOURCE, "target": [ids], "attention": wanted}
        (result,) = ask("/v1/attention", **body)[1]["results"]
        words = result["attention"][0]["alignment"]["words"]
        first = len(words["target"]) - len(each["words"])
        for place, word in enumerate(each["words"], first):
            expected = [words["source"][s] for s, t in words["pairs"] if t == place]
            assert word["source"] == expected
        assert any(word["source"] for word in each["words"]) or not each["words"]


def test_a_model_without_alignment_names_no_source_words(post):
    (each,) = hypotheses(post, source="red", model="tiny")
    assert [word["source"] for word in each["words"]] == [None] * len(each["text"].split()) != []


def test_each_sound_of_the_default_model_is_a_word(post):
    (each,) = hypotheses(post, source="read")
    assert [word["text"] for word in each["words"]] == each["text"].split()
    log_probs = [word["log_prob"] for word in each["words"]]
    np.testing.assert_allclose(log_probs, each["log_probs"][:-1], atol=1e-6)


def test_words_of_sentences_are_at_their_place_in_the_document(ask):
    document = "red green\n\n  blue two"
    body = {"source": document, "split": "sentences"}
    (result,) = ask("/v1/decode", **body, words=True)[1]["results"]
    (whole,) = result["hypotheses"]
    found = []
    for sentence in result["sentences"]:
        own = sentence["hypotheses"][0]
        text = document[sentence["start"] : sentence["end"]]
        (alone,) = hypotheses(ask, source=text)
        by = sentence["start"]
        for word, expected in zip(own["words"], alone["words"], strict=True):
            assert own["text"][word["start"] : word["end"]] == word["text"]
            of = [(each["text"], each["start"] + by) for each in expected["source"]]
            assert [(each["text"], each["start"]) for each in word["source"]] == of
            assert all(document[s["start"] : s["end"]] == s["text"] for s in word["source"])
        found += own["words"]
    assert [(word["text"], word["source"]) for word in whole["words"]] == [
        (word["text"], word["source"]) for word in found
    ]
    assert all(whole["text"][w["start"] : w["end"]] == w["text"] for w in whole["words"])


def test_a_stream_ends_with_the_same_words(spaced, ask):
    body = {"source": [SOURCE, "blue"], "words": True, "source_share": True}
    expected = ask("/v1/decode", **body)[1]["results"]
    events = events_of(spaced.post("/v1/decode", json={**body, "stream": True}).text)
    found = events[-1][1]["results"]
    for one, other in zip(found, expected, strict=True):
        pairs = zip(one["hypotheses"][0]["words"], other["hypotheses"][0]["words"], strict=True)
        for word, same in pairs:
            assert (word["text"], word["source"]) == (same["text"], same["source"])
            for name in ("entropy", "source_share"):
                assert word[name] == pytest.approx(same[name], abs=1e-4)


def test_words_that_could_take_too_much_are_refused(post, limit):
    limit(max_answer_bytes=8 * 64 * 1024 - 1)
    body = {"source": "read", "words": True, "temperature": 1, "num_hypotheses": 8}
    status, problem = post("/v1/decode", **body)
    assert (status, problem["errors"][0]["pointer"]) == (413, "/words")
    assert post("/v1/decode", **body, max_new_tokens=63)[0] == 200


def test_a_stream_goes_on_while_shares_are_computed(monkeypatch):
    monkeypatch.setattr(stream, "PING_AFTER", 1e-3)

    async def wait_for_shares():
        enough, count = asyncio.Event(), 0
        async for ping in stream.pings(enough.wait()):
            assert ping == stream.PING
            count += 1
            if count == 3:
                enough.set()
        return count

    assert asyncio.run(wait_for_shares()) >= 3


def test_a_stream_that_is_left_computes_no_shares(monkeypatch):
    monkeypatch.setattr(stream, "PING_AFTER", 1e-3)
    ended = []

    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def leave():
        sent = stream.pings(work())
        await anext(sent)
        await sent.aclose()
        await asyncio.sleep(0)  # the task gets its cancellation

    asyncio.run(leave())
    assert ended == ["cancelled"]
