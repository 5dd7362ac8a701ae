"""Compare each option with Hugging Face's processor of the same name, then all together."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    LogitNormalization,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from service.search.options import SearchOptions
from service.search.rules import Allowed, Rules, log_softmax, penalize
from service.search.sampling import draw, inverse_cdf, nucleus, warp
from service.search.sequences import repeating

START, EOS, SIZE = 0, 2, 30
Histories = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def random_logits(seed, size=SIZE):
    return (3 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def processed(processor, history, logits):
    return processor(torch.tensor([history]), torch.tensor(logits)[None].clone())[0].numpy()


@given(history=Histories, seed=st.integers(0, 99), penalty=st.floats(0.5, 4))
def test_the_repetition_penalty(history, seed, penalty):
    logits = random_logits(seed)
    expected = processed(RepetitionPenaltyLogitsProcessor(penalty), history, logits)
    np.testing.assert_allclose(penalize(logits, np.unique(history), penalty), expected, rtol=1e-6)


@pytest.mark.parametrize("beam_size", [1, 2])
def test_nothing_is_normalized_if_all_tokens_of_a_shortlist_are_banned(beam_size):
    """Tokens that are not on the shortlist have a logit of -inf."""
    banned, logits = (EOS, 7), np.full(SIZE, -np.inf, np.float32)
    logits[[*banned]] = 1
    options = SearchOptions(
        max_new_tokens=9, beam_size=beam_size, suppress_tokens=banned, renormalize=True
    )
    rules = Rules(options, (START,), [EOS], str)
    found = rules.allowed(np.zeros(1), np.zeros(1, np.int64), logits, [])
    assert (found.log_probs == -np.inf).all()


@given(history=Histories, size=st.integers(1, 4))
def test_repeated_ngrams(history, size):
    expected = processed(NoRepeatNGramLogitsProcessor(size), history, np.zeros(SIZE, np.float32))
    assert repeating(history, size) == set(np.flatnonzero(np.isneginf(expected)))


def probabilities(log_probs, *options):
    """Return those that `warp` leaves, of all tokens."""
    places, probs = warp(log_probs, *options)
    full = np.zeros(len(log_probs))
    full[places] = probs
    return full / full.sum()


@given(
    seed=st.integers(0, 999),
    size=st.sampled_from([SIZE, 3000]),  # fewer and more tokens than are ranked at first
    temperature=st.floats(0.1, 5),
    top_k=st.integers(0, SIZE),
    top_p=st.floats(0.05, 1),
)
def test_probabilities_to_draw_from_are_those_of_hugging_face(
    seed, size, temperature, top_k, top_p
):
    logits = random_logits(seed, size)
    expected = processed(TemperatureLogitsWarper(temperature), [0], logits)
    if top_k:
        expected = processed(TopKLogitsWarper(top_k), [0], expected)
    if top_p < 1:
        expected = processed(TopPLogitsWarper(top_p), [0], expected)
    probs = torch.tensor(expected).softmax(-1).numpy()
    ours = probabilities(log_softmax(logits), temperature, top_k, top_p)
    # Their float32 sum of thousands of probabilities may end the nucleus a rare token sooner
    np.testing.assert_allclose(ours, probs, rtol=1e-4 if size == SIZE else 2e-3, atol=1e-5)


@given(
    seed=st.integers(0, 999),
    size=st.integers(1, 3000),
    width=st.sampled_from([0, 1e-4, 1, 10, 100]),  # equal, in one bin, in many, in the last
    top_p=st.floats(0.001, 0.999),
)
def test_bins_find_the_nucleus_that_sorting_finds(seed, size, width, top_p):
    scaled = (width * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)
    scaled -= scaled.max()
    probs = np.exp(scaled.astype(np.float64))
    best = np.argsort(-scaled, kind="stable")
    sums = np.cumsum(probs[best]) / probs.sum()
    found = nucleus(scaled, top_p)
    rounding = 1e-6  # of float32: the last token may be one more or less
    least, most = np.searchsorted(sums, [top_p - rounding, top_p + rounding])
    assert least < len(found) <= most + 1
    assert found.tolist() == sorted(best[: len(found)].tolist())


def test_the_lowest_temperature_leaves_the_best_token():
    places, probs = warp(log_softmax(random_logits(3)), 5e-324, 0, 1.0)
    assert places[probs > 0].tolist() == [random_logits(3).argmax()]


def test_draws_are_as_frequent_as_they_should_be():
    options = SearchOptions(max_new_tokens=1, temperature=0.7, top_k=8, top_p=0.9)
    rules, random = Rules(options, [START], (EOS,), str), np.random.default_rng(0)
    logits = random_logits(1)
    log_probs = log_softmax(logits)
    expected = probabilities(log_probs, 0.7, 8, 0.9)
    best = np.argsort(-log_probs)[:8]
    allowed = rules.allowed(log_probs[best], best, None, [])
    drawn = [allowed.ids[draw(allowed, options, random)] for _ in range(20_000)]
    frequencies = np.bincount(drawn, minlength=SIZE) / len(drawn)
    assert (frequencies[expected == 0] == 0).all()
    np.testing.assert_allclose(frequencies, expected, atol=0.015)


def test_a_draw_does_not_depend_on_the_order_of_the_tokens():
    options = SearchOptions(max_new_tokens=1, temperature=1.5, top_p=0.95)
    log_probs = log_softmax(random_logits(2, 2000))
    in_order = Allowed(log_probs, np.arange(2000), [])
    shuffle = np.random.default_rng(5).permutation(2000)
    shuffled = Allowed(log_probs[shuffle], shuffle, [])
    for seed in range(200):
        drawn = [
            each.ids[draw(each, options, np.random.default_rng(seed))]
            for each in (in_order, shuffled)
        ]
        assert drawn[0] == drawn[1]


@given(
    seed=st.integers(0, 999),
    size=st.integers(1, 1500),
    zeros=st.floats(0, 0.999),
    share=st.floats(0, 1, exclude_max=True),
)
def test_blocks_find_the_index_that_a_plain_sum_finds(seed, size, zeros, share):
    random = np.random.default_rng(seed)
    probs = np.where(random.random(size) < zeros, 0, random.random(size))
    probs[random.integers(size)] = 0.5
    sums = np.cumsum(probs)
    at_a_border = sums[int(share * size)] / sums[-1]
    near = (np.nextafter(at_a_border, 0), at_a_border, np.nextafter(at_a_border, 1))
    for each in (share, *(border for border in near if border < 1)):
        index = inverse_cdf(probs, each)
        assert probs[index] > 0
        assert sums[index] - probs[index] - 1e-9 <= each * sums[-1] <= sums[index] + 1e-9


Words = st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=3).map(tuple), max_size=9)
Options = st.fixed_dictionaries(
    {
        "min_new_tokens": st.integers(0, 6),
        "suppress_sequences": Words.map(tuple),
        "encoder_repetition_penalty": st.sampled_from([1.0, 1.0, 0.7, 1.5]),
        "encoder_no_repeat_ngram_size": st.integers(0, 3),
        "no_repeat_ngram_size": st.integers(0, 3),
        "suppress_tokens": st.lists(st.integers(0, 9), max_size=4).map(tuple),
        "repetition_penalty": st.sampled_from([0.7, 1.0, 1.5]),
        "target_prefix": st.lists(st.integers(3, 5), max_size=3).map(tuple),
        "renormalize": st.booleans(),
    }
)
NO_RULES = {
    "min_new_tokens": 0,
    "suppress_sequences": (),
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "no_repeat_ngram_size": 0,
    "suppress_tokens": (),
    "repetition_penalty": 1.0,
    "target_prefix": (),
    "renormalize": False,
}


@given(
    wanted=Options | st.just(NO_RULES),
    generated=Histories,
    source=Histories,
    eos_ids=st.sampled_from([[EOS], [EOS, 5, 29]]),
    seed=st.integers(0, 99),
    beam_size=st.integers(1, 4),
)
@settings(max_examples=200)
def test_tokens_that_may_follow_are_those_of_hugging_face(
    wanted, generated, source, eos_ids, seed, beam_size
):
    """With logits, exactly the tokens that the processors leave; with candidates, at least as many
    of the best of them as the search needs."""
    options = SearchOptions(max_new_tokens=64, beam_size=beam_size, **wanted)
    rules = Rules(options, [START], eos_ids, str).reading(np.array(source))
    logits, history = random_logits(seed), [START, *wanted["target_prefix"], *generated]
    read = torch.tensor([source])
    penalties = [
        EncoderRepetitionPenaltyLogitsProcessor(wanted["encoder_repetition_penalty"], read),
        RepetitionPenaltyLogitsProcessor(wanted["repetition_penalty"]),
    ]
    expected = log_softmax(logits) if beam_size > 1 else logits  # which the processors get
    for penalty in penalties:
        expected = processed(penalty, history, expected)
    expected = expected if beam_size > 1 else log_softmax(expected)
    start = 1 + len(wanted["target_prefix"])
    processors = [SuppressTokensLogitsProcessor([*wanted["suppress_tokens"]])]
    processors += [MinNewTokensLengthLogitsProcessor(start, wanted["min_new_tokens"], eos_ids)]
    if size := wanted["no_repeat_ngram_size"]:
        processors.append(NoRepeatNGramLogitsProcessor(size))
    if size := wanted["encoder_no_repeat_ngram_size"]:
        processors.append(EncoderNoRepeatNGramLogitsProcessor(size, read))
    if words := wanted["suppress_sequences"]:
        processors.append(NoBadWordsLogitsProcessor([*map(list, words)], eos_ids))
    if wanted["renormalize"]:
        processors.append(LogitNormalization())
    for processor in processors:
        expected = processed(processor, history, expected)
    log_probs = log_softmax(logits)
    order = np.argsort(-log_probs)
    found = rules.allowed(log_probs[order], order, logits, generated)
    np.testing.assert_allclose(found.log_probs, expected[found.ids], rtol=1e-4, atol=1e-5)
    may_follow = np.flatnonzero(np.isfinite(expected))
    if rules.candidates(len(generated)) is None:
        assert set(found.ids) == set(may_follow)
    else:
        # W beams may all continue this row, and each eos may be better than these
        needed = beam_size + len(eos_ids) if beam_size > 1 else 1
        best = -np.sort(-expected[may_follow])[:needed]
        np.testing.assert_allclose(
            -np.sort(-found.log_probs)[: len(best)], best, rtol=1e-4, atol=1e-5
        )


def test_nothing_is_normalized_again_where_nothing_acts():
    assert Rules(SearchOptions(max_new_tokens=9, renormalize=True), [START], (EOS,), str).plain


@pytest.mark.parametrize(
    ("option", "reads_logits"),
    [
        ({"suppress_tokens": (5,)}, False),
        ({"temperature": 1.0, "top_k": 5}, False),
        ({"top_log_probs": 20}, False),
        ({"temperature": 1.0}, True),
        ({"repetition_penalty": 1.1}, True),
        ({"repetition_penalty": 1.1, "beam_size": 4}, False),
        ({"repetition_penalty": 0.9, "beam_size": 4}, True),
        ({"allowed_targets": ((4, EOS),)}, True),
        ({"suppress_tokens": tuple(range(400))}, True),
        ({"suppress_tokens": (5,), "renormalize": True}, True),
        ({"suppress_sequences": ((5, 6), (5, 7), (4, 5, 6))}, False),
        ({"suppress_sequences": tuple((5, i) for i in range(400))}, True),
        ({"encoder_no_repeat_ngram_size": 3}, False),
        ({"encoder_repetition_penalty": 0.9}, True),
        ({"encoder_repetition_penalty": 0.9, "beam_size": 4}, False),
        ({"encoder_repetition_penalty": 1.1, "beam_size": 4}, True),
        ({"top_log_probs": 20, "renormalize": True}, False),
    ],
)
def test_logits_are_read_only_where_candidates_are_too_few(option, reads_logits):
    rules = Rules(SearchOptions(max_new_tokens=9, **option), [START], (EOS,), str)
    rules = rules.reading(np.array([4, 7, 4, 7, 9]))
    assert (rules.candidates(3) is None) == reads_logits
    assert not rules.plain
