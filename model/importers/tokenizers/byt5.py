"""Build the tokenizer of ByT5, whose tokens are the bytes of a text in UTF-8 (Xue et al. 2022)."""

import re
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from model.importers.tokenizers.added_tokens import Lexicon
from model.importers.tokenizers.pieces import Converted, add_special
from model.network.config import InputError

LONGEST = 1024  # bytes of a text, as many as ByT5 was trained on
SPECIAL = ("<pad>", "</s>", "<unk>")  # ids 0 to 2, before the bytes
EXTRA = 125  # extra ids, after the bytes
TAIL = (0x80, 0xBF)
CHARACTERS = (  # ranges of the bytes of a character (The Unicode Standard, table 3-7)
    ((0x00, 0x7F),),
    ((0xC2, 0xDF), TAIL),
    ((0xE0, 0xE0), (0xA0, 0xBF), TAIL),
    ((0xE1, 0xEC), TAIL, TAIL),
    ((0xED, 0xED), (0x80, 0x9F), TAIL),
    ((0xEE, 0xEF), TAIL, TAIL),
    ((0xF0, 0xF0), (0x90, 0xBF), TAIL, TAIL),
    ((0xF1, 0xF3), TAIL, TAIL, TAIL),
    ((0xF4, 0xF4), (0x80, 0x8F), TAIL, TAIL),
)


def names_of_ids(rows: int) -> list[str]:
    """Return the names of all tokens that an embedding of so many rows has, by id."""
    extra = max(0, min(EXTRA, rows - len(SPECIAL) - 256))
    return [*SPECIAL, *letters(), *(f"<extra_id_{i}>" for i in range(extra))]


def letters() -> list[str]:
    """Return the letter in whose place the tokenizers library writes each byte, as GPT-2 does."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    others = iter([letter for letter in alphabet if ord(letter) > 0xFF])
    return [chr(byte) if chr(byte) in alphabet else next(others) for byte in range(256)]


def encode_bytes(text: str) -> list[int]:
    """Return the ids of a text by their definition."""
    return [len(SPECIAL) + byte for byte in text.encode()]


def convert_bytes(lexicon: Lexicon) -> Converted:
    """Return the tokenizer: byte-level BPE without a merge. Bytes that are not UTF-8 have no text.

    Raise InputError if the checkpoint's files add the letter of a byte as a token.
    """
    names = lexicon.names[: lexicon.size]
    check_bytes(lexicon)
    tokenizer = Tokenizer(BPE({name: i for i, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    typed = [token.content for token in lexicon.typed_tokens]
    tokenizer.decoder = decoders.Sequence(
        [
            *spelling(typed),
            decoders.Fuse(),
            decoders.Replace(Regex(invalid_bytes()), ""),
            decoders.ByteLevel(),
        ]
    )
    add_special(tokenizer, [name for name in names if len(name) > 1 and name not in typed])
    tokenizer.add_tokens(lexicon.added)
    tokenizer.encode_special_tokens = True
    return Converted(tokenizer, compose=False, dropped=0)


def check_bytes(lexicon: Lexicon) -> None:
    """Raise InputError if files list the id of a byte, or its letter under another id."""
    for byte, letter in enumerate(letters()):
        i = len(SPECIAL) + byte
        if i in lexicon.tokens or lexicon.names[i] != letter:
            raise InputError(
                f"the files of the tokenizer list the token {letter!r} or its id {i}, which stands"
                f" for the byte 0x{byte:02X}: Heed cannot tell them apart, so this model cannot be"
                " converted"
            )


def spelling(typed: Sequence[str]) -> list[decoders.Decoder]:
    """Return decoders that write added tokens in the letters of their bytes."""
    signs = letters()
    written = {name: "".join(signs[byte] for byte in name.encode()) for name in typed}
    return [
        decoders.Replace(Regex(rf"\A{re.escape(name)}\z"), spelt)
        for name, spelt in written.items()
        if name != spelt
    ]


def invalid_bytes() -> str:
    r"""Return a pattern that matches, one after the other, the letters of bytes that are not UTF-8.

    A match goes on where the last one ended (\G), passes over characters without ever going back
    (?>), and begins (\K) at the byte behind them, which belongs to none.
    """
    signs = letters()

    def one_of(first: int, last: int) -> str:
        return f"[{''.join(map(re.escape, signs[first : last + 1]))}]"

    characters = "|".join("".join(one_of(*span) for span in spans) for spans in CHARACTERS)
    return rf"\G(?>(?:{characters})*)\K."
