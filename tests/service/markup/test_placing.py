"""Where marks are put in a target whose alignment is known."""

import re
import time
from contextlib import suppress

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from service.errors import Invalid, TooLarge
from service.text.markup.document import Translated, check_markup
from service.text.markup.events import escape
from service.text.markup.placing import PlacePair, best_sum, place, words_of
from service.text.markup.unit import Mark
from service.text.sentences import Span
from tests.service.markup.grammar import read


def translate(source, target, pairs, kind="html"):
    """Put a target into the place of the only text of a document. `pairs` are of its n-th word and
    the n-th word of the target."""
    document = read(source, kind)
    (unit,) = document.units
    sources, targets = words_of(unit.text), words_of(target)
    aligned = [PlacePair(sources[here], targets[there]) for here, there in pairs]
    return document.write([Translated(unit.span, target, aligned)])


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
        ("<b>two</b> words", "\U00020bb7\U00020b9f", [(0, 0)], "<b>\U00020bb7</b>\U00020b9f"),
        ("a<!-- c --> b", "B A", [(0, 1), (1, 0)], "B A<!-- c -->"),
    ],
)
def test_marks_go_where_their_words_went(source, target, pairs, written):
    assert translate(source, target, pairs) == written


def test_a_mark_within_a_word_goes_by_tokens():
    document = read("<b>un</b>do")
    pairs = [PlacePair(Span(0, 2), Span(3, 4)), PlacePair(Span(2, 4), Span(0, 3))]
    written = document.write([Translated(document.units[0].span, "Abcd", pairs)])
    assert written == "Abc<b>d</b>"


@pytest.mark.parametrize(
    ("text", "at", "target", "pairs", "written"),
    [
        ("ab cd", 3, "X .", [((2, 3), (2, 3))], ["X .", 7]),  # a space with a sign
        ("to be or", 6, "X y", [((0, 5), (0, 1))], ["X", 7, " y"]),  # a token of two words
        ("ab , cd", 3, "X .", [((0, 2), (0, 1)), ((2, 3), (2, 3))], ["X", 7, " ."]),
        ("\u00a0 ab", 0, "X", [((0, 1), (0, 1))], [7, "X"]),  # no word before it
        (", ab", 2, "- X", [((0, 1), (0, 0)), ((1, 2), (0, 1))], ["-", 7, " X"]),
        ("ab", 1, "X", [((0, 1), (0, 0))], ["X", 7]),  # no token of the target
    ],
)
def test_pairs_of_places_without_a_word_find_a_place(text, at, target, pairs, written):
    mark = Mark(at, at, [7], "", None)
    aligned = [PlacePair(Span(*source), Span(*there)) for source, there in pairs]
    found = place(text, [mark], target, aligned, escape)
    assert [each for each in found if each] == written


@given(
    gains=st.lists(st.sampled_from([-1, -1 / 3, 0, 1 / 3, 0.501, 1.001]), min_size=1, max_size=12)
)
def test_the_best_stretch_has_the_largest_sum_of_all(gains):
    """The first that ends of the largest, and the shortest of these."""
    ends = range(1, len(gains) + 1)
    sums = {
        Span(start, end): round(sum(gains[start:end]), 6) for end in ends for start in range(end)
    }
    best = max(sums, key=lambda span: (sums[span], -span.end, span.start))
    assert best_sum(np.array(gains)) == (best if sums[best] > 0 else None)


def test_elements_side_by_side_do_not_overlap_whatever_they_attend_to():
    """The words of three elements went to the same nine words, those of each to other ones most."""
    source = "<i>one two</i> <b>three four</b> <u>five six</u>"
    target = "a b c d e f g h i"
    own = [(2 * k + j, 3 * k + i) for k in range(3) for i in range(3) for j in range(2)]
    strays = [(0, 8), (5, 0), (3, 1), (1, 4)]
    written = translate(source, target, own + strays)
    assert re.sub("<.*?>", "", written) == target
    assert written == "<i>a b c</i> <b>d e f</b> <u>g h i</u>"


@given(data=st.data())
def test_any_pairs_of_places_find_places(data):
    text, target = (data.draw(st.text("ab ,\u4e2d\u00a0", max_size=9)) for _ in range(2))

    def span(size):
        return Span(*sorted(data.draw(st.tuples(*[st.integers(0, size)] * 2))))

    pairs = [
        PlacePair(span(len(text)), span(len(target))) for _ in range(data.draw(st.integers(0, 6)))
    ]
    ends = sorted(span(len(text)) for _ in range(data.draw(st.integers(1, 4))))
    marks = [Mark(*each, ["<"], ">" if each.end > each.start else "", None) for each in ends[:1]]
    marks += [Mark(each.start, each.start, ["_"], "", None) for each in ends]
    written = "".join(map(str, place(text, marks, target, pairs, str)))
    assert written.count("_") == len(ends)
    assert "".join(re.sub("[<>_]", "", written).split()) == "".join(target.split())


