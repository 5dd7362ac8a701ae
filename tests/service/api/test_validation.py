"""Search options, through the engine and through HTTP."""

import random
import shutil

import numpy as np
import pytest

from service.bundle.manifest import load_bundle
from service.engine.engine import Engine
from service.engine.scheduler import Job
from service.search.options import SearchOptions
from service.settings.settings import Precision, Provider, Settings
from service.wire import Entry
from tests.conftest import edit_manifest, edit_tokenizer, opened, sender

PAIRS = [(first, second) for first in range(4, 40) for second in range(4, 40)]


def draw(random_):
    """Return a random source, and random options that can be combined."""
    beam_size = random_.choice([1, 1, 1, 2, 4])
    temperature = random_.choice([0.0, 1.0]) if beam_size == 1 else 0.0
    rows = beam_size if beam_size > 1 else random_.randint(1, 3) if temperature else 1
    return random_.choices(range(4, 31), k=random_.randint(1, 12)), SearchOptions(
        max_new_tokens=random_.randint(6, 24),
        min_new_tokens=random_.choice([0, 0, 5]),
        beam_size=beam_size,
        num_hypotheses=rows,
        repetition_penalty=random_.choice([1.0, 1.0, 1.3]),
        no_repeat_ngram_size=random_.choice([0, 0, 1, 2]),
        suppress_tokens=tuple(random_.sample(range(4, 40), random_.choice([0, 0, 5]))),
        suppress_sequences=random_.choice([(), tuple(PAIRS[random_.randint(0, 99) :: 30])]),
        encoder_repetition_penalty=random_.choice([1.0, 1.0, 0.8, 1.2]),
        encoder_no_repeat_ngram_size=random_.choice([0, 0, 1, 2]),
        temperature=temperature,
        top_k=random_.choice([0, 5]),
        top_p=random_.choice([1.0, 0.9]),
        seed=random_.randint(0, 99),
        target_prefix=tuple(random_.choices(range(4, 40), k=random_.choice([0, 0, 2]))),
        stop=random_.choice([(), (), ("N",)]),
        top_log_probs=random_.choice([0, 3]),
    )


@pytest.mark.parametrize("count", [120, pytest.param(400, marks=pytest.mark.long)])
def test_any_options_give_the_same_answer_alone_and_in_any_batch(g2p, count):
    """At int8. A few may differ: where two tokens are about as probable, rounding decides."""
    random_ = random.Random(0)
    wanted = [draw(random_) for _ in range(count)]
    settings = Settings(provider=Provider.cpu, precision=Precision.int8, threads=2)
    engine = Engine(load_bundle(g2p), settings)
    engine.start()
    together = [Job(Entry(np.array(source), options)) for source, options in wanted]
    engine.queue.put(together)
    alone = [Job(one.entry) for one in together]
    for job in alone:
        engine.queue.put([job])
        job.result.result(60)
    engine.close()
    different = 0
    for one, other in zip(together, alone, strict=True):
        ours, theirs = (each.result.result(0).hypotheses for each in (one, other))
        assert len(ours) == one.entry.search.num_hypotheses
        for hypothesis, single in zip(ours, theirs, strict=True):
            check(hypothesis, one.entry.search, one.entry.source_ids.tolist())
            if hypothesis.token_ids == single.token_ids:
                np.testing.assert_allclose(hypothesis.log_probs, single.log_probs, atol=2e-2)
            else:
                different += 1
    assert different <= 2


def check(hypothesis, options, source):
    ids, size = hypothesis.token_ids, options.no_repeat_ngram_size
    whole = [*options.target_prefix, *ids]
    assert not set(ids) & set(options.suppress_tokens)
    generated = range(len(options.target_prefix), len(whole))
    assert not {tuple(whole[i - 1 : i + 1]) for i in generated} & {*options.suppress_sequences}
    if of_source := options.encoder_no_repeat_ngram_size:
        banned = {tuple(source[i : i + of_source]) for i in range(len(source) - of_source + 1)}
        assert not {tuple(whole[i - of_source + 1 : i + 1]) for i in generated} & banned
    assert len(ids) <= options.max_new_tokens
    assert hypothesis.finish_reason != "eos" or len(ids) > options.min_new_tokens
    if size:
        ngrams = [tuple(whole[i : i + size]) for i in range(len(whole) - size + 1)]
        given = len(options.target_prefix) - size + 1  # these may repeat, they were given
        assert len(set(ngrams)) >= len(ngrams) - max(0, given)


