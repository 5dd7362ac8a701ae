"""Words of texts, and pairs of words from pairs of tokens."""

import numpy as np
import pytest

from service.attention import align_steps, pair_tokens, pair_words
from service.bundle.alignment import AlignedHeads
from service.text.tokens import Token, Tokens
from service.text.words import find_words
from tests.conftest import CANDIDATE


def text_of(text, *spans):
    """A text with a token for each span, and a special one for None."""
    tokens = [Token("", i, *(span or (None, None))) for i, span in enumerate(spans)]
    return Tokens.of(text, tokens)


@pytest.mark.parametrize(
    ("text", "spans", "words"),
    [
        ("ab cd.", [(0, 1), (1, 2), (3, 5), (5, 6)], {"ab": [0, 1], "cd.": [2, 3]}),
        ("  ab\n c ", [None, (2, 4), (6, 7), None], {"ab": [1], "c": [2]}),
        ("ab cd", [(0, 4), (4, 5)], {"ab": [0], "cd": [0, 1]}),  # a token over a space
        ("a b", [(0, 0), (0, 1), (1, 2), (2, 2), (2, 3)], {"a": [0, 1], "b": [3, 4]}),  # bytes
        ("a b", [(0, 1), (1, 1), (2, 3)], {"a": [0], "b": [1, 2]}),  # bytes after a space
        ("我们 ab去", [(0, 2), (3, 5), (5, 6)], {"我们": [0], "ab": [1], "去": [2]}),
        ("我们去", [(0, 1), (1, 1), (1, 2), (2, 3)], {"我": [0], "们": [1, 2], "去": [3]}),
        ("don't", [(0, 3), (3, 4), (4, 5)], {"don't": [0, 1, 2]}),
        (" ", [(0, 1)], {}),
        ("", [None], {}),
    ],
)
def test_words_and_their_tokens(text, spans, words):
    found = find_words(text_of(text, *spans))
    assert {word.text: word.tokens for word in found} == words
    assert [text[word.start : word.end] for word in found] == [*words]


def test_words_are_aligned_if_any_of_their_tokens_are():
    """Many to many: two words become one, and one becomes two."""
    source = find_words(text_of("in dem Haus", None, (0, 2), (3, 6), (7, 9), (9, 11)))
    target = find_words(text_of("im house s", (0, 1), (1, 2), (3, 8), (9, 10), None))
    pairs = np.array([[1, 0], [2, 1], [3, 2], [4, 2], [4, 3]])
    assert pair_words(pairs, source, target).tolist() == [[0, 0], [1, 0], [2, 1], [2, 2]]
    assert pair_words(pairs[:0], source, target).shape == (0, 2)


def test_special_tokens_are_in_no_pair():
    weights = np.array([[0.9, 0.1, 0.0], [0.1, 0.3, 0.6], [0.0, 0.0, 1.0]], np.float32)
    source, target = text_of("ab", None, (0, 1), (1, 2)), text_of("xy", (0, 1), (1, 2), None)
    assert pair_tokens(weights, target.tokens, source.tokens).tolist() == [[1, 0], [2, 1]]
    several = pair_tokens(weights, target.tokens, source.tokens, threshold=0.2, first=5)
    assert several.tolist() == [[1, 6], [2, 6]]


@pytest.mark.parametrize("shift", [0, 1])
def test_steps_of_an_alignment(shift):
    cross = np.random.default_rng(0).random((2, 3, 7, 4), np.float32)
    alignment = AlignedHeads.model_validate(
        {**CANDIDATE, "sources": 1, "layers": [1, 0], "heads": [2], "shift": shift}
    )
    mean = (cross[0, 2] + cross[1, 2]) / 2
    found = align_steps(alignment, cross, 2, 4)
    np.testing.assert_allclose(found, mean[2 + shift : 6 + shift], rtol=1e-6)
