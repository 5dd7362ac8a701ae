"""Texts as tokens, with the place of each token in its text."""

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Encoding
from tokenizers import Tokenizer as Library

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]  # tokens of sentencepiece's byte fallback
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


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


def visible(name: str) -> str:
    """Return a token's name without the space at its end that keeps texts from reaching it."""
    return name.removesuffix(" ") or name


def name_of(library: Library, token_id: int) -> str:
    """Return a token as it is shown; an empty text for an id that the library lacks."""
    return visible(library.id_to_token(token_id) or "")


def bytes_of(library: Library) -> dict[int, bytes]:
    """Return the ids that stand for one byte each; none if a byte has no id."""
    ids = [library.token_to_id(name) for name in BYTES]
    if None in ids:
        return {}
    return {i: bytes([byte]) for byte, i in enumerate(ids) if i is not None}


def close_gaps(text: str, encoding: Encoding) -> list[Token]:
    """Give every character but spaces to one token, whatever a normalizer made of it.

    A token begins where the one before it ended, after spaces, and ends before the characters that
    it shares with the next one. A token that shares all its characters, such as a normalizer's
    first space, gets none.
    """
    stops: list[int] = []
    shared = len(text)
    for start, end in reversed(encoding.offsets):
        stops.append(min(end, shared) if shared > start else 0)
        shared = min(shared, start)
    stops[0] = max(stops[0], len(text.rstrip()))
    closed: list[Token] = []
    end = 0
    for name, token_id, stop in zip(encoding.tokens, encoding.ids, reversed(stops), strict=True):
        part = text[end:stop]
        word = part.lstrip() or part  # a space that joins words belongs to neither
        end = max(end, stop)
        closed.append(Token(visible(name), token_id, end - len(word), end))
    return closed
