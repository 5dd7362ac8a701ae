"""Where marks are put in a target whose alignment is known."""

import pytest

from service.errors import Invalid
from service.text.markup.document import Translated
from service.text.markup.placing import Pair, words_of
from service.text.sentences import Span
from tests.service.markup.grammar import read


def translate(source, target, pairs, kind="html"):
    """Put a target into the place of the only text of a document. `pairs` are of its n-th word and
    the n-th word of the target."""
    document = read(source, kind)
    (unit,) = document.units
    sources, targets = words_of(unit.text), words_of(target)
    aligned = [Pair(sources[here], targets[there]) for here, there in pairs]
    return document.write([Translated(unit.span, target, aligned)])


IN_ORDER = [(i, i) for i in range(9)]


@pytest.mark.parametrize(
    ("source", "target", "pairs", "written"),
    [
        (
            "the <b>red</b> house",
            "la maison rouge",
            [(0, 0), (1, 2), (2, 1)],
            "la maison <b>rouge</b>",
        ),
        (
            "<i>the <b>red</b> house</i>",
            "la maison rouge",
            [(1, 2)],
            "<i>la maison <b>rouge</b></i>",
        ),
        # The stretch with most of its words and fewest others, not all from the first to the last
        (
            "<b>a b c</b> d e f",
            "A x y B C z",
            [(0, 0), (1, 3), (2, 4), (3, 1), (4, 2)],
            "A x y <b>B C</b> z",
        ),
        # What crosses: the shorter one first, and none inside another
        (
            "<b>one</b> <i>two three</i>",
            "zwei eins drei",
            [(1, 0), (0, 1), (2, 2)],
            "<i>zwei</i> <b>eins</b> drei",
        ),
        # No word of it is in the target: beside the word that it came before
        ("one <b>two</b> three", "eins drei", [(0, 0), (2, 1)], "eins <b></b>drei"),
        ("one <b>two</b>", "", [], "<b></b>"),
        ("one<br>", "eins", [(0, 0)], "eins<br>"),
        ("<p>one<img> two</p>", "zwei eins", [(0, 1), (1, 0)], "<p>zwei eins<img></p>"),
        ("one <wbr>two", "zwei eins", [(0, 1), (1, 0)], "<wbr>zwei eins"),
        ("a <code>f(x)</code>, b", "B, A", [(0, 2), (1, 1), (2, 0)], "B, A <code>f(x)</code>"),
        ("press <kbd>x</kbd>.", "appuyez.", [(0, 0), (1, 1)], "appuyez <kbd>x</kbd>."),
        (
            "<a href='u'><code>f</code></a> runs",
            "läuft",
            [(0, 0)],
            '<a href="u"><code>f</code></a> läuft',
        ),
        ("{n} files of {name}", "fichiers de", [(0, 0), (1, 1)], "{n} fichiers de {name}"),
        (
            "%d of %(all)s files, %s!",
            "fichiers de, !",
            [(0, 1), (1, 0), (2, 2), (3, 3)],
            "%d %(all)s fichiers de, %s !",
        ),
        # A mark within a word takes tokens
        ("<b>un</b>do", "do", [], "<b></b>do"),
        # Scripts without spaces
        ("<b>two</b> words", "\u4e8c\u8a5e", [(0, 0), (1, 1)], "<b>\u4e8c</b>\u8a5e"),
        ("a<!-- c --> b", "B A", [(0, 1), (1, 0)], "B A<!-- c -->"),
    ],
)
def test_marks_go_where_their_words_went(source, target, pairs, written):
    assert translate(source, target, pairs) == written


def test_a_mark_within_a_word_goes_by_tokens():
    document = read("<b>un</b>do")
    pairs = [Pair(Span(0, 2), Span(3, 4)), Pair(Span(2, 4), Span(0, 3))]
    written = document.write([Translated(document.units[0].span, "Abcd", pairs)])
    assert written == "Abc<b>d</b>"


def test_attributes_that_people_read_are_translated():
    source = (
        '<img alt="a dog" src="a dog"><input placeholder="a {x}" title="7" aria-label="b &quot;">'
    )
    document = read(source)
    assert document.text.split("\n") == ["a dog", "a", "7", 'b "']
    targets = ['un "chien"', "un", "7", "c & d"]
    units = zip(document.units, targets, strict=True)
    written = document.write([Translated(unit.span, target, ()) for unit, target in units])
    assert 'alt="un &quot;chien&quot;" src="a dog"' in written
    assert 'placeholder="un {x}" title="7" aria-label="c &amp; d"' in written


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("one <b>two</b>", ["one two"]),
        ("<b>one</b>", ["one"]),
        (
            "<d>\n <p>one <b>two</b></p>\n <p><b>three</b> <i>four</i></p>\n</d>",
            ["one two", "three four"],
        ),
        ("a<![CDATA[ <b> &amp; ]]>c &#233;", ["a <b> &amp; c \u00e9"]),
        ('one <x translate="no">two <y>three</y></x> four', ["one four"]),
        ("<?xml version='1.0'?><!DOCTYPE d SYSTEM 'x'><d>one &unknown; two</d>", ["one two"]),
        ('<p alt="one">two</p>', ["two"]),
        ("<p/>", [""]),
    ],
)
def test_texts_of_xml_are_those_with_text_beside_their_elements(source, texts):
    document = read(source, "xml")
    assert document.text.split("\n") == texts


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("<b>x", "mismatched tag at line 1, column 5"),
        ("a\n<i>b</b>", "mismatched tag at line 2, column 7"),
        ("a & b", "not well-formed (invalid token) at line 1, column 4"),
        ("<!DOCTYPE d [<!ENTITY e 'f'>]><d>&e;</d>", "declarations in the document type"),
        ("a&nbsp;b", "undefined entity"),
        ("<a b='1' b='2'/>", "duplicate attribute"),
    ],
)
def test_what_is_not_xml_is_refused_with_its_place(source, part):
    with pytest.raises(Invalid) as refused:
        read(source, "xml")
    assert part in refused.value.faults[0].detail


def test_xml_gets_no_character_that_it_cannot_hold():
    document = read("one", "xml")
    assert document.write([Translated(Span(0, 3), "a\x00\x0bb", ())]) == "a\ufffd\ufffdb"
