"""Texts whose letters with marks would take long to compose are too large."""

import itertools
import time

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers

from service.errors import Invalid, TooLarge
from service.text.compose import takes_long, with_compose
from service.text.tokenizer import LONGEST_TOKEN, Tokenizer

LIMIT = 1024  # tokens
JAMO = itertools.product(range(0x1100, 0x1113), range(0x1161, 0x1176), range(0x11A8, 0x11C3))
SYLLABLES = ["".join(map(chr, jamo)) for jamo in JAMO]  # 10,773, each of three characters
LETTERS = [chr(code) for code in range(0x61, 0x7B)]
MARKS = [chr(code) for code in range(0x300, 0x340)]
MARKED = ["".join(each) for each in itertools.product(LETTERS, MARKS, MARKS[:16])]
LONG = {"syllables": "".join(SYLLABLES), "marks": "".join(MARKED[:20_000])}
QUICK = {
    "ASCII": "ab " * 20_000,
    "few syllables": "".join(SYLLABLES[:100] * 200),
    "few marks": "e\u0301a\u0300 " * 10_000,
    "a page of Korean": "".join(SYLLABLES[:1500]),
    "composed": "한국어 " * 10_000,
}


@pytest.fixture(scope="module")
def tokenizer():
    library = Library(models.WordLevel({"<unk>": 0, "a": 1}, "<unk>"))
    library.normalizer = with_compose(normalizers.NFKC())
    return Tokenizer(library, LIMIT, {0: "unknown"}, composes=True)


def read(tokenizer, text):
    """Return the seconds of CPU time that it takes to refuse a text, and the error."""
    started = time.process_time()
    with pytest.raises((Invalid, TooLarge)) as refused:
        tokenizer.encode(text, "/source")
    return time.process_time() - started, refused.value


@pytest.mark.parametrize("name", LONG)
def test_a_text_of_very_many_different_letters_with_marks_is_too_large(tokenizer, name):
    text = LONG[name][: LIMIT * LONGEST_TOKEN]
    assert takes_long(text)
    seconds, error = read(tokenizer, text)
    assert isinstance(error, TooLarge)
    assert "very many letters with marks" in error.detail
    assert seconds < 2


@pytest.mark.parametrize("name", QUICK)
def test_an_ordinary_text_is_read(tokenizer, name):
    assert not takes_long(QUICK[name])
    seconds, error = read(tokenizer, QUICK[name])
    assert isinstance(error, Invalid)
    assert seconds < 2


@pytest.mark.parametrize(("count", "large"), [(3640, False), (3641, True)])
def test_a_ligature_counts_as_the_letters_that_it_becomes(tokenizer, count, large):
    """Eighteen: 64 for each of the tokens that a text may have are read."""
    _, error = read(tokenizer, "\ufdfa" * count)
    assert isinstance(error, TooLarge) is large
