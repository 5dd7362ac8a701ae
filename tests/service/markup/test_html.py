"""HTML in which texts were replaced is as another parser reads the original, but for the texts."""

import subprocess
import sys
import time
from contextlib import suppress
from html.parser import HTMLParser

import hypothesis.strategies as st
import pytest
from hypothesis import given

from service.errors import Invalid, TooLarge
from service.text.markup.document import MOST_TAGS, Translated, check_markup
from service.text.markup.events import Leaf
from service.text.markup.html import MOST_ATTRIBUTES, check_html, find_tags, parse_html, read_html
from tests.service.markup.grammar import read

WELL_FORMED = [
    'one<p class="a" lang="1 > 0">two <b>three</b> &amp; <br>four</p>five &amp;',
    "<tr><td>one</td><td>two</td></tr>",
    "<td>one <i>two</i></td>",
    "<!DOCTYPE html><html lang='en'><head><title>one</title></head><body>two</body></html>",
    "<ul><li>one</li>\n  <li><a href='?a=1&amp;b=2'>two</a></li></ul>",
    "<!-- one --><p>two</p><p></p>",
    "<p lang='zh'>\u4e00 &lt;b&gt; \u00e9</p>",
    "one",
    "",
]


class Reader(HTMLParser):
    """What stands in HTML: tags and comments, and texts that have letters."""

    def __init__(self, source):
        super().__init__()
        self.markup, self.texts = [], []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.markup.append((tag, attrs))

    def handle_endtag(self, tag):
        self.markup.append(tag)

    def handle_comment(self, data):
        self.markup.append(["comment", data])

    def handle_decl(self, decl):
        self.markup.append(["declaration", decl.lower()])

    def handle_data(self, data):
        if any(map(str.isalnum, data)):
            self.texts.append(data)


def number(source):
    """HTML with the number of each text between two tags in its place, and the texts."""
    document = read(source, whole=False)
    targets = [Translated(unit.span, f"{i}<&i>", ()) for i, unit in enumerate(document.units, 1)]
    return document.write(targets), document.text.split("\n")


@pytest.mark.parametrize("source", WELL_FORMED)
def test_texts_are_replaced_in_their_order_and_tags_survive(source):
    before = Reader(source)
    written, texts = number(source)
    assert texts == [each.strip() for each in before.texts] or [""]
    after = Reader(written)
    assert [each.strip() for each in after.texts] == [
        f"{i}<&i>" for i, _ in enumerate(before.texts, 1)
    ]
    assert after.markup == before.markup