@pytest.mark.parametrize("kind", ["html", "xml"])
@pytest.mark.parametrize(
    "kept",
    [
        "{{ name }}",
        "{{name|upper}}",
        '{{ "a" | t(1) }}',
        "{{{ raw }}}",
        "${{ github.ref }}",
        "{% if a > 1 and b %}",
        "{%- endif -%}",
        "{n:>3}",
        "{0}",
        "%5.2f",
        "%@",
        "%1$s",
        "%(name)d",
    ],
)
def test_placeholders_stay(kept, kind):
    document = read(f"one {kept} two", kind)
    assert document.text == "one two"
    assert document.write([]) == f"one {kept} two"


@pytest.mark.parametrize("text", ["{ name }", "{{ a }", "{% a }", "100 % one", "{{ a < b }}"])
def test_other_signs_are_text(text):
    assert read(escape(text), "xml").text == text


def test_placeholders_are_written_as_markup_allows():
    assert read("a {a]]&gt;}", "xml").write([]) == "a {a]]&gt;}"
    assert read("<p title='a {{ \"b\" > 1 }}'>").write([]) == (
        '<p title="a {{ &quot;b&quot; > 1 }}"></p>'
    )


@pytest.mark.parametrize(
    "unit", ["{", "{{", "{{ a", "{%", "{% a %", "%(a", "%1", "{a", "${", "}", "{{a}", "{{ %}"]
)
def test_placeholders_are_found_in_linear_time(unit):
    started = time.process_time()
    with suppress(TooLarge):
        check_markup([unit * (1_000_000 // len(unit))], "xml", "/q")
    assert time.process_time() - started < 2


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
        (
            "<!DOCTYPE d [<!ENTITY e 'f'>]><d>&e;</d>",
            "document type at line 1, column 1): remove them",
        ),
        ("a&#0;b", "invalid character number at line 1, column 2): remove this character"),
        ("a\r\r\r<b", "line 4, column 3): close each tag"),
        ("a\r\n\r<b>\r&", "line 4, column 2)"),
        ("a&nbsp;b", "undefined entity at line 1, column 2): write the character or its number"),
        ("<a b=1>c</a>", "column 6): close each tag, quote the values of attributes, and write"),
        ("<a><![CDATA[b</a>", "column 18): close it by ]]>"),
        (" <?xml version='1.0'?><a/>", "column 2): remove what stands before the declaration"),
        ("<?xml?><a/>", "column 6): write <?xml version"),
        ("<?xml version='1.0'?><a/><b/>", "column 26): put one element around all"),
        ("<?xml version='1.0'?>text", "column 22): begin with an element"),
        ("<a b='1' b='2'/>", "duplicate attribute at line 1, column 10): keep one of them"),
    ],
)
def test_what_is_not_xml_is_refused_with_its_place(source, part):
    with pytest.raises(Invalid) as refused:
        read(source, "xml")
    detail = refused.value.faults[0].detail
    assert part in detail
    assert ("&lt;" in detail) == ("invalid token" in detail)


@pytest.mark.parametrize(
    "text", ["{}", "a\r\n{}", "<!-- {} -->", "<i a='\xe9{}'/>", "<![CDATA[{}]]>"]
)
@pytest.mark.parametrize("character", "\x00\x0b\x1f\ufffe")
def test_a_character_that_xml_cannot_hold_is_to_be_removed(text, character):
    source = text.format(character)
    with pytest.raises(Invalid) as refused:
        read(source, "xml")
    column = source.split("\n")[-1].index(character) + 1
    (fault,) = refused.value.faults
    assert fault.detail.endswith(
        f", column {column}): remove this character, which XML cannot hold"
    )


@pytest.mark.parametrize(
    "before",
    [
        "<!DOCTYPE r>",
        "<!DOCTYPE r SYSTEM 'a'\n>\n",
        "\ufeff",
        "\ufeff<?xml version='1.0'?>\n<!-- a -->\n<!DOCTYPE r>\n",
    ],
)
def test_what_begins_xml_stays(before):
    document = read(f"{before}<r>one</r>", "xml")
    assert document.text == "one"
    assert document.write([Translated(Span(0, 3), "eins", ())]) == f"{before}<r>eins</r>"


def test_xml_gets_no_character_that_it_cannot_hold():
    document = read("one", "xml")
    assert document.write([Translated(Span(0, 3), "a\x00\x0bb", ())]) == "a\ufffd\ufffdb"
