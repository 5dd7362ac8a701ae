"""Take the texts out of a document, and put their targets, with the tags, into their place.

A text is what stands between two breaks, such as a whole paragraph with the words in its inline
elements, or the value of an attribute.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import unescape
from itertools import groupby
from typing import Literal, NamedTuple
from xml.sax.saxutils import escape

from service.errors import TooLarge
from service.text.markup.events import (
    PLACEHOLDER,
    Element,
    ElementEnd,
    Leaf,
    MarkupEvent,
    escape_value,
    write_text,
)
from service.text.markup.html import check_html, read_html
from service.text.markup.placing import PlacePair, place, words_of
from service.text.markup.unit import Mark, NumberedMarkup, UnitReader, edges
from service.text.markup.xml import INVALID_XML, read_xml
from service.text.sentences import Span
from service.text.tokens import REPLACEMENT

MarkupKind = Literal["html", "xml"]
IsTranslated = Callable[[str], bool]  # whether a text is translated

# Of a request, with placeholders: nested tags take Lexbor quadratic time, and each takes time to
# place in each hypothesis
MOST_TAGS = 5000


def check_markup(sources: Sequence[str], kind: MarkupKind, pointer: str) -> None:
    """Raise TooLarge for more markup, in all sources together, than is read and placed quickly."""
    tags = sum(source.count("<") for source in sources)
    found = sum(1 for source in sources for _ in PLACEHOLDER.finditer(unescape(source)))
    if tags + found > MOST_TAGS:
        what = "tags and placeholders" if found else "tags"
        detail = (
            f"has {tags + found} {what}, and the limit is {MOST_TAGS}: send less {kind.upper()} at"
            " a time"
        )
        raise TooLarge.at(pointer, detail)
    if kind == "html":
        check_html(sources, pointer)


class Translated(NamedTuple):
    """The target of a part of a document's text, with pairs of places that belong together: those
    of the source count from the start of the document's text, those of the target from its own."""

    span: Span
    target: str
    pairs: Sequence[PlacePair]


@dataclass(frozen=True, slots=True)
class TextUnit:
    """A text of a document, at its place in `Document.text`."""

    text: str
    span: Span
    marks: Sequence[Mark]
    escape: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class MarkupDocument:
    """`text` has each unit in a line. `parts` are the document's markup and, by their numbers, the
    units between it. Units come after those of attributes in their own tags."""

    kind: MarkupKind
    text: str
    units: Sequence[TextUnit]
    parts: Sequence[str | int]

    def has_marks(self, at: int) -> bool:
        """Return whether the unit around an offset of `text` has marks."""
        unit = bisect_right(self.units, at, key=lambda unit: unit.span.start) - 1
        return bool(self.units[unit].marks)

    def write(self, translated: Sequence[Translated]) -> str:
        """Return the document with these targets, which come in the order of their spans. Texts
        without a target stay as they are."""
        left = list(reversed(translated))
        written: list[str] = []

        def fill(parts: Iterable[str | int]) -> str:
            return "".join(written[each] if isinstance(each, int) else each for each in parts)

        for unit in self.units:
            own: list[Translated] = []
            while left and left[-1].span.start < unit.span.end:
                own.append(left.pop())
            target, pairs = join(self.text, unit.span, own)
            if self.kind == "xml":
                target = INVALID_XML.sub(REPLACEMENT, target)
            written.append(fill(place(unit.text, unit.marks, target, pairs, unit.escape)))
        return fill(self.parts)


def join(text: str, unit: Span, translated: Sequence[Translated]) -> tuple[str, list[PlacePair]]:
    """Return the target of a unit, and its pairs with the unit's own text. The text between the
    translated parts belongs to itself."""
    target = ""
    pairs: list[PlacePair] = []
    start = unit.start
    for part in [*translated, None]:
        gap = text[start : part.span.start if part else unit.end]
        moved = (start - unit.start, len(target))
        pairs += (PlacePair(*map(shift, (word, word), moved)) for word in words_of(gap))
        target += gap
        if part:
            moved = (-unit.start, len(target))
            pairs += (PlacePair(*map(shift, pair, moved)) for pair in part.pairs)
            target += part.target
            start = part.span.end
    return target, pairs


def shift(span: Span, by: int) -> Span:
    return Span(span.start + by, span.end + by)


def read_document(
    source: str, kind: MarkupKind, wanted: IsTranslated, pointer: str, *, whole: bool = True
) -> MarkupDocument:
    """Read a document. If not `whole`, every tag is a break: none must then be placed in a text.

    Raise Invalid for what is not XML, or if the parser of HTML is not installed.
    """
    reader = DocumentReader(wanted, whole)
    reader.read(read_html(source) if kind == "html" else read_xml(source, pointer))
    return MarkupDocument(
        kind, "\n".join(unit.text for unit in reader.units), reader.units, reader.parts
    )


class DocumentReader:
    def __init__(self, wanted: IsTranslated, whole: bool) -> None:
        self.units: list[TextUnit] = []
        self.parts: list[str | int] = []
        self._wanted = wanted
        self._whole = whole
        self._length = 0  # of the units, with a line break after each

    def read(self, events: Iterable[MarkupEvent]) -> None:
        for breaks, run in groupby(events, self._breaks):
            if breaks:
                self.parts += (part for event in run for part in self._number(event))
            else:
                texts = [*run]
                self.parts += self._read_unit(texts, list(map(self._number, texts)), escape)

    def _breaks(self, event: MarkupEvent) -> bool:
        if isinstance(event, ElementEnd):
            return event.of.breaks or not self._whole
        return not isinstance(event, str) and (event.breaks or not self._whole)

    def _number(self, event: MarkupEvent) -> NumberedMarkup:
        """Return an event as it is written. The attributes in it become units."""
        match event:
            case str():
                return [write_text(event, escape)]
            case ElementEnd():
                return [event.of.end]
            case Element(parts) | Leaf(parts):
                written: NumberedMarkup = []
                for part in parts:
                    written += [part] if isinstance(part, str) else self._read_value(part.text)
                return written

    def _read_value(self, text: str) -> NumberedMarkup:
        return self._read_unit([text], [[write_text(text, escape_value)]], escape_value)

    def _read_unit(
        self,
        run: Sequence[MarkupEvent],
        written: Sequence[NumberedMarkup],
        write: Callable[[str], str],
    ) -> NumberedMarkup:
        """Return the number of the unit that these events make, between the white space around it;
        if its text is not wanted, return the events as they are written."""
        reader = UnitReader(write, placeholders=self._whole)
        for event, parts in zip(run, written, strict=True):
            reader.add(event, parts)
        text, marks = reader.finish()
        if not self._wanted(text):
            return [part for each in written for part in each]
        span = Span(self._length, self._length + len(text))
        self._length = span.end + 1
        self.units.append(TextUnit(text, span, marks, write))
        lead, trail = edges(run)
        return [lead, len(self.units) - 1, trail]
