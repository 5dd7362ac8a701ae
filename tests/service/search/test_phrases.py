"""Beam search with required phrases finds the best of all targets that have them."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.search.options import SearchOptions
from service.search.phrases import Phrase, Requirement
from service.search.rules import log_softmax
from tests.service.search.markov import EOS, Markov

LETTERS = {0: "a", 1: "b", 3: "."}  # a phrase may start a word after 3, not after 0 and 1
Tokens = st.lists(st.sampled_from([0, 1, 3]), min_size=1, max_size=3).map(tuple)
Alternatives = st.lists(st.builds(Phrase, Tokens, st.booleans()), min_size=1, max_size=2)
Items = st.lists(Alternatives, min_size=1, max_size=3)
Prefixes = st.lists(st.sampled_from([0, 1, 3]), max_size=2).map(tuple)


class Lettered(Markov):
    """Has four tokens with texts, so that at most 121 hypotheses have up to four."""

    def __init__(self, seed, eos_ids=(EOS,)):
        super().__init__(seed, size=4, eos_ids=eos_ids)

    @staticmethod
    def detokenize(ids):
        return "".join(LETTERS.get(i, "") for i in ids)


def items_of(phrases):
    return tuple(Requirement("", tuple(each)) for each in phrases)


def is_there(phrase, ids):
    """Return whether a phrase is among these ids, and not inside a word if it starts one."""
    size = len(phrase.ids)
    return any(
        tuple(ids[i : i + size]) == phrase.ids
        and not (phrase.starts_word and i and ids[i - 1] in (0, 1))
        for i in range(len(ids) - size + 1)
    )


def lacking(phrases, ids):
    return tuple(
        number
        for number, alternatives in enumerate(phrases)
        if not any(is_there(phrase, ids) for phrase in alternatives)
    )


@settings(max_examples=500)
@example(
    1987, [[Phrase((1,))]], 4, 0.0, (), (EOS,)
)  # the best ends after few others have all phrases
@given(
    seed=st.integers(0, 9999),
    phrases=Items,
    limit=st.integers(1, 4),
    penalty=st.sampled_from([0.0, 1.0, 2.0]),
    prefix=Prefixes,
    ends=st.sampled_from([(EOS,), (EOS, 3)]),
)
def test_a_beam_that_holds_everything_finds_the_best_with_all_phrases(
    seed, phrases, limit, penalty, prefix, ends
):
    language = Lettered(seed, ends)
    (found,) = language.search(
        max_new_tokens=limit,
        beam_size=121,
        length_penalty=penalty,
        required=items_of(phrases),
        target_prefix=prefix,
    )
    every = language.all_hypotheses(limit, penalty, ends, prefix=prefix)
    best = [(score, ids) for score, ids in every if not lacking(phrases, [*prefix, *ids])]
    if not best:  # there is not enough room
        assert found.unmet == lacking(phrases, [*prefix, *found.token_ids]) != ()
        return
    assert found.unmet == ()
    assert found.score == pytest.approx(best[0][0], rel=1e-4)
    assert found.token_ids in [
        ids for score, ids in best if score == pytest.approx(best[0][0], rel=1e-6)
    ]


@settings(max_examples=300)
@given(
    seed=st.integers(0, 9999),
    phrases=Items,
    limit=st.integers(1, 14),
    beam_size=st.integers(2, 6),
    prefix=Prefixes,
    early_stopping=st.booleans(),
    ends=st.sampled_from([(EOS,), (EOS, 3)]),
)
def test_every_answer_has_all_phrases_or_says_what_it_lacks(
    seed, phrases, limit, beam_size, prefix, early_stopping, ends
):
    language = Lettered(seed, ends)
    found = language.search(
        max_new_tokens=limit,
        beam_size=beam_size,
        num_hypotheses=beam_size,
        required=items_of(phrases),
        target_prefix=prefix,
        early_stopping=early_stopping,
    )
    for hypothesis in found:
        assert hypothesis.unmet == lacking(phrases, [*prefix, *hypothesis.token_ids])
        assert hypothesis.finish_reason == "length" or not hypothesis.unmet
        before = [*(prefix[-1:] or [0]), *hypothesis.token_ids[:-1]]
        said = language.log_probs[before, hypothesis.token_ids]
        np.testing.assert_allclose(hypothesis.log_probs, said, rtol=1e-4)
    keys = [(len(hypothesis.unmet), -hypothesis.score) for hypothesis in found]
    assert keys == sorted(keys)
    every = [phrase for alternatives in phrases for phrase in alternatives]
    if any(phrase.starts_word or {*phrase.ids}.intersection(ends) for phrase in every):
        return  # there may be no place for it
    if limit >= sum(max(len(each.ids) for each in alternatives) for alternatives in phrases):
        assert found[0].unmet == ()


@given(
    seed=st.integers(0, 999),
    phrases=st.lists(
        st.lists(st.integers(3, 39), min_size=1, max_size=3, unique=True).map(tuple),
        min_size=1,
        max_size=3,
    ),
    options=st.sampled_from(
        [
            {"top_log_probs": 2},
            {"suppress_tokens": (0, 1)},
            {"suppress_tokens": (0, 1), "renormalize": True},
            {"repetition_penalty": 1.3},
            {"repetition_penalty": 0.7},
            {"stop_ids": frozenset([3, 4])},
            {"min_new_tokens": 12},
        ]
    ),
)
def test_phrases_of_improbable_tokens_are_met_whatever_the_other_options(seed, phrases, options):
    """Two beams have four candidates of 40 tokens, so most phrases are not among them."""
    language = Markov(seed, size=40)
    asked = {
        "max_new_tokens": 20,
        "beam_size": 2,
        "required": items_of([[Phrase(phrase)] for phrase in phrases]),
    }
    (plain,) = language.search(**asked)
    (ruled,) = language.search(**asked, **options)
    for found in (plain, ruled):
        assert found.unmet == ()
        assert lacking([[Phrase(phrase)] for phrase in phrases], found.token_ids) == ()
    before = [0, *plain.token_ids[:-1]]
    said = language.log_probs[before, plain.token_ids]
    np.testing.assert_allclose(plain.log_probs, said, rtol=1e-4)
    if "top_log_probs" in options:
        assert ruled.token_ids == plain.token_ids


class Sentence(Markov):
    """Wants to say 3, 4 and so on up to 14, and counts the steps of all rows."""

    def __init__(self, seed):
        super().__init__(seed, size=30)
        said = [*range(3, 15)]
        self.logits[[0, *said], [*said, EOS]] += 14
        self.log_probs = log_softmax(self.logits.astype(np.float64))
        self.row_steps = 0

    def candidates(self, tokens, k, logits):
        self.row_steps += len(tokens)
        return super().candidates(tokens, k, logits)

    def count_steps(self, phrases):
        """Return the steps of all rows together in a search with these phrases."""
        self.row_steps = 0
        required = items_of([[Phrase(phrase)] for phrase in phrases])
        options = SearchOptions(
            max_new_tokens=60, beam_size=4, early_stopping=False, required=required
        )
        ((found,),) = self.decode([options])
        assert found.token_ids == [*range(3, 15), EOS]
        return self.row_steps


@pytest.mark.parametrize("phrases", [[(9,)], [(4, 5), (9,)]])
def test_phrases_that_are_there_anyway_do_not_prolong_the_search(phrases):
    """Rows that lack a phrase where the model would have ended them must go on, but the search
    does not wait for other targets in their place."""
    languages = [Sentence(seed) for seed in range(20)]
    plain = sum(language.count_steps([]) for language in languages)
    found = sum(language.count_steps(phrases) for language in languages)
    assert found <= 1.2 * plain
