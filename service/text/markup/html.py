"""Read HTML with Lexbor, which closes what was left open as browsers do it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from service.errors import Invalid, TooLarge
from service.text.markup.events import (
    BYTE_ORDER_MARK,
    HTML_SPACE,
    PLACEHOLDER,
    Attribute,
    Element,
    ElementEnd,
    Leaf,
    MarkupEvent,
    TagParts,
    escape_value,
    is_kept,
    write_text,
)
from service.text.tokens import REPLACEMENT

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

# Limits on a request. The parser takes quadratic time or memory for these, and cannot be stopped.
MOST_ATTRIBUTES = 5000  # each is compared with the others of its tag
MOST_COPIED = 64 << 20  # bytes of nodes: a tag of FORMATTING that is left open, for each later tag
MOST_READ = 8 << 20  # characters read to find the ends of tags: tags in open quotes overlap
NODE = 300  # bytes of a copied tag in addition to its text
HIDDEN_NAME = re.compile("script|style|template|link|meta|base|wbr")
# Elements that the standard shows as blocks or as parts of tables, controls, and line breaks
BREAK_NAME = re.compile(
    "html|head|body|title|base|link|meta|style|noscript|template|address|article|aside|blockquote"
    "|center|dialog|dd|details|dir|div|dl|dt|fieldset|figcaption|figure|footer|form|h[1-6]|header"
    "|hgroup|hr|br|legend|li|listing|main|menu|nav|ol|optgroup|option|p|plaintext|pre|search|section"
    "|summary|ul|xmp|caption|col|colgroup|table|tbody|td|tfoot|th|thead|tr|audio|button|canvas"
    "|iframe|object|select|textarea|video"
)
VOID_NAME = re.compile(
    "area|base|basefont|bgsound|br|col|embed|frame|hr|img|input|keygen|link|meta|param|source|track"
    "|wbr"
)
TRANSLATED = ("alt", "aria-label", "placeholder", "title")  # attributes
GREATER = "\ufdd0"  # not a character: stands for &gt; where placeholders are looked for
# Elements whose text has no references, as the parser writes them
RAW = re.compile("<(?:iframe|noembed|noframes|plaintext|script|style|xmp)[ >]")
# Comments and instructions have none either
KEPT_PART = re.compile(rf"<!--.*?-->|<\?[^>]*>|{PLACEHOLDER.pattern}", re.DOTALL)
# Before a part of a document, whose first node would have the HTML of them all
BEFORE_PART = "<!---->"
DOCUMENT = re.compile(
    r"(?>\s+|<!--(?:-?>|.*?--!?>)|<\?[^>]*>)*+<(!doctype|html|head|body)\b",
    re.IGNORECASE | re.DOTALL,
)
DOCUMENT_TYPE = "<!DOCTYPE"  # as the parser writes it
# An instruction, or what opens a comment before the same text. Up to the end if > is missing, so
# that it is found in linear time
INSTRUCTION = re.compile(r"<(!(?:--)?|/)?(\?[^>]*)>?")
TAG = re.compile(r"<(?=/?[a-z])", re.IGNORECASE)
TAG_NAME = re.compile(rf"/?[^{HTML_SPACE}/>]*")
VALUE = rf""""[^"]*"?|'[^']*'?|[^{HTML_SPACE}>"'][^{HTML_SPACE}>]*"""
ATTRIBUTE = re.compile(
    rf"[{HTML_SPACE}/]*(?:=[^{HTML_SPACE}/>=]*|[^{HTML_SPACE}/>=]+)"
    rf"(?:[{HTML_SPACE}]*=[{HTML_SPACE}]*(?:{VALUE})?)?"
)
# Elements that the parser opens again in every later one until they are closed, as <b> in
# <p><b>one</p><p>two. It repeats equal ones only a few times, and <a> not at all.
FORMATTING = re.compile("b|big|code|em|font|i|nobr|s|small|strike|strong|tt|u")
CLOSED = re.compile(rf"[{HTML_SPACE}/]*>[^<]*+</([a-z]+)", re.IGNORECASE | re.ASCII)


