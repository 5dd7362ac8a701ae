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


@dataclass(slots=True, eq=False)
class Tokens:
    """A tokenized text: what enters the encoder, or what the decoder is to predict.

    The text may be a part of another one, in which it begins at `start` and in which its tokens
    count. `read` makes the tokens, which few requests need.
    """

    text: str
    ids: list[int]
    read: Callable[[], list[Token]]
    start: int = 0
    _tokens: list[Token] | None = None

    @classmethod
    def of(cls, text: str, tokens: list[Token]) -> "Tokens":
        return cls(text, [token.id for token in tokens], lambda: tokens)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> list[Token]:
        tokens = self._tokens
        if tokens is None:
            tokens = self._tokens = self.read()
        return tokens

    def shift(self, by: int) -> "Tokens":
        """Return the same text as a part of another one, in which it begins `by` characters later
        than now."""

        def shifted(token: Token) -> Token:
            if token.start is None or token.end is None:
                return token
            return Token(token.text, token.id, token.start + by, token.end + by)

        moved = self.start + by
        return Tokens(self.text, self.ids, lambda: list(map(shifted, self.tokens)), moved)
