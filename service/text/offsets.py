"""The tokens of a text, and where each lies in it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Token:
    """`start` and `end` count characters of the text; null for special tokens, which have none.

    A character other than a space belongs to one token. If several tokens share it, it belongs to
    the last of them; the others get an empty place.
    """

    text: str
    id: int
    start: int | None
    end: int | None


def close_gaps(text: str, tokens: Sequence[Token]) -> list[Token]:
    """Give every character but spaces to one token, whatever a normalizer made of it.

    A token begins where the one before it ended, after spaces, and ends before the characters that
    it shares with the next one. A token that shares all its characters, such as a normalizer's
    first space, gets none.
    """
    stops: list[int] = []
    shared = len(text)
    for token in reversed(tokens):
        start, end = token.start or 0, token.end or 0
        stops.append(min(end, shared) if shared > start else 0)
        shared = min(shared, start)
    stops[0] = max(stops[0], len(text.rstrip()))
    closed: list[Token] = []
    end = 0
    for token, stop in zip(tokens, reversed(stops), strict=True):
        part = text[end:stop]
        word = part.lstrip() or part  # a space that joins words belongs to neither
        end = max(end, stop)
        closed.append(Token(token.text, token.id, end - len(word), end))
    return closed


def place(text: str, tokens: Sequence[Token], i: int) -> str:
    """Quote the i-th token as it was typed, with its offset.

    The quote reaches to the next token, so that combining marks stay with their letter.
    """
    start, end = tokens[i].start or 0, tokens[i].end or 0
    following = tokens[i + 1].start if i + 1 < len(tokens) else len(text)
    typed = text[start : max(end, following or 0)].strip() or text[start:end]
    return f"{typed!r} at offset {start}"