REFUSED = [
    ({"temperature": 1.0, "beam_size": 2}, "/temperature"),
    ({"top_k": 3}, "/top_k"),
    ({"top_p": 0.5}, "/top_p"),
    ({"seed": 1}, "/seed"),
    ({"num_hypotheses": 2}, "/num_hypotheses"),
    ({"min_new_tokens": 5, "max_new_tokens": 4}, "/min_new_tokens"),
    ({"max_new_tokens": 64, "target_prefix": "N"}, "/max_new_tokens"),
    ({"target_prefix": "N " * 63 + "N"}, "/target_prefix"),
    ({"target_prefix": [10**6]}, "/target_prefix/0"),
    ({"target_prefix": 3}, "/target_prefix"),
    ({"target_prefix": [4, 2]}, "/target_prefix/1"),
    ({"repetition_penalty": 1e-300}, "/repetition_penalty"),
    ({"top_p": 1.5}, "/top_p"),
    ({"suppress_tokens": [4, -1]}, "/suppress_tokens/1"),
    ({"suppress_tokens": [*range(73)]}, "/suppress_tokens"),
    ({"suppress_tokens": [4, [5, 73]]}, "/suppress_tokens/1/1"),
    ({"suppress_tokens": [4, []]}, "/suppress_tokens/1"),
    ({"suppress_tokens": [[4] * 65]}, "/suppress_tokens/0"),
    ({"suppress_tokens": [[4], "5"]}, "/suppress_tokens/1"),
    ({"suppress_tokens": [4, "5"]}, "/suppress_tokens/1"),
    ({"encoder_no_repeat_ngram_size": 2}, "/encoder_no_repeat_ngram_size"),
    ({"encoder_repetition_penalty": 1.2}, "/encoder_repetition_penalty"),
    ({"stop": ""}, "/stop"),
    ({"stop": ["N", ""]}, "/stop/1"),
    ({"stop": ["N", 10**6]}, "/stop/1"),
    ({"stop": {}}, "/stop"),
    ({"allowed_targets": []}, "/allowed_targets"),
    ({"allowed_targets": ["D", "naïve"]}, "/allowed_targets/1"),
    ({"allowed_targets": ["D D D"], "max_new_tokens": 3}, "/allowed_targets/0"),
    ({"allowed_targets": ["D"], "target_prefix": "N"}, "/allowed_targets"),
    ({"allowed_targets": ["D"], "min_new_tokens": 1}, "/min_new_tokens"),
    ({"allowed_targets": ["D"], "stop": "D"}, "/stop"),
    ({"repetition_penalty": 0}, "/repetition_penalty"),
    ({"top_log_probs": 21}, "/top_log_probs"),
]


@pytest.mark.parametrize(("options", "pointer"), REFUSED)
def test_options_that_contradict_each_other_are_refused_by_name(post, options, pointer):
    status, problem = post("/v1/decode", source="heed", **options)
    assert (status, problem["code"]) == (422, "invalid")
    assert problem["errors"][0]["pointer"] == pointer


def decode(post, source, **options):
    status, answer = post("/v1/decode", source=source, **options)
    assert status == 200, answer
    return answer["results"][0]["hypotheses"]


def test_samples_of_a_seed_are_the_same_whatever_comes_with_them(post):
    options = {"temperature": 1.2, "num_hypotheses": 4, "seed": 7}
    one = decode(post, "transformer", **options)
    assert one == decode(post, "transformer", **options)
    status, many = post("/v1/decode", source=["a", "transformer", "heed"] * 5, **options)
    assert status == 200
    assert [h["text"] for h in many["results"][4]["hypotheses"]] == [h["text"] for h in one]
    assert len({h["text"] for h in one}) > 1
    assert decode(post, "transformer", **{**options, "num_hypotheses": 2})[1] == one[1]


def test_samples_hold_no_special_token_but_eos(post):
    """Even at a temperature where all tokens are about as probable."""
    found = decode(post, "transformer", temperature=90.0, seed=1, num_hypotheses=32)
    drawn = {token_id for hypothesis in found for token_id in hypothesis["token_ids"]}
    assert not drawn & {0, 1, 3}
    assert len(drawn) > 50


def test_the_coldest_sample_is_the_best_token(post):
    (cold,) = decode(post, "transformer", temperature=1e-310)
    (greedy,) = decode(post, "transformer")
    assert cold["token_ids"] == greedy["token_ids"]


def test_more_rows_than_the_queue_holds_are_too_large(post):
    body = {"source": ["a"] * 256, "temperature": 1.0, "num_hypotheses": 32}
    status, problem = post("/v1/decode", **body)
    assert (status, problem["code"]) == (413, "too_large")
    assert "8192 rows" in problem["detail"]
    assert "the limit is 4096" in problem["detail"]