class Tag(NamedTuple):
    """A tag up to the end of its last attribute, at a place where one may begin. The parser reads
    attributes in end tags too, whose names have their slash here."""

    name: str
    start: int
    end: int
    attributes: int


def check_html(sources: Sequence[str], pointer: str) -> None:
    """Raise TooLarge for more markup than the parser reads quickly, in all sources together, of
    which `check_markup` has limited the tags."""

    def check(found: int, limit: int, what: str, advice: str = "send less HTML at a time") -> None:
        if found > limit:
            detail = f"has {found} {what}, and the limit is {limit}: {advice}"
            raise TooLarge.at(pointer, detail)

    tags = sum(source.count("<") for source in sources)
    attributes = open_ones = read = 0
    for source in sources:
        for tag in find_tags(source):
            attributes += tag.attributes
            check(attributes, MOST_ATTRIBUTES, "or more attributes")
            read += tag.end - tag.start
            check(
                read,
                MOST_READ,
                "characters in tags and after them",
                "close tags and quotes, or send less",
            )
            if tag.attributes and FORMATTING.fullmatch(tag.name):
                read += max(0, source.find("<", tag.end) - tag.end)  # by `is_closed`
                if not is_closed(source, tag):
                    open_ones += tag.end - tag.start + NODE
    advice = "close them at once, such as <b>one</b>, or send less"
    check(tags * open_ones, MOST_COPIED, "bytes of open formatting tags, times its tags", advice)


def find_tags(source: str) -> Iterator[Tag]:
    """Yield the tag at each < or </ before a letter, even in a comment or a quote: only the parser
    can tell these apart."""
    for found in TAG.finditer(source):
        start = found.start()
        name = TAG_NAME.match(source, found.end())
        end, attributes = name.end() if name else start, 0
        while attributes <= MOST_ATTRIBUTES and (attribute := ATTRIBUTE.match(source, end)):
            end, attributes = attribute.end(), attributes + 1
        yield Tag(name[0].lower() if name else "", start, end, attributes)


def is_closed(source: str, tag: Tag) -> bool:
    """Return whether a tag is closed at once, after a text without other tags."""
    closed = CLOSED.match(source, tag.end)
    return closed is not None and closed[1].lower() == tag.name


def read_html(source: str) -> list[MarkupEvent]:
    """Return the events of HTML. Raise Invalid if the parser is not installed."""
    text = source.removeprefix(BYTE_ORDER_MARK)
    page = parse_html(text)
    keep_line_breaks(page)
    node, declared = first_node(page), find_declarations(text)
    events: list[MarkupEvent] = [] if text == source else [Leaf([BYTE_ORDER_MARK], shown=False)]
    around: list[tuple[Element, LexborNode | None]] = []  # open elements, and what follows them
    while node is not None or around:
        if node is None:
            opened, node = around.pop()
            events.append(ElementEnd(opened))
            continue
        read = read_node(node, declared)
        events.append(read)
        if isinstance(read, Element):
            around.append((read, node.next))
            node = node.child
        else:
            node = node.next
    mark_breaks(events)
    return events


def parse_html(source: str) -> "LexborHTMLParser":
    """Parse a document, or a part of one."""
    try:
        from selectolax.lexbor import LexborHTMLParser
    except ImportError as error:
        detail = (
            "is html, which needs the package selectolax: run pipx install --force '.[protocols]',"
            " or pip install 'heed-server[protocols]', or send xml or text"
        )
        raise Invalid.at("/markup", detail) from error
    if DOCUMENT.match(source):
        return LexborHTMLParser(source)
    # Inside <template> any element may stand, such as the row of a table.
    return LexborHTMLParser(BEFORE_PART + source, is_fragment=True, fragment_tag="template")


def first_node(page: "LexborHTMLParser") -> "LexborNode | None":
    """Return the first node of a page, such as a document type, without BEFORE_PART."""
    node = page.root
    while node and node.prev:
        node = node.prev
    return node.next if node and node.is_comment_node and node.comment_content == "" else node


