"""Read what stands between two breaks of a document as a text with marks.

A mark is an element, at the offsets of its words, or a leaf, at the offset where it stood. The
model does not read leaves, such as `<code>` and placeholders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.text.markup.events import (
    HTML_SPACE,
    PLACEHOLDER,
    SPACES,
    Element,
    ElementEnd,
    Leaf,
    MarkupEvent,
    write_placeholder,
)
from service.text.sentences import Span

SPACE, OBJECT = " ", "\ufffc"  # what stands beside a leaf: white space, or another leaf
CLOSING_SIGNS = frozenset(".,;:!?)]}\u2019\u201d\u00bb\u2026\u3001\u3002\uff0c\uff01\uff1f\uff09")

NumberedMarkup = list[str | int]  # markup, and the numbers of texts in it


@dataclass(slots=True)
class Mark:
    """An element around text[start:end] with its tags, or a leaf, which has no end tag.

    `parent` is the index of the element around it. `before` and `after` are the characters that
    were beside a leaf: SPACE, OBJECT, or "" for none; `after` is known if it is `shown`.
    """

    start: int
    end: int
    opening: NumberedMarkup
    closing: str
    parent: int | None
    shown: bool = False
    before: str = ""
    after: str = ""

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)


class UnitReader:
    """Reads events in their order. White space becomes a single space, as browsers show it.
    `escape` writes placeholders."""

    def __init__(self, escape: Callable[[str], str], *, placeholders: bool) -> None:
        self._escape, self._placeholders = escape, placeholders
        self._words: list[str] = []
        self._length = 0
        self._marks: list[Mark] = []
        # Elements in `marks`, and what was shown before them
        self._open: list[tuple[int, str]] = []
        self._last = ""  # the last shown character
        self._gap = False  # white space that is not in the text yet
        self._waiting: Mark | None = None  # a leaf of which `after` is not known yet

    def finish(self) -> tuple[str, list[Mark]]:
        """Return the text and its marks in the order of their start tags."""
        text = "".join(self._words)
        for mark in self._marks:
            mark.start += mark.start < mark.end and text[mark.start] == SPACE
        return text, self._marks

    def add(self, event: MarkupEvent, written: NumberedMarkup) -> None:
        """Add an event, of which `written` is the markup."""
        match event:
            case str():
                self._add_text(event)
            case Element():
                index = len(self._marks)
                self._add_mark(written)
                self._open.append((index, self._last))
            case ElementEnd():
                self._close(written)
            case Leaf():
                mark = self._add_mark(written)
                if event.shown:
                    self._show_leaf(mark, self._last)

    def _add_text(self, text: str) -> None:
        start = 0
        for found in PLACEHOLDER.finditer(text) if self._placeholders else ():
            self._add_words(text[start : found.start()])
            self._show_leaf(self._add_mark([write_placeholder(found[0], self._escape)]), self._last)
            start = found.end()
        self._add_words(text[start:])

    def _add_words(self, typed: str) -> None:
        text = SPACES.sub(SPACE, typed)
        words = text.strip(SPACE)
        if text.startswith(SPACE):
            self._show(SPACE)
        if not words:
            return
        # The text of "press <kbd>x</kbd>." is "press.", without a space before the full stop.
        closes = self._waiting is not None and words[0] in CLOSING_SIGNS
        if self._gap and self._words and not closes:
            self._write(SPACE)
        self._gap = False
        self._show(words[0])
        self._write(words)
        self._show(words[-1])
        if text.endswith(SPACE):
            self._show(SPACE)

    def _write(self, words: str) -> None:
        self._words.append(words)
        self._length += len(words)

    def _show(self, character: str) -> None:
        if self._waiting:
            self._waiting.after = character
            self._waiting = None
        self._last = character
        self._gap |= character == SPACE

    def _show_leaf(self, mark: Mark, before: str) -> None:
        self._show(OBJECT)
        mark.shown, mark.before = True, before
        self._waiting = mark

    def _add_mark(self, opening: NumberedMarkup) -> Mark:
        parent = self._open[-1][0] if self._open else None
        mark = Mark(self._length, self._length, [*opening], "", parent, before=self._last)
        self._marks.append(mark)
        return mark

    def _close(self, written: NumberedMarkup) -> None:
        index, before = self._open.pop()
        mark = self._marks[index]
        mark.end = self._length
        if mark.start < mark.end:
            mark.closing = "".join(map(str, written))
            return
        # Without words it is a leaf itself, with the leaves in it.
        inner = self._marks[index + 1 :]
        del self._marks[index + 1 :]
        for each in inner:
            mark.opening += each.opening
        mark.opening += written
        shown = [each for each in inner if each.shown]
        if not shown:
            self._show_leaf(mark, before)
            return
        mark.shown, mark.before, mark.after = True, shown[0].before, shown[-1].after
        if self._waiting is shown[-1]:
            self._waiting = mark


def edges(run: Sequence[MarkupEvent]) -> tuple[str, str]:
    """Return the white space before and after all that these events show."""
    before, after = "", ""
    for event in run:
        if isinstance(event, str):
            before += event[: len(event) - len(event.lstrip(HTML_SPACE))]
        if not isinstance(event, Element) and not is_space(event):
            break
    for event in reversed(run):
        if isinstance(event, str):
            after = event[len(event.rstrip(HTML_SPACE)) :] + after
        if not isinstance(event, ElementEnd) and not is_space(event):
            break
    return before, after


def is_space(event: MarkupEvent) -> bool:
    return isinstance(event, str) and not event.strip(HTML_SPACE)
