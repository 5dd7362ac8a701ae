"""The words of a text, and which tokens write each of them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from service.text.tokens import Token, Tokens

RUN = re.compile(r"\S+")
# Characters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, Chinese, Japanese
ALONE = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
WITHOUT_SPACES = re.compile(f"[{ALONE}]")


@dataclass(frozen=True, slots=True)
class WordSpan:
    """A part of a text, from character `start` to before `end`, and the indices of its tokens."""

    text: str
    start: int
    end: int
    tokens: list[int]


def find_words(text: Tokens) -> list[WordSpan]:
    """Return the words of a text: its parts between white space. In scripts that do not space
    their words, every token begins a word.

    A token that reaches over a space belongs to the words on both sides.
    """
    if by := text.start:
        found = find_words(text.shift(-by))
        return [WordSpan(word.text, word.start + by, word.end + by, word.tokens) for word in found]
    words = [WordSpan(text.text[start:end], start, end, []) for start, end in spans(text)]
    first = 0  # of the words that a token may be in: tokens come in the order of the text
    for index, token in enumerate(text.tokens):
        if token.start is None or token.end is None:
            continue
        while first < len(words) and words[first].end <= token.start:
            first += 1
        for word in words[first:]:
            if token.start < token.end <= word.start:
                break  # the token is only a space
            # A token without characters of its own shares those that follow, so their word.
            word.tokens.append(index)
            if token.end <= word.end:
                break
    return words


def spans(text: Tokens) -> Iterator[tuple[int, int]]:
    """Yield start and end of each word."""
    starts = [token.start for token in text.tokens if starts_word(text.text, token)]
    for run in RUN.finditer(text.text):
        inside = [start for start in starts if start and run.start() < start < run.end()]
        yield from zip([run.start(), *inside], [*inside, run.end()], strict=True)


def starts_word(text: str, token: Token) -> bool:
    """Return whether a token stands beside a character of a script that does not space words."""
    if not token.start or token.start == token.end:
        return False
    return bool(WITHOUT_SPACES.search(text, token.start - 1, token.start + 1))
