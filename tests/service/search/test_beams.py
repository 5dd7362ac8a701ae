"""Beam search finds the best of all hypotheses, and its beams keep to the options."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.search.beam import Beam, BeamSearch, assign_rows
from service.search.options import SearchOptions
from service.search.protocol import Candidates
from tests.service.search.markov import EOS, NO_SOURCE, Markov


@given(
    seed=st.integers(0, 999),
    penalty=st.sampled_from([0.0, 1.0, 2.0]),
    early_stopping=st.booleans(),
    forced=st.sampled_from([(), (3,), (1, 4)]),
)
def test_a_beam_that_holds_everything_finds_the_best_of_all(seed, penalty, early_stopping, forced):
    """85 sequences have at most three tokens, and the beam holds them all."""
    language = Markov(seed)
    found = language.search(
        forced,
        max_new_tokens=3,
        beam_size=85,
        num_hypotheses=5,
        length_penalty=penalty,
        early_stopping=early_stopping,
    )
    best = language.all_hypotheses(3, penalty, forced=forced)[:5]
    assert [h.score for h in found] == pytest.approx([score for score, _ in best], rel=1e-4)
    ties = [ids for score, ids in best if score == pytest.approx(best[0][0], rel=1e-6)]
    assert found[0].token_ids in ties  # the same transitions in another order score the same


@given(seed=st.integers(0, 999), beam_size=st.integers(2, 6), limit=st.integers(1, 8))
def test_beams_are_sorted_distinct_and_probable_as_the_language_says(seed, beam_size, limit):
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


def test_at_the_limit_a_beam_beats_a_hypothesis_that_ended_in_the_same_step():
    search = BeamSearch(2, (EOS,), str)
    search.insert(
        [SearchOptions(max_new_tokens=2, beam_size=2, num_hypotheses=2)], [(0,)], [NO_SOURCE]
    )
    first, second = [[-0.2, -1.6, -9, -9]] * 2, [[-0.3, -1.8, -2, -9], [-5, -6, -7, -8]]
    ids = np.array([[5, EOS, 6, 7]] * 2)
    search.advance(Candidates(np.array(first, np.float32), ids))
    assert search.advance(Candidates(np.array(second, np.float32), ids)).ended == [0]
    best, worst = search.hypotheses(0)
    assert (best.token_ids, best.finish_reason) == ([5, 5], "length")
    assert best.score == pytest.approx(-0.25)
    assert (worst.token_ids, worst.finish_reason) == ([5, EOS], "eos")


Targets = st.lists(st.lists(st.sampled_from([0, 1, 3, 4]), max_size=4), min_size=1, max_size=9)


@given(seed=st.integers(0, 999), targets=Targets, beam_size=st.integers(1, 6))
def test_constrained_beams_find_the_best_of_the_allowed(seed, targets, beam_size):
    """Greedy search need not find the best, but it stays among the allowed."""
    language = Markov(seed)
    allowed = tuple({(*target, EOS) for target in targets})
    found = language.search(
        max_new_tokens=5,
        beam_size=beam_size if beam_size == 1 else 16,
        num_hypotheses=beam_size,
        allowed_targets=allowed,
        early_stopping=False,
    )
    assert {tuple(h.token_ids) for h in found} <= set(allowed)
    assert {h.finish_reason for h in found} == {"eos"}
    if beam_size > 1:
        scores = [language.log_probs[[0, *ids[:-1]], ids].mean() for ids in map(list, allowed)]
        best = sorted(scores, reverse=True)[:beam_size]
        assert [h.score for h in found] == pytest.approx(best, rel=1e-4)


def penalized_beams(language, width, limit, penalty):
    """Return the best score of a plain beam search that penalizes log-probs, of the start token
    too."""
    going, ended = [([], 0.0)], []
    for length in range(1, limit + 1):
        longer = []
        for ids, total in going:
            log_probs = language.log_probs[ids[-1] if ids else 0].copy()
            log_probs[[*{0, *ids}]] *= penalty
            longer += [([*ids, token], total + log_probs[token]) for token in range(language.size)]
        longer.sort(key=lambda each: -each[1])
        ended += [each for each in longer[:width] if each[0][-1] == EOS]
        going = [each for each in longer[: 2 * width] if each[0][-1] != EOS][:width]
        if length == limit:
            ended += going
        if len(ended) >= width:
            break
    return max(total / len(ids) for ids, total in ended)


@given(
    seed=st.integers(0, 999), beam_size=st.integers(2, 4), penalty=st.sampled_from([0.7, 1.3, 3])
)
def test_beams_rank_by_penalized_log_probs(seed, beam_size, penalty):
    language = Markov(seed)
    (best,) = language.search(max_new_tokens=6, beam_size=beam_size, repetition_penalty=penalty)
    assert best.score == pytest.approx(penalized_beams(language, beam_size, 6, penalty), rel=1e-4)


@given(seed=st.integers(0, 999), penalty=st.sampled_from([0.0, 1.0]))
def test_beams_find_the_best_of_all_that_stop(seed, penalty):
    """Three of five tokens end a hypothesis, and the others must still be offered."""
    language = Markov(seed)
    found = language.search(
        max_new_tokens=3,
        beam_size=16,
        num_hypotheses=3,
        length_penalty=penalty,
        stop_ids=frozenset([3, 4]),
        early_stopping=False,
    )
    best = language.all_hypotheses(3, penalty, ends=(EOS, 3, 4))[:3]
    assert [h.score for h in found] == pytest.approx([score for score, _ in best], rel=1e-4)


@pytest.mark.parametrize("penalty", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(8))
def test_any_eos_ends_a_beam(seed, penalty):
    """Three of five tokens end a hypothesis, and the others must still be offered."""
    language = Markov(seed, eos_ids=(EOS, 3, 4))
    found = language.search(
        max_new_tokens=3,
        beam_size=16,
        num_hypotheses=3,
        length_penalty=penalty,
        early_stopping=False,
    )
    best = language.all_hypotheses(3, penalty, ends=(EOS, 3, 4))[:3]
    assert [h.score for h in found] == pytest.approx([score for score, _ in best], rel=1e-4)


@pytest.mark.parametrize("banned", [(), (9,)])
@pytest.mark.parametrize(("eos_ids", "stops"), [((EOS,), (3, 4, 5)), ((EOS, 3, 4, 5), ())])
def test_ends_do_not_crowd_out_beams_that_go_on(eos_ids, stops, banned):
    search, stops = BeamSearch(2, eos_ids, str), frozenset(stops)
    search.insert(
        [SearchOptions(max_new_tokens=9, beam_size=2, stop_ids=stops, suppress_tokens=banned)],
        [(0,)],
        [NO_SOURCE],
    )
    probs = np.array([[0.2, 0.2, 0.2, 0.3, 0.1]])
    order = np.argsort(-probs, axis=1, kind="stable")[:, : search.needed.k]
    ids = np.array([[3, 4, 5, 6, 7]])
    candidates = Candidates(
        np.log(np.take_along_axis(probs, order, 1)).astype(np.float32),
        np.take_along_axis(ids, order, 1),
    )
    choice = search.advance(Candidates(*(np.repeat(array, 2, 0) for array in candidates[:2])))
    assert sorted(choice.tokens) == [6, 7]


@pytest.mark.parametrize("banned", [(), (9,)])
def test_of_equal_beams_those_of_the_lowest_row_and_best_place_go_on(banned):
    search = BeamSearch(2, (EOS,), str)
    options = SearchOptions(max_new_tokens=9, beam_size=2, suppress_tokens=banned)
    search.insert([options], [(0,)], [NO_SOURCE])
    for first in (3, 6):  # the second step has a tie of six
        ids = np.tile(np.arange(first, first + 3), (2, 1))
        choice = search.advance(Candidates(np.full((2, 3), -1.0, np.float32), ids))
        assert choice.tokens.tolist() == [first, first + 1]
    assert choice.parents.tolist() == [0, 0]


def test_a_prefix_is_not_a_part_of_a_hypothesis_of_beams():
    language = Markov(3)
    plain = language.search(max_new_tokens=5, beam_size=3, num_hypotheses=3)
    prefixed = language.search(
        target_prefix=(4, EOS, 0), max_new_tokens=5, beam_size=3, num_hypotheses=3
    )
    assert prefixed == plain  # this language forgets all but the last token


@given(rows=st.lists(st.integers(0, 5), max_size=6))
def test_the_first_beam_that_continues_a_row_stays_in_it(rows):
    beams = [Beam(-float(i), row, i, 0.0) for i, row in enumerate(rows)]
    placed = assign_rows(beams, 6)
    assert sorted(beam for beam in placed if beam.total > -np.inf) == sorted(beams)
    for row in set(rows):
        assert placed[row] is beams[rows.index(row)]
