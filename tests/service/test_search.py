import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.search import Beam, SearchOptions, in_place, new_search

EOS = 2


def advance(search, token, log_prob):
    return search.advance(np.array([[log_prob]], np.float32), np.array([[token]]))


def greedy(limit, forced_ids=()):
    search = new_search(1, forced_ids, EOS)
    search.insert([SearchOptions(max_new_tokens=limit)])
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


def test_the_limit_counts_eos():
    search = greedy(2)
    advance(search, 7, -1)
    assert advance(search, 7, -1).ended == [0]
    assert search.hypotheses(0)[0].finish_reason == "length"


def test_forced_ids_are_read_and_neither_reported_nor_counted():
    search = greedy(1, forced_ids=[8, 9])
    assert advance(search, 2, -1).tokens.tolist() == [8]
    assert advance(search, 2, -1).tokens.tolist() == [9]
    assert advance(search, 4, -3).ended == [0]
    assert search.hypotheses(0)[0].token_ids == [4]


class Markov:
    """A language of five tokens, each of which depends on the one before; 0 starts it."""

    size = 5

    def __init__(self, seed):
        logits = 2 * np.random.default_rng(seed).standard_normal((self.size, self.size))
        self.log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))

    def search(self, forced_ids=(), **options):
        """Decodes two sources together, of which the second joins later, and returns the first's
        hypotheses after it checked that both are equal."""
        options = SearchOptions(**options)
        search = new_search(options.beam_size, forced_ids, EOS)
        k = min(search.candidates, self.size)
        tokens, found, names = np.zeros(0, np.int64), [], []
        for step in range(100):
            if step in (0, 2):
                search.insert([options])
                tokens = np.concatenate([tokens, np.zeros(options.beam_size, np.int64)])
                names.append(step)
            if not names:
                continue
            rows = self.log_probs[tokens]
            ids = np.argsort(-rows, axis=1, kind="stable")[:, :k]
            choice = search.advance(np.take_along_axis(rows, ids, 1).astype(np.float32), ids)
            tokens = choice.tokens
            found += [(names[i], search.hypotheses(i)) for i in choice.ended]
            keep = np.array([i for i in range(len(names)) if i not in choice.ended], int)
            search.compact(keep)
            names = [names[i] for i in keep]
            tokens = tokens.reshape(-1, options.beam_size)[keep].ravel()
            if len(found) == 2:
                first, second = (hypotheses for _, hypotheses in sorted(found, key=lambda x: x[0]))
                assert first == second
                return first
        raise AssertionError("the search does not end")

    def all_hypotheses(self, limit, penalty):
        """Every sequence that ends or reaches the limit, with its score."""
        going, ended = [([], 0.0)], []
        for _ in range(limit):
            longer = [
                ([*ids, token], total + self.log_probs[ids[-1] if ids else 0, token])
                for ids, total in going
                for token in range(self.size)
            ]
            ended += [each for each in longer if each[0][-1] == EOS]
            going = [each for each in longer if each[0][-1] != EOS]
        scored = [(total / len(ids) ** penalty, ids) for ids, total in ended + going]
        return sorted(scored, key=lambda each: -each[0])


@given(seed=st.integers(0, 999), penalty=st.sampled_from([0.0, 1.0, 2.0]))
def test_a_beam_that_holds_everything_finds_the_best_of_all(seed, penalty):
    language = Markov(seed)
    found = language.search(
        max_new_tokens=3,
        beam_size=64,
        num_hypotheses=5,
        length_penalty=penalty,
        early_stopping=False,
    )
    best = language.all_hypotheses(3, penalty)[:5]
    assert [h.score for h in found] == pytest.approx([score for score, _ in best], rel=1e-4)
    ties = [ids for score, ids in best if score == pytest.approx(best[0][0], rel=1e-6)]
    assert found[0].token_ids in ties  # the same transitions in another order score the same


@given(seed=st.integers(0, 999), beam_size=st.integers(2, 6), limit=st.integers(1, 8))
def test_what_beams_return(seed, beam_size, limit):
    """Best first, no two alike, each as probable as the language says, within the limit."""
    language = Markov(seed)
    found = language.search(max_new_tokens=limit, beam_size=beam_size, num_hypotheses=beam_size)
    assert len({tuple(h.token_ids) for h in found}) == len(found) <= beam_size
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    for hypothesis in found:
        before = [0, *hypothesis.token_ids[:-1]]
        said = language.log_probs[before, hypothesis.token_ids]
        np.testing.assert_allclose(hypothesis.log_probs, said, rtol=1e-5)
        ended = hypothesis.token_ids[-1] == EOS
        assert EOS not in hypothesis.token_ids[:-1]
        assert hypothesis.finish_reason == ("eos" if ended else "length")
        assert ended or len(hypothesis.token_ids) == limit


def test_forced_ids_are_no_part_of_a_hypothesis_of_beams():
    language = Markov(3)
    plain = language.search(max_new_tokens=5, beam_size=3, num_hypotheses=3)
    forced = language.search([4, EOS, 0], max_new_tokens=5, beam_size=3, num_hypotheses=3)
    assert forced == plain  # what they do to the cache is all they do


@given(rows=st.lists(st.integers(0, 5), max_size=6))
def test_the_first_beam_of_a_row_stands_in_its_place(rows):
    beams = [Beam(-float(i), row, i, 0.0) for i, row in enumerate(rows)]
    standing = in_place(beams, 6)
    assert sorted(beam for beam in standing if beam.total > -np.inf) == sorted(beams)
    for row in set(rows):
        assert standing[row] is beams[rows.index(row)]
