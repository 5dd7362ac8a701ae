"""Documents made by a grammar, and targets with alignments by chance."""

import random

from service.text.markup.document import Translated, read_document
from service.text.markup.placing import PlacePair, words_of
from service.text.sentences import Span
from service.text.tokenizer import has_letters

INLINE = ("b", "i", "q", "span", "em")  # links must not be in links
EMPTY = {"html": ("<img>", "<wbr>"), "xml": ("<ph/>", '<x id="1"/>', "<g></g>")}
KEPT = ('<code class="c">{0}</code>', '<span translate="no">{0}<i></i></span>', "<!-- {0} -->")
SIGNS = (" ", " ", " ", ", ", ". ", "&amp;", "-", "\n  ", "")
DEPTH = 6
CODE = "@"  # the text of what is left as it is


class Grammar:
    """Paragraphs of one kind of markup."""

    def __init__(self, kind, seed, words=("one", "two", "three", "o&amp;o"), signs=SIGNS):
        self.chance = random.Random(seed)
        self.words, self.signs, self.empty = words, signs, EMPTY[kind]
        self.start = "so " if kind == "xml" else ""  # text makes elements beside it part of a text

    def document(self):
        count = self.chance.randint(1, 3)
        return "\n".join(f"<p>{self.start}{self.text(DEPTH - 1)}</p>" for _ in range(count))

    def text(self, depth):
        parts = [self.part(depth) for _ in range(self.chance.randint(1, 4))]
        return "".join(part + self.chance.choice(self.signs) for part in parts)

    def part(self, depth):
        choice = self.chance.random()
        if choice < 0.5 or depth == 0:
            return self.chance.choice(self.words)
        if choice < 0.8:
            name, number = self.chance.choice(INLINE), self.chance.randint(1, 9)
            return f'<{name} id="{number}">{self.text(depth - 1)}</{name}>'
        if choice < 0.9:
            return self.chance.choice(self.empty)
        return self.chance.choice(KEPT).format(CODE)


def translate(document, chance):
    """A target of words by chance for each text of a document, with pairs of words by chance."""
    return [translate_unit(unit, chance) for unit in document.units]


def translate_unit(unit, chance):
    words = [chance.choice(["un", "deux", "l'ami", "x<y", "\u4e2d\u6587", "."]) for _ in range(9)]
    target = " ".join(words[: chance.randint(0, 9)])
    sources = [Span(*(unit.span.start + at for at in word)) for word in words_of(unit.text)]
    targets = words_of(target)
    count = chance.randint(0, 12) if targets else 0
    pairs = [PlacePair(chance.choice(sources), chance.choice(targets)) for _ in range(count)]
    return Translated(unit.span, target, pairs)


def read(source, kind="html", **options):
    return read_document(source, kind, has_letters, "/source", **options)