def keep_line_breaks(page: "LexborHTMLParser") -> None:
    """Double a line break at the start of these elements, because parsers drop one."""
    for element in page.css("pre, textarea, listing"):
        first = element.child
        if first and first.is_text_node and (first.text_content or "").startswith("\n"):
            first.insert_before("\n")


def find_declarations(source: str) -> dict[str, str]:
    """Return the document type, by DOCUMENT_TYPE, and the instructions."""
    declared = find_instructions(source)
    if (found := DOCUMENT.match(source)) and found[1].startswith("!"):
        start = found.start(1) - 1
        if end := source.find(">", start) + 1:
            declared[DOCUMENT_TYPE] = source[start:end]
    return declared


def find_instructions(source: str) -> dict[str, str]:
    """Return what looks like an instruction, even in a comment or a quote, by what the parser
    writes: a comment for <?xml ?>, and others with a space before their end.

    If a comment of the source has the same text, both stay comments: the parser moves some, so
    that their order does not tell which is which."""
    lines = source.replace("\r\n", "\n").replace("\r", "\n").replace("\0", REPLACEMENT)
    found = INSTRUCTION.findall(lines)
    comments = {text.rstrip("-!") for opened, text in found if opened}  # without --> and --!>
    texts = [text for opened, text in found if not opened]
    declared = {f"<{each[:-1]} ?>": f"<{each}>" for each in texts if each.endswith("?")}
    declared |= {f"<{each}>": f"<{each}>" for each in texts}
    apart = (each for each in texts if each.rstrip("-!") not in comments)
    return declared | {f"<!--{each}-->": f"<{each}>" for each in apart}


def read_node(node: "LexborNode", declared: Mapping[str, str]) -> MarkupEvent:
    if node.is_text_node:
        return node.text_content or ""
    if not node.is_element_node:
        return Leaf([write_declaration(node, declared)], shown=False)
    name, attributes = node.tag or "", node.attributes
    breaks, shown = bool(BREAK_NAME.fullmatch(name)), not HIDDEN_NAME.fullmatch(name)
    if is_kept(name, attributes):
        return Leaf([write_kept(node.html or "")], breaks, shown)
    parts: TagParts = [f"<{name}"]
    for key, value in attributes.items():
        if key in TRANSLATED and value:
            parts += [f' {key}="', Attribute(value), '"']
        else:
            parts.append(f' {key}="{write_text(value or "", escape_value)}"')
    parts.append(">")
    return (
        Leaf(parts, breaks, shown)
        if VOID_NAME.fullmatch(name)
        else Element(parts, f"</{name}>", breaks)
    )


def write_declaration(node: "LexborNode", declared: Mapping[str, str]) -> str:
    """Return a comment; a document type and an instruction as it was declared."""
    written = node.html or ""
    key = DOCUMENT_TYPE if written.startswith(DOCUMENT_TYPE) else written
    return declared.get(key, written)


def write_kept(written: str) -> str:
    """Return an element that is left as it is, in whose placeholders > stays. Text that has no
    references stays as it is, and so does all text beside RAW."""
    if GREATER in written or RAW.search(written):
        return written
    found = KEPT_PART.sub(
        lambda each: each[0] if each[0].startswith("<") else each[0].replace(GREATER, ">"),
        written.replace("&gt;", GREATER),
    )
    return found.replace(GREATER, "&gt;")


def mark_breaks(events: Sequence[MarkupEvent]) -> None:
    """Mark each element with a break inside as a break, such as a link around paragraphs."""
    around: list[Element] = []
    for event in events:
        if isinstance(event, ElementEnd):
            around.pop()
            continue
        if not isinstance(event, str) and event.breaks:
            for outer in reversed(around):
                if outer.breaks:
                    break  # and so do all around it
                outer.breaks = True
        if isinstance(event, Element):
            around.append(event)