def test_samples_without_a_seed_differ(post):
    texts = {decode(post, "transformer", temperature=3.0)[0]["text"] for _ in range(4)}
    assert len(texts) > 1


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_prefix_begins_the_text_and_is_not_among_the_tokens(post, beam_size):
    (plain,) = decode(post, "transformer", beam_size=beam_size)
    (text,) = decode(post, "transformer", beam_size=beam_size, target_prefix="T R EY1")
    (ids,) = decode(post, "transformer", beam_size=beam_size, target_prefix=[6, 9, 15])
    assert text["text"].startswith("T R EY1 N")
    assert text["tokens"][0] == "N"
    assert len(text["tokens"]) == len(text["log_probs"])
    assert text["score"] == pytest.approx(np.mean(text["log_probs"]), rel=1e-4)
    (same,) = decode(post, "transformer", beam_size=beam_size, target_prefix=plain["tokens"][0])
    assert same["text"] == plain["text"]
    np.testing.assert_allclose(same["log_probs"], plain["log_probs"][1:], atol=1e-4)
    assert len(ids["text"].split()) == 3 + len(ids["tokens"]) - 1


def test_attention_after_a_prefix_has_a_row_for_each_generated_token(post):
    body = {"source": "ax", "attention": {"kinds": ["decoder", "cross"]}}
    status, answer = post("/v1/attention", **body, target_prefix="AE1 K")
    assert status == 200
    (result,) = answer["results"]
    _, whole = post("/v1/attention", **body, target=result["target"])
    for block, every in zip(result["attention"], whole["results"][0]["attention"], strict=True):
        assert [row["text"] for row in block["rows"]] == ["S", "<eos>"]
        assert block["rows"] == every["rows"][2:]
        assert block["columns"] == every["columns"]
        np.testing.assert_allclose(block["data"], np.array(every["data"])[:, :, 2:], atol=1e-5)


def test_answers_stay_among_the_allowed_targets(post):
    allowed = ["R EH1 D", "R IY1 D", "K AE1 T"]
    found = decode(post, "read", allowed_targets=allowed, beam_size=4, num_hypotheses=4)
    assert sorted(h["text"] for h in found) == sorted(allowed)
    assert found[-1]["text"] == "K AE1 T"
    (after,) = decode(post, "read", allowed_targets=allowed, target_prefix="K")
    assert after["text"] == "K AE1 T"


@pytest.fixture(scope="module")
def reader(tiny, tmp_path_factory):
    """POST to a model that reads unknown letters, as converted ones do: (path, **body)."""
    bundle = shutil.copytree(tiny, tmp_path_factory.mktemp("reader") / "reader")

    def forget_unknown(tokenizer):
        added = tokenizer["added_tokens"]
        tokenizer["added_tokens"] = [each for each in added if each["content"] != "<unk>"]

    edit_manifest(bundle, unknown_id=None)
    edit_tokenizer(bundle, "target.tokenizer.json", forget_unknown)
    with opened(bundle) as client:
        yield sender(client, source="red")


@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        ({"allowed_targets": ["ab", "Øa日b"]}, "/allowed_targets/1"),
        ({"target_prefix": "Øa日b"}, "/target_prefix"),
    ],
)
def test_unknown_letters_are_refused_where_the_answer_must_hold_them(reader, options, pointer):
    status, problem = reader("/v1/decode", **options)
    assert status == 422
    said = "has 'Ø' at offset 0, '日' at offset 2, which the vocabulary lacks: "
    assert problem["detail"].startswith(f"{pointer} {said}")


def test_targets_with_unknown_letters_have_a_score(reader):
    status, answer = reader("/v1/score", target="Øa")
    assert status == 200
    assert answer["results"][0]["tokens"] == ["<unk>", "a", "<eos>"]


@pytest.mark.parametrize("options", [{"allowed_targets": ["ab"]}, {"target_prefix": "ab"}])
def test_known_letters_begin_the_answer(reader, options):
    (found,) = decode(reader, "red", **options)
    assert found["text"].startswith("ab")


@pytest.mark.parametrize("beam_size", [1, 3])
def test_stops_are_kept_and_named(post, beam_size):
    found = decode(post, "banana", beam_size=beam_size, stop=["AE1 N", 4], num_hypotheses=beam_size)
    reasons = {h["finish_reason"] for h in found}
    assert "stop" in reasons
    for hypothesis in found:
        if hypothesis["finish_reason"] == "stop":
            ends = hypothesis["text"].endswith("AE1 N"), hypothesis["token_ids"][-1] == 4
            assert any(ends)


def test_alternatives_stand_with_each_token(post):
    for options in ({}, {"beam_size": 3}, {"temperature": 1.0, "seed": 1}):
        (hypothesis,) = decode(post, "heed", top_log_probs=3, **options)
        assert len(hypothesis["top_log_probs"]) == len(hypothesis["tokens"])
        fields = (hypothesis[name] for name in ("token_ids", "log_probs", "top_log_probs"))
        for token_id, log_prob, best in zip(*fields, strict=True):
            log_probs = [each["log_prob"] for each in best]
            assert log_probs == sorted(log_probs, reverse=True)
            named = {each["id"]: each["log_prob"] for each in best}
            assert named.get(token_id, log_prob) == pytest.approx(log_prob, abs=1e-4)
