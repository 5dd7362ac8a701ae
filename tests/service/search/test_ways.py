"""Phrases are written as tokens once, and remembered."""

import pytest

from service.bundle.manifest import load_bundle
from service.errors import Invalid
from service.search import ways
from service.search.ways import Ways
from service.text.opening import open_tokenizers


class Counting:
    """A tokenizer that counts the texts that it reads."""

    def __init__(self, target):
        self._target, self.count = target, 0

    def encode(self, *args, **options):
        self.count += 1
        return self._target.encode(*args, **options)

    def decode(self, ids):
        return self._target.decode(ids)


@pytest.fixture
def target(g2p):
    _, target = open_tokenizers(load_bundle(g2p))
    return Counting(target)


def test_a_phrase_that_comes_again_is_not_tokenized_again(target):
    written = Ways(target)
    assert written.size("EH1 D") > 0
    first, count = written.of("EH1 D", ""), target.count
    assert written.size("EH1 D") == 0
    assert (written.of("EH1 D", ""), target.count) == (first, count)
    assert Ways(target).of("EH1 D", "") == first


def test_few_phrases_are_remembered(target, monkeypatch):
    monkeypatch.setattr(ways, "REMEMBERED_PHRASES", 2)
    written = Ways(target)
    for text in ("K", "D", "EH1"):
        written.of(text, "")
    assert [written.size(text) > 0 for text in ("K", "D", "EH1")] == [True, True, False]


def test_each_refusal_names_its_own_place(target):
    written = Ways(target)
    for pointer in ("/required/0", "/required/1"):
        with pytest.raises(Invalid, match=f"^{pointer} has 'X1'"):
            written.of("X1", pointer)
