"""Find the words of a glossary in texts."""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field

from service.text.words import ALONE

# A character of a script without spaces, a run of other letters and digits, or another sign
UNIT = re.compile(rf"[{ALONE}]|[^\W{ALONE}]+|[^\w\s]")


@dataclass(slots=True)
class Node:
    """A place in the trie of all entries, whose edges are units in small letters."""

    next: "dict[str, Node]" = field(default_factory=dict[str, "Node"])
    any_case: str | None = None  # the entry that ends here, if it has no capitals
    cased: dict[tuple[str, ...], str] = field(default_factory=dict[tuple[str, ...], str])


class Glossary:
    """Entries of one or more words.

    An entry with a capital is found only as it is written; others also with capitals. White space
    and the two forms of a letter with a mark make no difference.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self._root = Node()
        for entry in entries:
            units, node = units_of(entry), self._root
            for unit in units:
                node = node.next.setdefault(unit.casefold(), Node())
            if entry == entry.lower():
                node.any_case = entry
            else:
                node.cased[tuple(units)] = entry

    def find(self, text: str) -> list[str]:
        """Return the entries that a text has, each once, in the order of the text.

        Entries are found as whole words. Of those that overlap, the first counts, and of those that
        begin together the longest.
        """
        units = units_of(text)
        folded = [unit.casefold() for unit in units]
        found: dict[str, None] = {}
        start = 0
        while start < len(units):
            entry, end = self._longest(units, folded, start)
            if entry is not None:
                found[entry] = None
            start = end
        return [*found]

    def _longest(self, units: list[str], folded: list[str], start: int) -> tuple[str | None, int]:
        """Return the longest entry that begins at a unit, and the unit after it."""
        node, end = self._root, start
        found, after = None, start + 1
        while end < len(units) and (next_node := node.next.get(folded[end])):
            node, end = next_node, end + 1
            entry = node.any_case
            if node.cased:
                entry = node.cased.get(tuple(units[start:end]), entry)
            if entry is not None:
                found, after = entry, end
        return found, after


def units_of(text: str) -> list[str]:
    """Return the words of a text and the other signs in it."""
    return UNIT.findall(unicodedata.normalize("NFC", text))