@pytest.mark.parametrize(
    "kept",
    [
        "<script>if (1 < 2) a()</script>",
        "<style>b {}</style>",
        "<code>c <b>d</b></code>",
        "<pre>e\n  f</pre>",
        "<textarea>g</textarea>",
        '<p translate="no">h<i>i</i></p>',
        '<b class="x notranslate">j</b>',
        "<kbd>k</kbd>",
        "<!-- l -->",
        '<svg viewBox="0 0 1 1"><text>m</text></svg>',
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_what_is_not_prose_stays(kept, whole):
    for source in (f"<div>one {kept} two</div>", f"{kept} one two", f"one two {kept}"):
        document = read(source, whole=whole)
        assert "".join(document.text.split()) == "onetwo"
        assert document.write([]).replace(" ", "") == source.replace(" ", "")


STRICT = (
    '<!DOCTYPE html PUBLIC "-//W3C//DTD HTML 4.01//EN" "http://www.w3.org/TR/html4/strict.dtd">'
)
PAGE = '<html lang="en"><head><title>one</title></head><body class="k"><p>two</p></body></html>'
RAW_NAMES = ["iframe", "noembed", "noframes", "script", "style", "xmp"]


@pytest.mark.parametrize(
    "source",
    [
        STRICT + PAGE,
        f"<!-- Copyright -->{PAGE}",
        f"<!-- a --><!-- <p> -->{STRICT}{PAGE}",
        f"<!-- <!DOCTYPE old> --><!-- <?xml ?> --><!doctype html>{PAGE}",
        f"{STRICT}{PAGE}<!-- <!DOCTYPE old> -->",
        f'<?xml version="1.0" encoding="utf-8"?>{STRICT}{PAGE}',
        f"\ufeff<!DOCTYPE html>{PAGE}",
        "\ufeff<p>one</p>",
        "<p>one</p><?php echo 1 ?><?a?><?b c?><!--?no--><p>two</p>",
        "<p>one</p><?php echo 1 ?><!--?php echo 1 ?--><?=a?><!-- ?=a? --><?xml b?><!--?c?-->",
        "<p>one</p><?a-- ?><?a ?><!--<?=b?>--><?=b?>",
        '<p>one</p><pre>\n\n  two</pre><div translate="NO"><textarea>\n\nx</textarea></div>',
        "<ul>{% if a > 1 %}<li>one</li>{% endif %}</ul>{{ a > b }}",
        "<p>{n:>3}</p><p>***{{ a > b }}***</p>",
        '<img alt="{{ a > b }}"><p title="{{ a > b }}" class="{% if a > 1 %}x{% endif %}">one</p>',
        "<p>one <code>{{ a > b }} &gt;</code> two</p>",
        "one<pre>{% if a > 1 %}x &amp;&gt; y{% endif %}</pre>",
        "<script>if (a > b) x = '{{ &gt; }}'</script>one",
        *(f"<p>one</p><{name}>{{a&gt;b}}</{name}>" for name in RAW_NAMES),
        *(f'<div translate="no">{{a&gt;b}}<{name}>{{a&gt;b}}</{name}></div>' for name in RAW_NAMES),
        "<object><style>{{ a &gt; b }}</style></object>one",
        '<template><script type="x">{{ a &gt; b }}</script></template>one',
        "<code><!-- {{ a &gt; b }} -->{{ a > b }}<?php {a&gt;b} ?></code>one",
    ],
)
def test_what_is_not_repaired_is_written_as_it_was(source):
    assert read(source).write([]) == source


def test_plain_text_up_to_the_end_has_no_references():
    assert read("<p>one</p><plaintext>{a&gt;b}").write([]).endswith("{a&gt;b}</plaintext>")


@pytest.mark.parametrize("comment", ["<!-->", "<!--->", "<!--a--!>"])
def test_comments_that_end_in_odd_ways_hide_no_document_type(comment):
    source = f"{comment}<!doctype b><!-- --><!doctype c>{PAGE}"
    assert read(source).write([]).endswith(f"<!doctype b><!-- -->{PAGE}")


INSTRUCTIONS = ["<?=a\n?>", "<?=a\r\n?>", "<?=b>", "<?=b--!>", "<?xml?>", "<?=x", "<?=\0?>"]
COMMENTS = ["<!--?=a\n?-->", "<!--?=a\r?--!>", "<!?=b>", "</?=b>", "<!--?xml?-->", "<!--?=b--"]
AROUND = ["<!--", "-->", "<script>", "</script>", "<pre>", "</pre>", "<b title='", "'>", "</html>"]


@given(pieces=st.lists(st.sampled_from([*INSTRUCTIONS, *COMMENTS, *AROUND, "<p>", "<table>", "x"])))
def test_no_comment_is_written_as_an_instruction(pieces):
    """A mark in what looks like instructions tells them from comments of the same text."""
    source = "".join(pieces)
    marked = read_html(source.replace("<?", "<?=mark"))
    for is_marked, event in zip(marked, read_html(source), strict=True):
        if isinstance(event, Leaf) and is_marked.parts[0].startswith("<!--"):
            unmarked = is_marked.parts[0].replace("<?=mark", "<?")
            assert event.parts[0] == unmarked or unmarked.startswith("<!--?=mark")


def test_line_breaks_in_the_source_are_spaces():
    assert read("<p>\n  one\n  two &nbsp;three\n</p>").text == "one two \u00a0three"


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        ("<p>one<b>two", "<p>1<b>2</b></p>"),
        ("<b>one</i></b>two", "<b>1</b>2"),
        ("one < two", "1"),
        ("<ul><li>one<li>two</ul>", "<ul><li>1</li><li>2</li></ul>"),
    ],
)
def test_tags_that_are_left_open_are_closed(broken, mended):
    assert number(broken)[0].replace("&lt;&amp;i&gt;", "") == mended


ODD_TAGS = ["<div>", "<!--", "<a ", "<a b='", "<![", "<table>", "<template>", "<?", "<!doctype "]


@pytest.mark.parametrize("tag", [*ODD_TAGS, "<?x>", "<!--?x-->"])
def test_as_many_tags_as_are_allowed_are_read_in_seconds(tag):
    """The limit is there for the quadratic time of nested tags. Ten times as many take too long."""
    source = f"{tag}{'x' * ((1 << 20) // MOST_TAGS)}" * MOST_TAGS
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (10, 10));"
        "import sys; from service.text.markup.document import *;"
        " source = sys.stdin.read(); document = read_document(source, 'html', str.strip, '/q');"
        " document.write([Translated(each.span, each.text, ()) for each in document.units])"
    )
    subprocess.run([sys.executable, "-c", code], input=source, text=True, check=True)


@pytest.mark.parametrize("kind", ["html", "xml"])
def test_tags_of_all_texts_count(kind):
    sources = ["<b>" * 2501, "<p>" * 2500]
    with pytest.raises(TooLarge, match="/q has 5001 tags, and the limit is 5000"):
        check_markup(sources, kind, "/q")
    check_markup(["<b>" * 2500, "<p>" * 2500], kind, "/q")


@pytest.mark.parametrize("one", ["{}", "%s ", "{{ a }}", "&#123;&#97;}"])
def test_placeholders_count_as_tags(one):
    with pytest.raises(TooLarge, match="/q has 5001 tags and placeholders, and the limit is 5000"):
        check_markup(["<b>" * 2501, one * 2500], "xml", "/q")
    check_markup(["<b>" * 2500, one * 2500], "xml", "/q")


