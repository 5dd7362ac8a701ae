"""Events of a parsed document: its texts, and its markup as it is written again."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from xml.sax.saxutils import escape

HTML_SPACE = " \t\n\r\f"
BYTE_ORDER_MARK = "\ufeff"
SPACES = re.compile(f"[{HTML_SPACE}]+")
# Elements left as they are: those that browsers' translators leave, and those without prose
KEPT_NAME = re.compile(
    "code|kbd|samp|var|math|svg|pre|xmp|plaintext|script|style|template|textarea|audio|canvas|iframe"
    "|noembed|noframes|object|video"
)

# {{ name }}, {% if name > 1 %}, {name}, {0}, {n:>3}, ${name}, %s, %(name)d, %1$s and such
PLACEHOLDER = re.compile(
    r"\$?\{{2,3}[^{}<&]{1,200}\}{2,3}|\{%[^{}<&]{1,200}%\}"
    r'|\$?\{\{?[^{}<&"\s]{0,64}\}\}?'
    r"|(?<![\d%])%(?:%|(?:\(\w{1,64}\)|\d{1,2}\$)?[-+#0]*\d{0,3}(?:\.\d{1,3})?[sdiufFeEgGxXoc@])"
    r"(?![A-Za-z])"
)


class Attribute(NamedTuple):
    """The value of an attribute to translate."""

    text: str


TagParts = list[str | Attribute]


@dataclass(slots=True)
class Element:
    """An element: its start tag and its end tag. `breaks`: what stands before it, in it and after
    it are texts of their own, as for a paragraph."""

    start: TagParts
    end: str
    breaks: bool


class ElementEnd(NamedTuple):
    """The end of an element."""

    of: Element


class Leaf(NamedTuple):
    """Markup without text to translate: an empty element, a comment, an element left as it is.
    `shown`: a reader sees something in its place, which is kept apart from words."""

    parts: TagParts
    breaks: bool = False
    shown: bool = True


MarkupEvent = str | Element | ElementEnd | Leaf


def is_kept(name: str, attributes: Mapping[str, str | None]) -> bool:
    """Return whether an element is left as it is: by its name, or because it says so."""
    translate, classes = attributes.get("translate") or "", attributes.get("class") or ""
    says_no = translate.lower() == "no" or "notranslate" in classes.split()
    return says_no or KEPT_NAME.fullmatch(name) is not None


def escape_value(text: str) -> str:
    """Return the value of an attribute, in double quotes."""
    return escape(text, {'"': "&quot;"})


def write_text(text: str, write: Callable[[str], str]) -> str:
    """Return a text, or a value, as `write` escapes it, with its placeholders."""
    written, start = list[str](), 0
    for found in PLACEHOLDER.finditer(text):
        written += [write(text[start : found.start()]), write_placeholder(found[0], write)]
        start = found.end()
    return "".join([*written, write(text[start:])])


def write_placeholder(found: str, write: Callable[[str], str]) -> str:
    """Return a placeholder in which > stays, as in {{ a > b }}, where it may."""
    written = write(found)
    return written if "]]>" in found else written.replace("&gt;", ">")
