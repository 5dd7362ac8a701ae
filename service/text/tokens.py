"""Texts as tokens, with the place of each token in its text."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)  # not frozen, which would take three times as long to make
class Token:
    """`start` and `end` count characters of the text; null for special tokens, which have none.

    A character other than a space belongs to one token. If several tokens share it, it belongs to
    the last of them; the others get an empty place.
    """

    text: str
    id: int
    start: int | None
    end: int | None


class Tokens:
    """A tokenized text: what enters the encoder, or what the decoder is to predict.

    The text may be a part of another one, in which it begins at `start` and in which its tokens
    count.
    """

    __slots__ = ("_read", "_tokens", "ids", "start", "text")

    def __init__(self, text: str, tokens: list[Token], start: int = 0) -> None:
        self.text, self.start, self.ids = text, start, [token.id for token in tokens]
        self._tokens: list[Token] | None = tokens
        self._read: Callable[[], list[Token]] = list

    @classmethod
    def of(cls, text: str, ids: list[int], read: Callable[[], list[Token]]) -> "Tokens":
        """Return a text with these ids. `read` makes its tokens, which few requests need."""
        made = cls(text, [])
        made.ids, made._tokens, made._read = ids, None, read
        return made

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> list[Token]:
        tokens = self._tokens
        if tokens is None:
            tokens = self._tokens = self._read()
        return tokens

    def shift(self, by: int) -> "Tokens":
        """Return the same text as a part of another one, in which it begins `by` characters later
        than now."""

        def shifted(token: Token) -> Token:
            if token.start is None or token.end is None:
                return token
            return Token(token.text, token.id, token.start + by, token.end + by)

        moved = Tokens.of(self.text, self.ids, lambda: list(map(shifted, self.tokens)))
        moved.start = self.start + by
        return moved
