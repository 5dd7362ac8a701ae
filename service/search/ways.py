"""Write a phrase as tokens, in the ways in which a target may contain it."""

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property

from service.errors import HeedError
from service.search.phrases import Phrase, is_spaced_letter
from service.text.tokenizer import Tokenizer

# Signs after which a phrase is tokenized as in the middle of a text; a vocabulary may lack some
SIGNS = ("(", '"', "-", "'", ",", ".")
REMEMBERED_PHRASES = 1 << 9  # phrases


class Ways:
    """Writes phrases as tokens of a target, and remembers them: most come again. Any number of
    threads may use it."""

    def __init__(self, target: Tokenizer) -> None:
        self._target = target
        self._written: dict[str, list[Phrase]] = {}

    def size(self, text: str) -> int:
        """Return how many characters `of` tokenizes: none of a phrase that it remembers, else those
        of the phrase alone, of two of it, and of the one after a sign."""
        return 0 if text in self._written else 4 * len(text)

    def of(self, text: str, pointer: str) -> list[Phrase]:
        """Return a phrase at the start of a target, after a space, and after a sign. Raise the
        errors of the tokenizer."""
        found = self._written.get(text)
        if found is None:
            alone = self._read(text, pointer, known=True)
            ways = dict.fromkeys([alone, *self._write_later(text, alone)])
            found = [Phrase(ids, self._starts_word(ids)) for ids in ways]
            if len(self._written) >= REMEMBERED_PHRASES:
                self._written.clear()
            self._written[text] = found
        return found

    def _write_later(self, text: str, alone: tuple[int, ...]) -> list[tuple[int, ...]]:
        ways: list[tuple[int, ...]] = []
        with suppress(HeedError):
            ways += after(alone, self._read(f"{text} {text}"))
        for sign, before in self._signs:
            with suppress(HeedError):
                if found := after(before, self._read(sign + text)):
                    return ways + found
        return ways

    @cached_property
    def _signs(self) -> list[tuple[str, tuple[int, ...]]]:
        """The signs that the vocabulary has, with their ids."""
        signs: list[tuple[str, tuple[int, ...]]] = []
        for sign in SIGNS:
            with suppress(HeedError):
                signs.append((sign, self._read(sign, known=True)))
        return signs

    def _read(self, text: str, pointer: str = "", *, known: bool = False) -> tuple[int, ...]:
        return tuple(self._target.encode(text, pointer, known=known).ids[:-1])  # without eos

    def _starts_word(self, ids: Sequence[int]) -> bool:
        """Return whether these ids would continue a word that precedes them, and should not."""
        text = self._target.decode(ids).text.strip()
        joined = self._target.decode([*ids, *ids]).text.removesuffix(text)
        return bool(text) and is_spaced_letter(text[0]) and not joined[-1:].isspace()


def after(before: tuple[int, ...], ids: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return what follows `before` in `ids`, nothing if these begin otherwise."""
    return [ids[len(before) :]] if ids[: len(before)] == before else []