ATTRIBUTES = [f"a{i}" for i in range(MOST_ATTRIBUTES + 1)]
MANY = {
    "names": f"<p {' '.join(ATTRIBUTES)}>one",
    "values": f"<p {' '.join(f'{each}=1' for each in ATTRIBUTES)}>one",
    "quoted": f"<p {''.join(f'{each}={chr(34)}{chr(34)}' for each in ATTRIBUTES)}>one",
    "slashes": f"<p/{'/'.join(ATTRIBUTES)}>one",
    "not closed": f"<p {' '.join(ATTRIBUTES)}",
    "several tags": "".join(f"<body {each} x={each}>" for each in ATTRIBUTES[: MOST_TAGS - 1]),
    "after a quoted >": f"<p title='>' {' '.join(ATTRIBUTES)}>one",
    "after an odd quote": f"<p ' {' '.join(ATTRIBUTES)}>one'",
    "after a quote with a tag": f"<i b='<a'{' '.join(ATTRIBUTES)}>one",
    "after a comment": f"<!-- <a b=' --><p {' '.join(ATTRIBUTES)}>one'",
    "after a no-break space": f"<p b=\u00a0'x {' '.join(ATTRIBUTES)}>one",
    "in an end tag": f"<p>one</p {' '.join(ATTRIBUTES)}>",
    "in an end tag of nothing": f"one</B/{'/'.join(ATTRIBUTES)}",
    "in the end tag of a script": f"<script>1</script\n{'=1 '.join(ATTRIBUTES)}>",
    "in several end tags": "".join(f"</p {each} x>" for each in ATTRIBUTES[: MOST_TAGS - 1]),
}


@pytest.mark.parametrize("source", MANY.values(), ids=MANY)
def test_very_many_attributes_are_refused_before_they_are_parsed(source):
    """The parser compares each with the others of its tag: 150,000 take minutes."""
    with pytest.raises(TooLarge, match=f"or more attributes, and the limit is {MOST_ATTRIBUTES}"):
        check_html([source], "/q")


@given(source=st.text("<<>xy =\"\"''/!-\t\u00a0", max_size=80))
def test_the_parser_finds_no_attribute_that_was_not_counted(source):
    nodes = parse_html(f"<x>{source}").css("*")
    found = sum(len(node.attributes) for node in nodes)
    assert found <= sum(tag.attributes for tag in find_tags(source))


def opened(names, count):
    """HTML in which each later paragraph opens the elements again, unless they are the same."""
    return f"<p>{''.join(names)}{'</p><p>one' * count}"


@pytest.mark.parametrize(
    "tags",
    [
        [f"<b a{i}>" for i in range(1500)],
        [f'<FONT color="#{i}">' for i in range(1500)],
        [f"<i/{i}/>" for i in range(1500)],
        [f"<b x='=' y{i}='></b>'>" for i in range(1000)],
        [f"<em title='{i}{'x' * 20_000}'>" for i in range(20)],
        [f"<stri\u212ae><strike a{i}></stri\u212ae>" for i in range(1000)],
    ],
    ids=["names", "values", "slashes", "closed in a quote", "long", "another name"],
)
def test_elements_that_are_opened_again_and_again_are_refused(tags):
    """They take 1.1 GB where all tags are 5,000."""
    with pytest.raises(TooLarge, match="bytes of open formatting tags"):
        check_html([opened(tags, 300)], "/q")


@pytest.mark.parametrize(
    "source",
    [
        *WELL_FORMED,
        "<p>one</p>\n" * 2400,
        "<a href='?a=1&amp;b=2' title='one > two'>one</a> and <b class='c'>two</b>\n" * 1200,
        f"<img src='data:image/png;base64,{'QUJD' * 200_000}'>" + "<p id=a>one</p>" * 1000,
        f"<svg><path d='{'M10 10 ' * 50_000}'/></svg>" * 2,
        opened(["<b>", "<i>", "<code>"] * 30, 2000),
        opened([f"<b a{i}>" for i in range(30)], 100),
        "<td class=a>one</td>" * 1600 + "one and two " * 50_000,
    ],
    ids=lambda source: source[:12],
)
def test_ordinary_pages_are_within_the_limits(source):
    check_html([source], "/q")


@pytest.mark.parametrize(
    "unit", ["<a", "<a/b=x", '<a b="', "<a b='", "<a b = ", "<a =", "< a", "<!--<a b"]
)
def test_odd_markup_is_looked_at_in_linear_time(unit):
    """All of it is in one tag, or in each."""
    source = unit * (MOST_TAGS // unit.count("<")) + "y" * 900_000
    started = time.process_time()
    with suppress(TooLarge):
        check_html([source], "/q")
    assert time.process_time() - started < 2


def test_without_the_parser_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "selectolax.lexbor", None)
    with pytest.raises(Invalid, match=r"/markup is html, which needs .*heed-server\[protocols\]"):
        read("<p>one")
