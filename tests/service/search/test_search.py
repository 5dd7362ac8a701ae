import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.search.beam import Beam, BeamSearch, assign_rows
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
    search = BeamSearch(2, EOS, str)
    search.insert([SearchOptions(max_new_tokens=2, beam_size=2, num_hypotheses=2)], [(0,)])
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


def test_stop_ids_do_not_crowd_out_beams_that_go_on():
    search = BeamSearch(2, EOS, str)
    stops = frozenset([3, 4, 5])
    search.insert([SearchOptions(max_new_tokens=9, beam_size=2, stop_ids=stops)], [(0,)])
    probs = np.array([[0.2, 0.2, 0.2, 0.3, 0.1]])
    order = np.argsort(-probs, axis=1, kind="stable")[:, : search.needed.k]
    ids = np.array([[3, 4, 5, 6, 7]])
    candidates = Candidates(
        np.log(np.take_along_axis(probs, order, 1)).astype(np.float32),
        np.take_along_axis(ids, order, 1),
    )
    choice = search.advance(Candidates(*(np.repeat(array, 2, 0) for array in candidates[:2])))
    assert sorted(choice.tokens) == [6, 7]


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


def test_a_prefix_is_no_part_of_a_hypothesis_of_beams():
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
