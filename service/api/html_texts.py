"""Replace the texts of HTML, and leave its markup as it is."""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from service.errors import Invalid, TooLarge

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

MOST_TAGS = 5000  # in a request. To parse nested ones takes quadratic time.
KEPT = frozenset(("code", "pre", "script", "style", "textarea"))  # elements whose texts stay
DOCUMENT = re.compile(r"\s*<(!doctype|html|head|body)\b", re.IGNORECASE)
SPACES = re.compile(r"[ \t\n\r\f]+")


def check_tags(sources: Iterable[str], translations: int, pointer: str) -> None:
    """Raise TooLarge for more than MOST_TAGS tags in all of them, each counted as often as it is
    parsed again to write a translation."""
    tags = translations * sum(source.count("<") for source in sources)
    if tags > MOST_TAGS:
        each = f", counted for each of {translations} translations" if translations > 1 else ""
        detail = f"has {tags} tags{each}, and the limit is {MOST_TAGS}: send less HTML at a time"
        raise TooLarge.at(pointer, detail)


def texts_of(source: str) -> list[str]:
    """Return the texts that have letters or digits. White space is a single space, as browsers show
    it. Raise Invalid without the parser."""
    return [SPACES.sub(" ", node.text_content or "") for node in nodes_of(parse(source))]


def replace_texts(source: str, targets: Iterable[str]) -> str:
    """Replace the texts that `texts_of` returns, in order. The HTML is then well-formed: tags that
    were left open are closed as browsers do it."""
    page = parse(source)
    for node, target in zip(list(nodes_of(page)), targets, strict=True):
        node.replace_with(target)
    return page.html or ""


def parse(source: str) -> "LexborHTMLParser":
    """Parse a document, or a part of one."""
    try:
        from selectolax.lexbor import LexborHTMLParser
    except ImportError as error:
        detail = (
            "is html, which needs the package selectolax: install heed[protocols], or send text"
        )
        raise Invalid.at("/format", detail) from error
    if DOCUMENT.match(source):
        return LexborHTMLParser(source)
    # Inside <template> any element may stand, such as the row of a table.
    return LexborHTMLParser(source, is_fragment=True, fragment_tag="template")


def nodes_of(page: "LexborHTMLParser") -> Iterator["LexborNode"]:
    """Yield the nodes of the texts, in their order."""
    left = [page.root]
    while left:
        node = left.pop()
        if node is None:
            continue
        left.append(node.next)
        if any(map(str.isalnum, node.text_content or "")):  # elements have none
            yield node
        elif node.tag not in KEPT and node.attributes.get("translate") != "no":
            left.append(node.child)
