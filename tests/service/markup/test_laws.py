"""The laws of a document whose texts are translated, whatever the targets and their alignments are:
it is well-formed, has the tags of the source, and its texts are the targets."""

import random
import re
from collections import Counter
from html.parser import HTMLParser
from xml.etree import ElementTree

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.service.markup.grammar import CODE, EMPTY, Grammar, read, translate

VOID = {"img", "wbr"}
TAG = re.compile(r"<!--.*?-->|<[^>]*>")


class Reader(HTMLParser):
    """Reads HTML, and fails where a tag does not close the last one that is open."""

    def __init__(self, source):
        super().__init__()
        self.text, self.open = "", []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def text_of(source, kind):
    """The text of a document that is well-formed. Fails if it is not."""
    if kind == "html":
        return Reader(source).text
    return "".join(ElementTree.fromstring(f"<_>{source}</_>").itertext())


def paragraphs(source):
    return re.findall("<p>(.*?)</p>", source, re.DOTALL)


def check_laws(source, kind, seed):
    """Check the laws for a document of paragraphs without markup that breaks them."""
    document = read(source, kind)
    translated = translate(document, random.Random(seed))
    written = document.write(translated)
    assert Counter(TAG.findall(written)) == Counter(TAG.findall(source))
    targets = iter(translated)
    for before, after in zip(paragraphs(source), paragraphs(written), strict=True):
        was, now = text_of(before, kind), text_of(after, kind)
        assert now.count(CODE) == was.count(CODE)
        if not any(map(str.isalnum, was)):
            assert after == before
            continue
        target = next(targets).target
        if CODE not in before and not any(tag in before for tag in EMPTY[kind]):
            white = was[: len(was) - len(was.lstrip())], was[len(was.rstrip()) :]
            assert now == target.join(white)
        # What is shown in an empty place brings spaces, which keep it from touching words.
        assert "".join(now.replace(CODE, "").split()) == "".join(target.split())
    assert not list(targets)


@pytest.mark.parametrize("kind", ["html", "xml"])
def test_300_documents_keep_their_tags_and_get_the_text_of_their_targets(kind):
    for seed in range(300):
        check_laws(Grammar(kind, seed).document(), kind, seed)


@pytest.mark.parametrize("kind", ["html", "xml"])
@given(seed=st.integers(0, 1 << 32), chance=st.integers(0, 1 << 32))
def test_documents_keep_the_laws_by_chance(kind, seed, chance):
    check_laws(Grammar(kind, seed).document(), kind, chance)
