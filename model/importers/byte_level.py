"""Turn vocab.json and merges.txt of a byte-level BPE (GPT-2, BART) into a tokenizer.json."""

from collections.abc import Collection
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from model.importers.files import read
from model.importers.piece_file import read_vocabulary
from model.importers.pieces import Converted, add_special
from model.network.config import InputError


def convert_byte_level(vocabulary: Path, merges: Path, special: Collection[str] = ()) -> Converted:
    """Return the tokenizer. Text never becomes one of the `special` tokens.

    Raises InputError if a file is invalid, or the vocabulary lacks a special token or a byte.
    """
    ids = {token: i for i, token in enumerate(read_vocabulary(vocabulary))}
    needed = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    if missing := [token for token in needed if token not in ids]:
        raise InputError(
            f"{vocabulary} lacks {', '.join(missing[:8])}: byte-level BPE has a token for each of"
            " the 256 bytes, and for each special token"
        )
    tokenizer = Tokenizer(BPE(ids, read_merges(merges, ids)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    add_special(tokenizer, special)
    tokenizer.encode_special_tokens = True
    return Converted(tokenizer, compose=False, dropped=0)


def read_merges(path: Path, ids: Collection[str]) -> list[tuple[str, str]]:
    """Return the pairs of a merges.txt, the first one to merge first."""
    try:
        lines = read(path).decode().splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: copy or download it again") from error
    known = set(ids)
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(lines, start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        left, space, right = line.partition(" ")
        if not space or {left, right, left + right} - known:
            raise InputError(
                f"line {number} of {path} is {line!r}: every line names two tokens of vocab.json"
                " that join to a third"
            )
        pairs.append((left, right))
    return pairs
