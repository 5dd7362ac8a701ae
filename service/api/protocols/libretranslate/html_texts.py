"""Replace the texts of HTML, and leave its markup as it is."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from service.errors import Invalid, TooLarge
from service.text.tokenizer import has_letters

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

# Limits on a request. The parser takes quadratic time or memory for these, and cannot be stopped.
MOST_TAGS = 5000  # which may be nested
MOST_ATTRIBUTES = 5000  # each is compared with the others of its tag
MOST_COPIED = 64 << 20  # bytes of nodes: a tag of FORMATTING that is left open, for each later tag
MOST_READ = 8 << 20  # characters read to find the ends of tags: tags in open quotes overlap
NODE = 300  # bytes of a copied tag in addition to its text
KEPT = frozenset(("code", "pre", "script", "style", "textarea"))  # elements left untranslated
DOCUMENT = re.compile(r"\s*<(!doctype|html|head|body)\b", re.IGNORECASE)
TAG = re.compile(r"<(?=[a-z])", re.IGNORECASE)
HTML_SPACE = r" \t\n\r\f"
TAG_NAME = re.compile(rf"[^{HTML_SPACE}/>]*")
VALUE = rf""""[^"]*"?|'[^']*'?|[^{HTML_SPACE}>"'][^{HTML_SPACE}>]*"""
ATTRIBUTE = re.compile(
    rf"[{HTML_SPACE}/]*(?:=[^{HTML_SPACE}/>=]*|[^{HTML_SPACE}/>=]+)"
    rf"(?:[{HTML_SPACE}]*=[{HTML_SPACE}]*(?:{VALUE})?)?"
)
# Elements that the parser opens again in every later one until they are closed, as <b> in
# <p><b>one</p><p>two. It repeats equal ones only a few times, and <a> not at all.
FORMATTING = re.compile("b|big|code|em|font|i|nobr|s|small|strike|strong|tt|u")
CLOSED = re.compile(rf"[{HTML_SPACE}/]*>[^<]*+</([a-z]+)", re.IGNORECASE | re.ASCII)
SPACES = re.compile(f"[{HTML_SPACE}]+")

Wanted = Callable[[str], bool]  # whether a text is translated


class Tag(NamedTuple):
    """A start tag up to the end of its last attribute, at a place where a tag may begin."""

    name: str
    start: int
    end: int
    attributes: int


def check_html(sources: Sequence[str], translations: int, pointer: str) -> None:
    """Raise TooLarge for more markup than the parser reads quickly, in all sources together. Each
    source counts once for each translation, since each parses it again."""
    each = f", counted for each of {translations} translations" if translations > 1 else ""

    def check(found: int, limit: int, what: str, advice: str = "send less HTML at a time") -> None:
        if translations * found > limit:
            detail = f"has {translations * found} {what}{each}, and the limit is {limit}: {advice}"
            raise TooLarge.at(pointer, detail)

    tags = sum(source.count("<") for source in sources)
    check(tags, MOST_TAGS, "tags")
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
    """Yield the tag at each < before a letter, even in a comment or a quote: only the parser can
    tell these apart."""
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


def html_texts_of(source: str, wanted: Wanted = has_letters) -> list[str]:
    """Return the texts that are `wanted`. White space is a single space, as browsers show it. Raise
    Invalid if the parser is not installed."""
    nodes = nodes_of(parse_html(source), wanted)
    return [SPACES.sub(" ", node.text_content or "") for node in nodes]


def replace_texts(source: str, targets: Iterable[str], wanted: Wanted = has_letters) -> str:
    """Replace the texts that `html_texts_of` returns, in order. The HTML is then well-formed: tags
    that were left open are closed as browsers do it."""
    page = parse_html(source)
    for node, target in zip(list(nodes_of(page, wanted)), targets, strict=True):
        node.replace_with(target)
    return page.html or ""


def parse_html(source: str) -> "LexborHTMLParser":
    """Parse a document, or a part of one."""
    try:
        from selectolax.lexbor import LexborHTMLParser
    except ImportError as error:
        detail = (
            "is html, which needs the package selectolax: run pip install"
            " 'heed-server[protocols]', or send text"
        )
        raise Invalid.at("/format", detail) from error
    if DOCUMENT.match(source):
        return LexborHTMLParser(source)
    # Inside <template> any element may stand, such as the row of a table.
    return LexborHTMLParser(source, is_fragment=True, fragment_tag="template")


def nodes_of(page: "LexborHTMLParser", wanted: Wanted) -> Iterator["LexborNode"]:
    """Yield the nodes of the wanted texts, in their order."""
    left = [page.root]
    while left:
        node = left.pop()
        if node is None:
            continue
        left.append(node.next)
        if wanted(node.text_content or ""):  # elements have none
            yield node
        elif node.tag not in KEPT and node.attributes.get("translate") != "no":
            left.append(node.child)
