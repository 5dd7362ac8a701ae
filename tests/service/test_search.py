import numpy as np
import pytest

from service.search import Search


def advance(search, token, log_prob):
    return search.advance(np.array([[log_prob]], np.float32), np.array([[token]]))


def test_greedy_takes_the_best_until_eos():
    search = Search(forced_ids=[], eos_id=2, max_new_tokens=9)
    for token in (7, 5):
        choice = advance(search, token, -0.5)
        assert (choice.tokens.tolist(), choice.parents.tolist()) == ([token], [0])
        assert search.hypothesis is None
    advance(search, 2, -2.0)
    assert search.hypothesis is not None
    assert search.hypothesis.token_ids == [7, 5, 2]
    assert search.hypothesis.log_probs == [-0.5, -0.5, -2.0]
    assert search.hypothesis.finish_reason == "eos"
    assert search.hypothesis.score == pytest.approx(-1.0)


def test_the_limit_counts_eos():
    search = Search(forced_ids=[], eos_id=2, max_new_tokens=2)
    advance(search, 7, -1)
    advance(search, 7, -1)
    assert search.hypothesis is not None
    assert search.hypothesis.finish_reason == "length"


def test_forced_ids_are_read_and_neither_reported_nor_counted():
    search = Search(forced_ids=[8, 9], eos_id=2, max_new_tokens=1)
    assert advance(search, 2, -1).tokens.tolist() == [8]
    assert advance(search, 2, -1).tokens.tolist() == [9]
    advance(search, 4, -3)
    assert search.hypothesis is not None
    assert search.hypothesis.token_ids == [4]
