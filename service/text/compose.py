"""Compose letters with marks that were typed as separate characters, such as e and U+0301.

The normalizers of sentencepiece models compose them. When the tokenizers library runs such a
normalizer, it drops the marks of some letters: the letter and all its marks together are replaced
by the normalized form of the letter alone.
"""

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache

from tokenizers import NormalizedString
from tokenizers.normalizers import Normalizer, Sequence

DIVIDER = "\x07"  # keeps marks from their letter, until a normalizer deletes it
REMEMBERED_SEQUENCES = 1 << 14  # sequences
MOST_WORK = 1 << 25  # characters of a text, times its sequences: about 0.1 seconds
HANGUL = [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]  # vowels and finals, composed by rule
TWO_BYTES = 0x800  # the library looks at letters and marks of up to 5 bytes together
VOWELS = "\u0e33\u0eb3"  # letters of Thai and Lao that it takes for marks, as UAX 29 does


def with_compose(normalizer: Normalizer) -> Normalizer:
    """Return `normalizer`, which composes, after the steps that let it keep every mark."""
    return Sequence([Normalizer.custom(Compose(normalizer)), normalizer])


def takes_long(text: str) -> bool:
    """Return whether `with_compose` takes long on a text: it searches the whole text for each
    sequence in it."""
    if len(text) ** 2 <= MOST_WORK or text.isascii():
        return False
    return len(text) * len({match[1] for match in find_sequences(text)}) > MOST_WORK


class Compose:
    def __init__(self, normalizer: Normalizer) -> None:
        self._normalizer = normalizer
        self._divides = DIVIDER not in normalizer.normalize_str(DIVIDER)
        self._replacement = lru_cache(REMEMBERED_SEQUENCES)(self._find_replacement)

    def normalize(self, text: NormalizedString) -> None:
        sequences = {match[1] for match in find_sequences(text.normalized)}
        found = dict(filter(None, map(self._replacement, sequences)))
        # Dividers first: what follows one may be composed with its own marks afterwards.
        for typed in sorted(found, key=lambda key: (DIVIDER in found[key], len(key)), reverse=True):
            text.replace(typed, found[typed])

    def _find_replacement(self, sequence: str) -> tuple[str, str] | None:
        """Return the part of `sequence` to replace, and its replacement; None to keep it.

        Marks are composed with their letter. If the normalizer replaces the letter, DIVIDER goes
        between the letter and the first mark that is left.
        """
        end = next((end for end in range(len(sequence), 1, -1) if compose(sequence[:end])), 1)
        letter = (end > 1 and compose(sequence[:end])) or sequence[0]
        if end < len(sequence) and self._divides and self._replaces(letter):
            return sequence[: end + 1], letter + DIVIDER + sequence[end]
        return (sequence[:end], letter) if end > 1 else None

    def _replaces(self, letter: str) -> bool:
        return letter not in self._normalizer.normalize_str(letter)


def compose(typed: str) -> str | None:
    """Return the one character that NFKC makes of `typed`, as sentencepiece does: no part may be
    composed already or out of its order."""
    apart = "".join(unicodedata.normalize("NFKD", character) for character in typed)
    composed = unicodedata.normalize("NFC", apart)
    whole = len(apart) == len(typed) and unicodedata.normalize("NFD", composed) == apart
    return composed if whole and len(composed) == 1 else None


def find_sequences(text: str) -> Iterator[re.Match[str]]:
    """Yield every character with up to 3 that may join it, as group 1. Matches overlap."""
    return pattern().finditer(text)


@cache
def pattern() -> re.Pattern[str]:
    characters = [chr(code) for code in range(sys.maxunicode + 1)]
    decompositions = [(c, d.split()) for c in characters if (d := unicodedata.decomposition(c))]
    canonical = (codes for _, codes in decompositions if len(codes) == 2 and codes[0][0] != "<")
    joining = {*map(chr, HANGUL), *(chr(int(codes[1], 16)) for codes in canonical)}
    joining |= {c for c, _ in decompositions if unicodedata.normalize("NFKC", c)[0] in joining}
    joining |= {c for c in characters[:TWO_BYTES] if unicodedata.category(c)[0] == "M"}
    two_bytes = chr(TWO_BYTES - 1)
    # All but letters and digits, for this Unicode may lack marks that the library's has
    short = rf"[A-Z\x80-{two_bytes}](?:[^\w\x00-{two_bytes}]|[{VOWELS}])"
    return re.compile(rf"(?=(\r\n|{short}|.[{''.join(sorted(joining))}]{{1,3}}))", re.DOTALL)
