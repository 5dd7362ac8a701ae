"""Write the ids of a target as text, one after the other."""

import codecs
import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TypeVar

from tokenizers import Tokenizer as Library
from tokenizers.decoders import DecodeStream

from service.errors import PassFailed, shorten_line

INVALID = re.compile("[\udc80-\udcff]")  # bytes that are not UTF-8, as Python decodes them
ANY_LETTER = "a"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LONGEST_REASON = 200  # characters quoted from an error of the library

Returned = TypeVar("Returned")


class LibraryError(Exception):
    """An error of the library of tokenizers, in one short line."""


class Reader:
    """Takes ids one after the other and returns what each adds to the text. A character that needs
    several ids comes whole, with the last of them. Raises PassFailed if the library fails."""

    def __init__(
        self, library: Library, special_ids: Set[int], byte_of: Mapping[int, bytes]
    ) -> None:
        """`byte_of` has the bytes of the ids that stand for one each, if a vocabulary has them."""
        self._library = library
        self._special_ids = special_ids
        self._bytes = byte_of
        self._step = DecodeStream(skip_special_tokens=True).step
        self._utf8 = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._read: list[int] = []  # without special ids
        self._pieces: list[str] = []  # of these

    def __call__(self, token_id: int) -> str:
        if token_id in self._special_ids:
            return ""
        if self._bytes:
            return self._add_to_bytes(token_id)
        self._read.append(token_id)
        self._pieces.append(write_text(lambda: self._step(self._library, token_id) or ""))
        return self._pieces[-1]

    def rest(self) -> str:
        """Return what the text ends with, if no id follows: a character that is incomplete."""
        if self._bytes:
            return self._cut_bytes()
        return rest_of(self._library, self._read, self._pieces)

    def _add_to_bytes(self, token_id: int) -> str:
        if byte := self._bytes.get(token_id):
            # With each byte the library decodes all bytes before it again, and raises an error if
            # their text changes. It gets a letter in their place: the text goes on.
            letter = next(i for i, each in self._bytes.items() if each == ANY_LETTER.encode())
            before = (self._write(letter) or ANY_LETTER).removesuffix(ANY_LETTER)
            return before + INVALID.sub(REPLACEMENT, self._utf8.decode(byte))
        return self._cut_bytes() + self._write(token_id)

    def _cut_bytes(self) -> str:
        return INVALID.sub(REPLACEMENT, self._utf8.decode(b"", final=True))

    def _write(self, token_id: int) -> str:
        return write_text(lambda: self._step(self._library, token_id) or "")


def rest_of(library: Library, ids: Sequence[int], pieces: Sequence[str]) -> str:
    """Return what the library writes at the end of ids, beyond the pieces of its stream. This holds
    a character back until it is complete, and never gives one that stays incomplete."""
    if not pieces or pieces[-1]:
        return ""
    text, sent = write_text(lambda: library.decode([*ids])), "".join(pieces)
    return text[len(sent) :] if text.startswith(sent) and text.endswith(REPLACEMENT) else ""


def call(work: Callable[[], Returned]) -> Returned:
    """Return what the library returns. Raise LibraryError for all its errors: they have no class of
    their own. A panic, such as for a pattern that takes too long on a text, does not even derive
    from Exception: nobody else would catch it."""
    try:
        return work()
    except (KeyboardInterrupt, MemoryError, SystemExit):
        raise
    except BaseException as error:
        raise LibraryError(shorten_line(str(error), LONGEST_REASON)) from error


def write_text(work: Callable[[], Returned]) -> Returned:
    """Return what the library makes of ids. Raise PassFailed if it fails."""
    try:
        return call(work)
    except LibraryError as error:
        raise PassFailed(f"the tokenizer cannot write these ids as text: {error}") from error
