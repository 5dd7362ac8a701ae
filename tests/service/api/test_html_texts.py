"""HTML in which texts were replaced is as another parser reads the original, but for the texts."""

import subprocess
import sys
from html.parser import HTMLParser

import pytest

from service.api.html_texts import MOST_TAGS, check_tags, replace_texts, texts_of
from service.errors import Invalid, TooLarge

WELL_FORMED = [
    'one<p class="a" title="1 > 0">two <b>three</b> &amp; <br>four</p>five &amp;',
    "<tr><td>one</td><td>two</td></tr>",
    "<td>one <i>two</i></td>",
    "<!DOCTYPE html><html lang='en'><head><title>one</title></head><body>two</body></html>",
    "<ul><li>one</li>\n  <li><a href='?a=1&amp;b=2'>two</a></li></ul>",
    "<svg><text>one</text></svg><math><mi>two</mi></math>",
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


@pytest.mark.parametrize("source", WELL_FORMED)
def test_texts_are_replaced_in_their_order_and_tags_survive(source):
    before = Reader(source)
    assert texts_of(source) == before.texts
    after = Reader(replace_texts(source, [f"{text}<&i>" for text in before.texts]))
    assert after.texts == [f"{text}<&i>" for text in before.texts]
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
    ],
)
def test_what_is_no_prose_stays(kept):
    source = f"<div>one {kept} two</div>"
    assert texts_of(source) == ["one ", " two"]
    assert replace_texts(source, ["1 ", " 2"]) == f"<div>1 {kept} 2</div>"


def test_line_breaks_in_the_source_are_spaces():
    assert texts_of("<p>\n  one\n  two &nbsp;three\n</p>") == [" one two \u00a0three "]


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
    targets = [str(number) for number, _ in enumerate(texts_of(broken), 1)]
    assert replace_texts(broken, targets) == mended


@pytest.mark.parametrize("tag", ["<div>", "<!--", "<a ", "<a b='", "<![", "<table>", "<template>"])
def test_as_many_tags_as_are_allowed_are_read_in_seconds(tag):
    """The limit is there for the quadratic time of nested tags. Ten times as many take too long."""
    source = f"{tag}{'x' * ((1 << 20) // MOST_TAGS)}" * MOST_TAGS
    code = (
        "import sys; from service.api.html_texts import *; source = sys.stdin.read();"
        " replace_texts(source, texts_of(source))"
    )
    subprocess.run([sys.executable, "-c", code], input=source, text=True, timeout=10, check=True)


@pytest.mark.parametrize(
    ("sources", "translations", "found"),
    [
        (["<b>" * (MOST_TAGS + 1)], 1, f"has {MOST_TAGS + 1} tags, and"),
        (["<b>" * 2501, "<p>" * 2500], 1, "has 5001 tags, and"),
        (["<b>" * 1667], 3, "has 5001 tags, counted for each of 3 translations, and"),
    ],
)
def test_tags_of_all_texts_and_translations_count(sources, translations, found):
    with pytest.raises(TooLarge, match=f"/q {found}"):
        check_tags(sources, translations, "/q")
    check_tags([source.removeprefix(source[:3]) for source in sources], translations, "/q")


def test_without_the_parser_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "selectolax.lexbor", None)
    with pytest.raises(Invalid, match=r"/format is html, which needs .* heed\[protocols\]"):
        texts_of("<p>one")
