"""Events of a parsed document: its texts, and its markup as it is written again."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from xml.sax.saxutils import escape

HTML_SPACE = " \t\n\r\f"
SPACES = re.compile(f"[{HTML_SPACE}]+")
# Elements left as they are: those that browsers' translators leave, and those without prose
KEPT_NAME = re.compile(
    "code|kbd|samp|var|math|svg|pre|xmp|plaintext|script|style|template|textarea|audio|canvas|iframe"
    "|noembed|noframes|object|video"
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
    classes = attributes.get("class") or ""
    says_no = attributes.get("translate") == "no" or "notranslate" in classes.split()
    return says_no or KEPT_NAME.fullmatch(name) is not None


def escape_value(text: str) -> str:
    """Return the value of an attribute, in double quotes."""
    return escape(text, {'"': "&quot;"})
