"""Turn text into token ids and back, with the offsets of every token in the text."""

import codecs
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from copy import copy
from functools import cache, lru_cache, partial
from typing import TypeVar

from tokenizers import Encoding
from tokenizers import Tokenizer as Library
from tokenizers.decoders import DecodeStream

from service.errors import Fault, Invalid, PassFailed, TooLarge, shorten, shorten_line
from service.text.compose import takes_long
from service.text.tokens import REPLACEMENT, Token, Tokens, bytes_of, close_gaps, name_of, visible
from service.text.unknown import WORDS, advise, unknown_fault

LONGEST_TOKEN = 64  # characters a token; a text that exceeds the limit even so is not tokenized
UNKNOWN = "<unk>"
WORD_MARK = "\u2581"  # as sentencepiece writes it
VISIBLE = "LNPS"  # categories of Unicode: letters, numbers, punctuation, symbols
LIGATURE, LONGEST_LIGATURE = "\ufdfa", 18  # and how many characters Unicode makes of it
NO_CHARACTER = "\U0010ffff"  # a noncharacter: Unicode will never assign it
NO_CODES: Mapping[str, Sequence[int]] = {}
INVALID_UTF8 = re.compile("[\udc80-\udcff]")  # bytes that are not UTF-8, as Python decodes them
ANY_LETTER = "a"
LONGEST_REASON = 200  # characters quoted from an error of the library
NO_TOKEN = "holds no token; send a text with at least one"
# Characters of a text that is tokenized at once. A longer one is passed to the library as a batch,
# during which the library does not hold the interpreter's lock: it would for milliseconds.
SHORT = 1 << 8
KEPT_NAMES = 1 << 14  # names of tokens that are not asked of the library again

Returned = TypeVar("Returned")


class LibraryError(Exception):
    """An error of the library of tokenizers, in one short line."""


