"""Searches end where they should, and their hypotheses keep to the options."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.search.beam import BeamSearch
from service.search.greedy import GreedySearch
from service.search.options import SearchOptions
from service.search.protocol import Candidates

EOS = 2


def advance(search, token, log_prob):
    return search.advance(Candidates(np.array([[log_prob]], np.float32), np.array([[token]])))


def greedy(limit, prefix=()):
    search = GreedySearch(1, EOS, str)
    search.insert([SearchOptions(max_new_tokens=limit, target_prefix=tuple(prefix))], [(0,)])
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


class Markov:
    """A language of a few tokens, each of which depends on the one before; 0 starts it."""

    def __init__(self, seed, size=5):
        self.size = size
        logits = 2 * np.random.default_rng(seed).standard_normal((size, size))
        self.logits = logits.astype(np.float32)
        self.log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))

    def search(self, forced=(), **options):
        """Decode one source twice, the second time two steps later, and return its hypotheses."""
        first, second = self.decode([SearchOptions(**options)] * 2, forced, joins=[0, 2])
        assert first == second
        return first

    def decode(self, requests, forced=(), joins=None):
        """Decode requests in one batch, which each joins at its step, and return the hypotheses of
        each. All requests must have as many rows and the same kind of search."""
        kind, rows = BeamSearch if requests[0].beam_size > 1 else GreedySearch, requests[0].rows
        search = kind(rows, EOS, str)
        joins = joins or [0] * len(requests)
        tokens, found, live = np.zeros(0, np.int64), {}, []
        for step in range(100):
            if new := [i for i, join in enumerate(joins) if join == step]:
                search.insert([requests[i] for i in new], [(0, *forced)] * len(new))
                tokens = np.concatenate([tokens, np.zeros(rows * len(new), np.int64)])
                live += new
            if not live:
                continue
            choice = search.advance(self.candidates(tokens, *search.needed))
            found |= {live[i]: search.hypotheses(i) for i in choice.ended}
            keep = np.array([i for i in range(len(live)) if i not in choice.ended], int)
            search.compact(keep)
            live = [live[i] for i in keep]
            tokens = choice.tokens.reshape(-1, rows)[keep].ravel()
            if len(found) == len(requests):
                return [found[i] for i in range(len(requests))]
        raise AssertionError("the search does not end")

    def candidates(self, tokens, k, logits):
        """Log-probs are rounded from float64 as a graph's may be: the search's own log-softmax of
        the float32 logits differs from them in the last bits."""
        log_probs = self.log_probs[tokens]  # (R, V)
        ids = np.argsort(-log_probs, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(log_probs, ids, 1).astype(np.float32)
        return Candidates(best, ids, self.logits[tokens] if logits else None)

    def all_hypotheses(self, limit, penalty, ends=(EOS,), forced=()):
        """Return every sequence that ends or reaches the limit, with its score, best first."""
        first = [0, *forced][-1]
        going, ended = [([], 0.0)], []
        for _ in range(limit):
            longer = [
                ([*ids, token], total + self.log_probs[ids[-1] if ids else first, token])
                for ids, total in going
                for token in range(self.size)
            ]
            ended += [each for each in longer if each[0][-1] in ends]
            going = [each for each in longer if each[0][-1] not in ends]
        scored = [
            (total / (len(forced) + len(ids)) ** penalty, ids) for ids, total in ended + going
        ]
        return sorted(scored, key=lambda each: -each[0])


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
            assert best[0][1] >= log_prob - 1e-6


def requests(rows, beams):
    """Options of one request whose search has so many rows."""
    kind = {"beam_size": st.just(rows if beams else 1), "num_hypotheses": st.just(rows)}
    sampling = {"temperature": st.just(0.7), "top_k": st.sampled_from([0, 5])}
    return st.builds(
        SearchOptions,
        max_new_tokens=st.integers(1, 8),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        no_repeat_ngram_size=st.integers(0, 2),
        suppress_tokens=st.lists(st.integers(3, 39), max_size=20).map(tuple),
        top_log_probs=st.integers(0, 3),
        **kind,
        **({} if beams or rows == 1 else sampling),
    )


Pairs = st.sampled_from([(1, False), (3, False), (3, True)]).flatmap(
    lambda kind: st.tuples(requests(*kind), requests(*kind))
)


@given(seed=st.integers(0, 999), pair=Pairs)
def test_a_neighbour_changes_no_bit(seed, pair):
    """A neighbour may make the batch read more candidates, or all logits."""
    language = Markov(seed, size=40)
    alone = [language.decode([request])[0] for request in pair]
    assert language.decode(pair) == alone


def test_a_hypothesis_ends_where_no_token_may_follow():
    for beam_size in (1, 2):
        (hypothesis,) = Markov(0).search(
            max_new_tokens=9, beam_size=beam_size, no_repeat_ngram_size=1, min_new_tokens=9
        )
        assert hypothesis.finish_reason == "stop"
        assert sorted(hypothesis.token_ids) == [1, 3, 4]  # 0 starts the target


def test_a_text_ends_a_hypothesis_in_the_middle_of_a_token():
    search = GreedySearch(1, EOS, lambda ids: "".join("abcde"[i] * 2 for i in ids))
    search.insert([SearchOptions(max_new_tokens=9, stop=("bd",))], [(0,)])
    assert advance(search, 1, -0.1).ended == []
    assert advance(search, 3, -0.1).ended == [0]
    (hypothesis,) = search.hypotheses(0)
    assert (hypothesis.token_ids, hypothesis.finish_reason) == ([1, 3], "stop")
