"""Searches end where they should, and their hypotheses keep to the options."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.search.greedy import GreedySearch
from service.search.options import SearchOptions
from service.search.phrases import Phrase, Requirement
from service.search.protocol import Candidates
from service.search.rules import entropy
from tests.service.search.markov import EOS, NO_SOURCE, Markov, listed


def advance(search, token, log_prob):
    return search.advance(Candidates(np.array([[log_prob]], np.float32), np.array([[token]])))


def greedy(limit, prefix=()):
    search = GreedySearch(1, (EOS,), str)
    search.insert(
        [SearchOptions(max_new_tokens=limit, target_prefix=tuple(prefix))], [(0,)], [NO_SOURCE]
    )
    return search


def test_greedy_takes_the_best_until_eos():
    search = greedy(9)
    for token in (7, 5):
        choice = advance(search, token, -0.5)
        assert (choice.tokens.tolist(), choice.parents, choice.ended) == ([token], None, [])
    assert advance(search, EOS, -2.0).ended == [0]
    (hypothesis,) = search.hypotheses(0)
    assert hypothesis.token_ids == [7, 5, EOS]
    assert hypothesis.log_probs == [-0.5, -0.5, -2.0]
    assert hypothesis.finish_reason == "eos"
    assert hypothesis.score == pytest.approx(-1.0)


def test_start_ids_after_the_first_count_in_the_length_of_a_score():
    (hypothesis,) = Markov(0).search([3, 4], max_new_tokens=5, length_penalty=2.0)
    total, length = sum(hypothesis.log_probs), len(hypothesis.token_ids)
    assert hypothesis.score == pytest.approx(total / (2 + length) ** 2)


def test_the_limit_counts_eos():
    search = greedy(2)
    advance(search, 7, -1)
    assert advance(search, 7, -1).ended == [0]
    assert search.hypotheses(0)[0].finish_reason == "length"


def test_a_prefix_is_read_and_neither_reported_nor_counted():
    search = greedy(1, prefix=[8, 9])
    assert advance(search, 2, -1).tokens.tolist() == [8]
    assert advance(search, 2, -1).tokens.tolist() == [9]
    assert advance(search, 4, -3).ended == [0]
    assert search.hypotheses(0)[0].token_ids == [4]


@given(
    seed=st.integers(0, 999),
    rows=st.sampled_from([(1, 1), (3, 1), (1, 3)]),
    size=st.integers(0, 2),
    at_least=st.integers(0, 4),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_hypotheses_keep_to_the_options(seed, rows, size, at_least, temperature):
    beam_size, samples = rows
    temperature = 1.0 if samples > 1 else temperature if beam_size == 1 else 0.0
    found = Markov(seed).search(
        max_new_tokens=7,
        min_new_tokens=at_least,
        beam_size=beam_size,
        num_hypotheses=max(rows),
        no_repeat_ngram_size=size,
        suppress_tokens=(3,),
        stop_ids=frozenset([4]),
        temperature=temperature,
        top_log_probs=2,
    )
    assert found
    for hypothesis in found:
        ids = hypothesis.token_ids
        assert 3 not in ids
        assert 4 not in ids[:-1]
        assert EOS not in ids[:-1]
        ngrams = [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)] if size else []
        assert len(set(ngrams)) == len(ngrams)
        if hypothesis.finish_reason == "eos":
            assert len(ids) > at_least
        assert hypothesis.finish_reason != "length" or len(ids) == 7
        assert len(hypothesis.top_log_probs) == len(ids) == len(hypothesis.log_probs)
        for log_prob, best in zip(hypothesis.log_probs, hypothesis.top_log_probs, strict=True):
            assert len(best) == 2
            assert best["log_prob"][0] >= log_prob - 1e-6


@pytest.mark.parametrize("count", [1, 4, 7])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"suppress_tokens": (1, 3)},
        {"no_repeat_ngram_size": 1},
        {"beam_size": 3, "num_hypotheses": 3},
        {"temperature": 1.0, "num_hypotheses": 3, "seed": 1},
    ],
)
def test_alternatives_are_the_most_probable_tokens_of_five(count, options):
    """Whether allowed or not; those that a position lacks are impossible."""
    language = Markov(1)
    for hypothesis in language.search(max_new_tokens=6, top_log_probs=count, **options):
        log_probs = language.log_probs[[0, *hypothesis.token_ids[:-1]]]  # (T, 5)
        ids = np.argsort(-log_probs, 1)[:, :count]
        best, lacking = hypothesis.top_log_probs, max(0, count - 5)
        assert best.shape == (len(hypothesis.token_ids), count)
        np.testing.assert_array_equal(best["id"][:, : count - lacking], ids)
        expected = np.take_along_axis(log_probs, ids, 1)
        expected = np.pad(expected, [(0, 0), (0, lacking)], constant_values=-np.inf)
        np.testing.assert_allclose(best["log_prob"], expected, rtol=1e-6)


def requests(rows, beams):
    """Options of one request whose search has so many rows."""
    kind = {"beam_size": st.just(rows if beams else 1), "num_hypotheses": st.just(rows)}
    sampling = {"temperature": st.just(0.7), "top_k": st.sampled_from([0, 5])}
    return st.builds(  # a function, since `builds` would choose each field of a tuple
        lambda **chosen: SearchOptions(**chosen),
        max_new_tokens=st.integers(1, 8),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        no_repeat_ngram_size=st.integers(0, 2),
        suppress_tokens=st.lists(st.integers(3, 39), max_size=20).map(tuple),
        suppress_sequences=st.lists(st.tuples(*[st.integers(3, 39)] * 2), max_size=40).map(tuple),
        encoder_repetition_penalty=st.sampled_from([1.0, 1.0, 0.7, 1.3]),
        encoder_no_repeat_ngram_size=st.integers(0, 2),
        top_log_probs=st.integers(0, 3),
        **kind,
        **({} if beams or rows == 1 else sampling),
    )


Pairs = st.sampled_from([(1, False), (3, False), (3, True)]).flatmap(
    lambda kind: st.tuples(requests(*kind), requests(*kind))
)


Tokens = st.lists(st.integers(3, 39), max_size=9).map(lambda ids: np.array(ids, np.int64))


@given(
    seed=st.integers(0, 999),
    pair=Pairs,
    sources=st.lists(Tokens, min_size=2, max_size=2),
    eos_ids=st.sampled_from([(EOS,), (EOS, 7, 30)]),
)
def test_a_neighbour_changes_no_bit(seed, pair, sources, eos_ids):
    """A neighbour may make the batch read more candidates, or all logits."""
    language = Markov(seed, size=40, eos_ids=eos_ids)
    alone = [
        language.decode([request], sources=[source])[0]
        for request, source in zip(pair, sources, strict=True)
    ]
    together = language.decode(pair, sources=sources)
    assert list(map(listed, together)) == list(map(listed, alone))


@given(
    seed=st.integers(0, 999),
    rows=st.sampled_from([(1, 1), (3, 1), (1, 3)]),
    words=st.lists(st.lists(st.integers(0, 6), min_size=2, max_size=3).map(tuple), max_size=9),
    source=st.lists(st.integers(0, 6), max_size=9),
    size=st.integers(0, 3),
    at_least=st.integers(0, 4),
)
def test_no_sequence_is_completed_and_any_eos_ends(seed, rows, words, source, size, at_least):
    beam_size, samples = rows
    language = Markov(seed, size=7, eos_ids=(EOS, 5))
    found = language.search(
        source=np.array(source, np.int64),
        max_new_tokens=7,
        min_new_tokens=at_least,
        beam_size=beam_size,
        num_hypotheses=max(rows),
        suppress_sequences=tuple(words),
        encoder_no_repeat_ngram_size=size,
        target_prefix=(3, 4),
        temperature=1.0 if samples > 1 else 0.0,
    )
    banned = {*words, *(tuple(source[i : i + size]) for i in range(len(source) - size + 1))}
    for hypothesis in found:
        ids = hypothesis.token_ids
        read = [0, 3, 4, *ids]
        parts = {tuple(read[i:end]) for end in range(4, len(read) + 1) for i in range(end)}
        assert not parts & banned
        assert not {EOS, 5} & {*ids[:-1]}
        ended = ids[-1:] in ([EOS], [5])
        assert ended == (hypothesis.finish_reason == "eos")
        assert not ended or len(ids) > at_least


def test_a_hypothesis_ends_where_no_token_may_follow():
    for beam_size in (1, 2):
        (hypothesis,) = Markov(0).search(
            max_new_tokens=9, beam_size=beam_size, no_repeat_ngram_size=1, min_new_tokens=9
        )
        assert hypothesis.finish_reason == "stop"
        assert sorted(hypothesis.token_ids) == [1, 3, 4]  # 0 starts the target


def test_a_text_ends_a_hypothesis_in_the_middle_of_a_token():
    search = GreedySearch(1, (EOS,), lambda ids: "".join("abcde"[i] * 2 for i in ids))
    search.insert([SearchOptions(max_new_tokens=9, stop=("bd",))], [(0,)], [NO_SOURCE])
    assert advance(search, 1, -0.1).ended == []
    assert advance(search, 3, -0.1).ended == [0]
    (hypothesis,) = search.hypotheses(0)
    assert (hypothesis.token_ids, hypothesis.finish_reason) == ([1, 3], "stop")


@given(
    seed=st.integers(0, 999),
    options=st.sampled_from(
        [
            {},
            {"beam_size": 3, "num_hypotheses": 3},
            {"beam_size": 3, "num_hypotheses": 3, "required": (Requirement("1", (Phrase((1,)),)),)},
            {"temperature": 2.0, "num_hypotheses": 3, "top_k": 3, "seed": 1},
            {"repetition_penalty": 3.0, "suppress_tokens": (1,), "top_log_probs": 2},
        ]
    ),
)
def test_entropies_are_those_of_the_language_and_change_no_hypothesis(seed, options):
    language, options = Markov(seed), {"max_new_tokens": 5, **options}
    found = language.search(entropies=True, **options)
    plain = language.search(**options)
    assert listed(each._replace(entropies=[]) for each in found) == listed(plain)
    probs = np.exp(language.log_probs)
    expected = -(probs * language.log_probs).sum(1)  # (V,), of what follows each token
    for each in found:
        np.testing.assert_allclose(
            each.entropies, expected[[0, *each.token_ids[:-1]]], rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(("logits", "expected"), [([0, 0, -np.inf, 0], np.log(3)), ([3], 0)])
def test_impossible_tokens_add_no_entropy(logits, expected):
    assert entropy(np.array(logits, np.float32)) == pytest.approx(expected, abs=1e-7)