class Tokenizer:
    """The tokenizer of one side of a bundle, source or target.

    Texts get the ids of `between`; ids are taken as they are. Errors name the place of
    the text in the request by a JSON pointer.
    """

    def __init__(
        self,
        library: Library,
        limit: int,
        forbidden: Mapping[int, str],
        generated: bool = False,
        size: int | None = None,
        languages: Mapping[str, Sequence[int]] = NO_CODES,
        composes: bool = False,
    ) -> None:
        """`limit` is the most tokens a sequence may have. Text that encodes to a `forbidden` id
        is refused; so are the ids themselves, unless a decoder may have `generated` them.
        `forbidden` says what each id stands for, such as padding. `size` is the model's number of
        ids: ids that the tokenizer lacks have no text. `languages` are those of targets, if sources
        hold their ids. `composes`: the library has a normalizer of `with_compose`."""
        self._library = library
        self._library.encode_special_tokens = True  # a user who types "<eos>" means text
        self._limit = limit
        self._composes = composes
        self._size = size or library.get_vocab_size()
        self._generated = generated
        self.name: Callable[[int], str] = lru_cache(KEPT_NAMES)(partial(name_of, library))
        self._forbidden = frozenset(forbidden)
        self._forbidden_ids = {} if generated else dict(forbidden)
        self._special_ids = {
            i for i, token in library.get_added_tokens_decoder().items() if token.special
        }
        # Made once: phrases are tried behind signs, most of which a vocabulary may lack
        self._advice = cache(partial(advise, library, self._special_ids))
        self._bytes = bytes_of(library)
        # The ids that stand for text outside the vocabulary
        self.unknown = frozenset(unknown_ids(library) - self._bytes.keys())
        self._prefix: list[Token] = []
        self._suffix: list[Token] = []
        # Whether some token has a letter or a digit. If none has, texts are made of other signs.
        self._knows_letters = any(
            has_letters(library.id_to_token(i) or "")
            for i in range(self._size)
            if i not in self._special_ids and i not in self._forbidden
        )
        codes = {ids[-1]: code for code, ids in languages.items() if ids[-1] in self._special_ids}
        self._typed = {self.name(i): code for i, code in codes.items()}
        self._refused = self._forbidden | self._special_ids

    @property
    def unknown_id(self) -> int | None:
        """Id of a character that the vocabulary lacks; None if it lacks none."""
        if len(self.unknown) == 1:
            return next(iter(self.unknown))
        return self._library.token_to_id(UNKNOWN)  # a tokenizer of bytes may have it, unused

    def has_ids_of(self, other: "Tokenizer") -> bool:
        """Return whether both have the same tokens under the same ids. It takes about 50 ms."""
        mine, theirs = (each._library.get_vocab().items() for each in (self, other))
        return {i: visible(name) for name, i in mine} == {i: visible(name) for name, i in theirs}

    def ids_in(self, other: "Tokenizer", ids: Sequence[int]) -> list[int | None]:
        """Return the ids of the same tokens in another tokenizer, None for those that it lacks."""
        names = map(self._library.id_to_token, ids)
        return [None if name is None else other._library.token_to_id(name) for name in names]

    def between(self, prefix: Sequence[int], suffix: Sequence[int]) -> "Tokenizer":
        """Return this tokenizer with these ids before and after the ids of a text."""
        other = copy(self)
        other._prefix = [self._special(i) for i in prefix]
        other._suffix = [self._special(i) for i in suffix]
        return other

    def has_text(self, text: str) -> bool:
        """Return whether a text has something to decode: letters, digits or, if the vocabulary has
        none of these, anything but white space."""
        return has_letters(text) if self._knows_letters else bool(text.strip())

    def encode(
        self, text: str, pointer: str, *, known: bool = False, placed: bool = False
    ) -> Tokens:
        """Tokenize a text. With `known`, also refuse text that the model reads as unknown. With
        `placed`, make the tokens now, which otherwise takes as long again when they are read.

        Raise Invalid if the text has no token, has characters outside the vocabulary, is not
        Unicode, or begins with the name of a language token; TooLarge beyond the limit.
        """
        encoding = self._read(text, pointer, len(self._prefix) + len(self._suffix))
        if not len(encoding):
            raise Invalid.at(pointer, f"{shorten(text)!r} {NO_TOKEN}")
        ids = encoding.ids
        refused = self._refused | self.unknown if known else self._refused
        if not refused.isdisjoint(ids):
            advice = [self._advice()] if self._generated else [self._advice(), WORDS]
            raise Invalid.of([unknown_fault(pointer, text, encoding, refused, advice)])
        if not (self._generated or has_letters(text) or self._has_signs(encoding)):
            raise Invalid.at(pointer, f"{shorten(text)!r} {NO_TOKEN}")
        return self._tokens_of(text, ids, encoding if placed else None)

    def guess(self, text: str, pointer: str) -> list[int | None]:
        """Return the ids of a text that only guesses at a target, None for tokens that targets
        lack. Raise what `encode` raises about text that is too long or not Unicode, or begins with
        the name of a language token."""
        ids = self._read(text, pointer, 0).ids  # no ids are put around it
        return [None if token_id in self._refused else token_id for token_id in ids]

    def _read(self, text: str, pointer: str, around: int) -> Encoding:
        """Return the library's tokens of a text that is short enough with the ids around it."""
        longest = len(text) + (LONGEST_LIGATURE - 1) * text.count(LIGATURE)  # as normalized
        if longest > self._limit * LONGEST_TOKEN:
            raise self._too_large(pointer, f"{longest} characters")
        if self._composes and takes_long(text):
            raise self._too_large(pointer, f"very many letters with marks in {longest} characters")
        check_unicode(text, pointer)
        start = text.lstrip()
        if start.startswith(tuple(self._typed)):
            name = next(each for each in self._typed if start.startswith(each))
            advice = f"remove it, and give target_language {self._typed[name]!r}"
            raise Invalid.at(pointer, f"begins with {name!r}, which is text here: {advice}")
        try:
            encoding = self._encode(text)
        except LibraryError as error:
            advice = self._advice()
            raise Invalid.at(pointer, f"cannot be tokenized ({error}): {advice}") from error
        self._check_length(len(encoding) + around, pointer)
        return encoding

    def _tokens_of(self, text: str, ids: list[int], encoding: Encoding | None) -> Tokens:
        """Return a text with these ids. A request would keep the 130 bytes a token that an encoding
        takes: without one, the text is encoded again if the tokens are read."""
        before, after = self._prefix, self._suffix

        def place(encoding: Encoding) -> list[Token]:
            return [*before, *close_gaps(text, encoding), *after]

        if encoding:
            return Tokens.of(text, place(encoding))
        whole = [*(token.id for token in before), *ids, *(token.id for token in after)]
        return Tokens(text, whole, lambda: place(self._encode(text)))

    def cut(self, text: str, room: int) -> str:
        """Return the longest beginning of a text that takes at most `room` tokens. A text that the
        library cannot read, or not quickly, stays as it is: `encode` refuses it."""
        read = text[: room * LONGEST_TOKEN]
        if self._composes and takes_long(read):
            return text
        with suppress(LibraryError):
            encoding = self._encode(read)
            if len(encoding) > room:
                return text[: encoding.offsets[room - 1][1]]
        return text

    def _encode(self, text: str) -> Encoding:
        """Return the library's tokens of a text. Raise LibraryError."""
        if len(text) <= SHORT:
            return call(lambda: self._library.encode(text, add_special_tokens=False))
        return call(lambda: self._library.encode_batch([text], add_special_tokens=False)[0])

    def _has_signs(self, encoding: Encoding) -> bool:
        """Return whether some token is visible and known. For a source without one, the model would
        invent a target."""
        read = zip(encoding.tokens, encoding.ids, strict=True)
        known = "".join(name for name, token_id in read if token_id not in self.unknown)
        return any(
            unicodedata.category(each)[0] in VISIBLE for each in known.replace(WORD_MARK, "")
        )

    def read_ids(self, ids: Sequence[int], pointer: str) -> Tokens:
        """Look up ids as a client sends them.

        Raise Invalid for an id that the model lacks or that is forbidden (padding, unknown),
        TooLarge if there are more ids than the limit.
        """
        self._check_length(len(ids), pointer)
        faults = [
            Fault(
                f"{pointer}/{i}",
                f"is {token_id}, which is not allowed: ids are 0 to {self._size - 1}{self._but()}",
            )
            for i, token_id in enumerate(ids)
            if not 0 <= token_id < self._size or token_id in self._forbidden_ids
        ]
        if faults:
            raise Invalid.of(faults)
        return self.decode(ids)

    def decode(self, ids: Sequence[int], *, goes_on: bool = False) -> Tokens:
        """Return the text of ids, without special tokens, and the offsets of each token in it. A
        character that is incomplete at the end is cut off if the text `goes_on`."""
        return Tokens(self._text(ids, goes_on), [*ids], lambda: self._place(ids))

    def _text(self, ids: Sequence[int], goes_on: bool) -> str:
        """Return the text of ids, at once where that gives the same as the pieces do. It does not
        where a character is incomplete at the end, or may stand for several bytes."""
        if not self._bytes:
            text = write_text(lambda: self._library.decode(ids))
            if not text.endswith(REPLACEMENT):
                return text
        reader = self.reader()
        text = "".join(map(reader, ids))
        return text if goes_on else text + reader.rest()

    def _place(self, ids: Sequence[int]) -> list[Token]:
        """Return the tokens of ids, with their offsets in the text."""
        tokens: list[Token] = []
        end = 0
        for token_id, piece in zip(ids, self._pieces(ids), strict=True):
            if token_id in self._special_ids:
                tokens.append(self._special(token_id))
                continue
            word = piece.lstrip() or piece  # a space that joins words belongs to neither
            end += len(piece)
            tokens.append(Token(self.name(token_id), token_id, end - len(word), end))
        return tokens

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        """Return what each id adds to the text; the last one that may have a text also adds what
        is incomplete. Raise PassFailed if the library fails."""
        reader = self.reader()
        pieces = [*map(reader, ids)]
        last = next((i for i in reversed(range(len(ids))) if ids[i] not in self._special_ids), None)
        if last is not None:
            pieces[last] += reader.rest()
        return pieces

    @property
    def stand_in(self) -> int | None:
        """An id whose text is letters or digits that no space comes before, unless the library
        writes one between all tokens; None if no id is like this."""
        others = self._special_ids | self.unknown
        ids = (i for i in range(self._size) if i not in others)
        return next((i for i in ids if self.name(i).isalnum()), None)

    def reader(self) -> "Reader":
        return Reader(self._library, self._special_ids, self._bytes)

    def _special(self, token_id: int) -> Token:
        return Token(self.name(token_id), token_id, None, None)

    def _but(self) -> str:
        named = [f"{i} ({self._forbidden_ids[i]})" for i in sorted(self._forbidden_ids)]
        are = "are" if len(named) > 1 else "is"
        return f", of which {' and '.join(named)} {are} refused" if named else ""

    def _check_length(self, length: int, pointer: str) -> None:
        if length > self._limit:
            raise self._too_large(pointer, f"{length} tokens")

    def _too_large(self, pointer: str, size: str) -> TooLarge:
        return TooLarge.at(pointer, f"has {size}; the limit is {self._limit} tokens: shorten it")


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
        self._pieces.append(self._write(token_id))
        return self._pieces[-1]

    def rest(self) -> str:
        """Return what the text ends with, if no id follows: a character that is incomplete. The
        library's stream holds it back until it is complete."""
        if self._bytes:
            return self._cut_bytes()
        if not self._pieces or self._pieces[-1]:
            return ""
        text, sent = write_text(lambda: self._library.decode(self._read)), "".join(self._pieces)
        return text[len(sent) :] if text.startswith(sent) and text.endswith(REPLACEMENT) else ""

    def _add_to_bytes(self, token_id: int) -> str:
        if byte := self._bytes.get(token_id):
            # With each byte the library decodes all bytes before it again, and raises an error if
            # their text changes. It gets a letter in their place: the text goes on.
            letter = next(i for i, each in self._bytes.items() if each == ANY_LETTER.encode())
            before = (self._write(letter) or ANY_LETTER).removesuffix(ANY_LETTER)
            return before + INVALID_UTF8.sub(REPLACEMENT, self._utf8.decode(byte))
        return self._cut_bytes() + self._write(token_id)

    def _cut_bytes(self) -> str:
        return INVALID_UTF8.sub(REPLACEMENT, self._utf8.decode(b"", final=True))

    def _write(self, token_id: int) -> str:
        return write_text(lambda: self._step(self._library, token_id) or "")


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


def check_unicode(text: str, pointer: str) -> None:
    """Raise Invalid for half a surrogate pair, which JSON can escape but no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        detail = f"has half a surrogate pair at offset {error.start}, which is not Unicode"
        raise Invalid.at(pointer, f"{detail}: remove it") from error


def unknown_ids(library: Library) -> set[int]:
    """Return the ids of a character that no vocabulary has; none if the library cannot read it."""
    with suppress(LibraryError):
        return {token.id for token in call(lambda: library.model.tokenize(NO_CHARACTER))}
    return set()


def has_letters(text: str) -> bool:
    """Return whether a text has a letter or a digit."""
    return any(map(str.isalnum, text))
