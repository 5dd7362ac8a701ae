"""How benchmarks judge words and numbers."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.confidence import judge_words
from benchmarks.kit.calibration import Judged, auc, reliability
from service.client import Hypothesis, Result

JUDGED = st.lists(
    st.builds(
        lambda value, right: Judged({"p": value / 8}, right), st.integers(0, 8), st.booleans()
    )
)


@given(JUDGED)
def test_a_rank_counts_all_pairs_of_right_and_wrong(judged):
    judged = [*judged, Judged({"p": 0.5}, True), Judged({"p": 0.5}, False)]
    pairs = product([each for each in judged if each.right], [e for e in judged if not e.right])
    points = [
        (one.measures["p"] > other.measures["p"]) + (one.measures["p"] == other.measures["p"]) / 2
        for one, other in pairs
    ]
    assert auc(judged, "p") == pytest.approx(sum(points) / len(points))


def test_bins_hold_equally_many_from_the_least():
    judged = [Judged({"p": i / 100}, i >= 50) for i in reversed(range(100))]
    found = [*reliability(judged, "p")]
    assert [said for said, _ in found] == pytest.approx([i / 10 + 0.045 for i in range(10)])
    assert [right for _, right in found] == [0] * 5 + [1] * 5


def test_words_are_judged_by_their_place_and_without_signs():
    numbers = {"log_prob": -0.5, "mean_log_prob": -0.5, "entropy": 1.0, "source_share": 0.9}
    words = [{"text": text, **numbers} for text in ("Де'ти,", "пошли'", "в", "шко'лу.")]
    result = Result(hypotheses=[Hypothesis("", 0.0, "eos", words=words)])
    known = {"дети": ["де'ти"], "пошли": ["по'шли"], "школу": ["шко'ла", "шко'лу"]}
    judged = [*judge_words("Дети, пошли в школу.", result, known)]
    assert [each.right for each in judged] == [True, False, True]
    assert judged[0].measures["entropy (negative)"] == -1.0
