"""Read XML, or a part of an XML document, with expat: in linear time, and without entities of its
own, which could expand without end."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from xml.parsers.expat import ExpatError, ParserCreate, errors

from service.errors import Invalid
from service.text.markup.events import (
    BYTE_ORDER_MARK,
    Element,
    ElementEnd,
    Leaf,
    MarkupEvent,
    is_kept,
)

ROOT, END = "<_>", "</_>"  # around a part of a document, which may have any number of elements
WHOLE = ("<?xml", "<!DOCTYPE")  # how a whole document may begin
LINE_BREAK = re.compile(r"\r\n|\r|\n")  # as expat counts lines
INVALID_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # in XML
DECLARATIONS = "declarations in the document type"
CLOSE, ESCAPE = "close each tag", "write &lt; for < and &amp; for &"
REMOVE = "remove this character, which XML cannot hold"
ADVICE = {
    errors.XML_ERROR_TAG_MISMATCH: CLOSE,
    errors.XML_ERROR_NO_ELEMENTS: CLOSE,
    errors.XML_ERROR_UNCLOSED_TOKEN: CLOSE,
    errors.XML_ERROR_INVALID_TOKEN: f"{CLOSE}, quote the values of attributes, and {ESCAPE}",
    errors.XML_ERROR_UNCLOSED_CDATA_SECTION: "close it by ]]>",
    errors.XML_ERROR_MISPLACED_XML_PI: "remove what stands before the declaration",
    errors.XML_ERROR_XML_DECL: 'write <?xml version="1.0"?>, or leave it out',
    errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT: "put one element around all, or leave out <?xml ?>",
    errors.XML_ERROR_SYNTAX: "begin with an element after the declaration",
    errors.XML_ERROR_UNDEFINED_ENTITY: "write the character or its number, such as &#160;",
    errors.XML_ERROR_BAD_CHAR_REF: REMOVE,
    errors.XML_ERROR_DUPLICATE_ATTRIBUTE: "keep one of them",
    DECLARATIONS: "remove them",
}


def read_xml(source: str, pointer: str) -> list[MarkupEvent]:
    """Return the events of XML. Raise Invalid for XML that is not well-formed."""
    text = source.removeprefix(BYTE_ORDER_MARK)
    whole = text.startswith(WHOLE)
    content = (text if whole else ROOT + text + END).encode()
    reader = ExpatReader()
    try:
        reader.read(content)
    except ExpatError as error:
        column = error.offset - (0 if whole or error.lineno > 1 else len(ROOT))
        line = LINE_BREAK.split(text)[error.lineno - 1]
        column = max(0, min(column, len(line)))  # without ROOT
        why = str(error).partition(": ")[0]
        advice = REMOVE if INVALID_XML.match(line, column) else ADVICE.get(why)
        where = f"line {error.lineno}, column {column + 1}"
        detail = f"is not XML ({why} at {where})" + (f": {advice}" if advice else "")
        raise Invalid.at(pointer, detail) from error
    events = list(merge_texts(events_of(content, reader.found)))
    events = events if whole else events[1:-1]
    mark_inline(events)
    return events if text == source else [Leaf([BYTE_ORDER_MARK], shown=False), *events]


class ExpatReader:
    """Collects what expat reports: the byte at which it begins, its kind and its text."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str, str]] = []
        parser = self._parser = ParserCreate("utf-8")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = lambda _name: self._add("end")
        parser.CharacterDataHandler = lambda text: self._add("text", text)
        parser.StartCdataSectionHandler = lambda: self._add("dropped")  # its text is escaped
        parser.EndCdataSectionHandler = lambda: self._add("dropped")
        parser.SkippedEntityHandler = lambda _name, _parameter: self._add("leaf")
        parser.CommentHandler = lambda _text: self._add("hidden")
        parser.ProcessingInstructionHandler = lambda _target, _text: self._add("hidden")
        parser.XmlDeclHandler = lambda _version, _encoding, _standalone: self._add("hidden")
        parser.StartDoctypeDeclHandler = self._start_doctype

    def read(self, content: bytes) -> None:
        """Raise ExpatError for what is not XML."""
        self._parser.Parse(content, True)
        self.found.append((len(content), "dropped", ""))

    def _add(self, kind: str, text: str = "") -> None:
        self.found.append((self._parser.CurrentByteIndex, kind, text))

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._add("kept" if is_kept(name, attributes) else "start")

    def _start_doctype(
        self, _name: str, _system: str | None, _public: str | None, internal: bool
    ) -> None:
        # Here expat is already at the end of the declaration; what came before it has an event.
        self.found.append((self._parser.CurrentByteIndex if self.found else 0, "hidden", ""))
        if internal:  # which may declare entities
            error = ExpatError(DECLARATIONS)
            error.lineno, error.offset = self._parser.CurrentLineNumber, 0
            raise error


def events_of(content: bytes, found: list[tuple[int, str, str]]) -> Iterator[MarkupEvent]:
    """Yield the events of what was found, with their markup as `content` has it."""
    opened: list[Element] = []
    kept: list[str] = []  # of an element that is left as it is
    depth = 0
    for (start, kind, text), (stop, _, _) in pairwise(found):
        raw = content[start:stop].decode()
        if kind == "kept" or depth:
            kept.append(raw)
            depth += (kind in ("kept", "start")) - (kind == "end")
            if not depth:
                yield Leaf(["".join(kept)])
                kept.clear()
        elif kind == "start":
            opened.append(Element([raw], "", breaks=True))
            yield opened[-1]
        elif kind == "end":
            opened[-1].end = raw
            yield ElementEnd(opened.pop())
        elif kind == "text":
            yield text
        elif kind != "dropped":
            yield Leaf([raw], shown=kind == "leaf")


def merge_texts(events: Iterable[MarkupEvent]) -> Iterator[MarkupEvent]:
    """Join the pieces in which expat reports a text, such as line breaks and entities."""
    for is_text, group in groupby(events, lambda event: isinstance(event, str)):
        if is_text:
            yield "".join(each for each in group if isinstance(each, str))
        else:
            yield from group


def mark_inline(events: Sequence[MarkupEvent]) -> None:
    """Mark the elements that are part of a text: text stands beside them, or beside an element
    around them. Among elements alone, an element has a text of its own."""
    root = Element([], "", breaks=True)
    mixed = {id(around) for event, around in with_parents(events, root) if is_beside(event)}
    for event, around in with_parents(events, root):
        if isinstance(event, Element) and id(around) in mixed:
            event.breaks = False
            mixed.add(id(event))


def with_parents(
    events: Iterable[MarkupEvent], root: Element
) -> Iterator[tuple[MarkupEvent, Element]]:
    """Yield each event with the element around it."""
    around = [root]
    for event in events:
        if isinstance(event, ElementEnd):
            around.pop()
        yield event, around[-1]
        if isinstance(event, Element):
            around.append(event)


def is_beside(event: MarkupEvent) -> bool:
    """Return whether an event is text, and more than the line breaks and indents of elements."""
    return isinstance(event, str) and bool(event.strip() or "\n" not in event)
