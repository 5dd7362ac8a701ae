"""Replace the characters of a text that cannot be drawn.

XML forbids most control characters and fonts have no glyphs for them. Some others break the line
(U+0085, U+2028, U+2029) or reorder what follows them (U+202A to U+202E, U+2066 to U+2069).
"""

UNKNOWN = "\ufffd"
REPLACED = {
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], UNKNOWN),
    **dict.fromkeys([*range(0xD800, 0xE000), 0xFFFE, 0xFFFF], UNKNOWN),
    **dict.fromkeys([0x85, 0x2028, 0x2029], "↵"),
    **{control: chr(0x2400 + control) for control in range(0x20)},  # its symbol
    0x7F: "\u2421",
}


def printable(text: str) -> str:
    """Return `text` with every character that cannot be drawn replaced by one that can."""
    return text.translate(REPLACED)
