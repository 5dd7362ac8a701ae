"""Turn vocab.json and merges.txt of a byte-level BPE (GPT-2, BART) into a tokenizer.json."""

from collections.abc import Collection, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from model.importers.files.reading import read
from model.importers.tokenizers.pieces import Converted, add_special
from model.network.config import InputError


def convert_byte_level(
    names: Sequence[str],
    merges: Path,
    special: Collection[str] = (),
    added: Collection[AddedToken] = (),
    *,
    add_prefix_space: bool = False,
) -> Converted:
    """Return the tokenizer of a vocabulary whose id i is `names[i]`. Tokens `added` that it lacks
    follow it. Text never becomes one of the `special` tokens. `add_prefix_space`: a text is read as
    if it began with a space.

    Raise InputError if a file is invalid, or the vocabulary lacks a special token or a byte.
    """
    ids = {token: i for i, token in enumerate(names)}
    needed = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    if missing := [token for token in needed if token not in ids]:
        raise InputError(
            f"{merges.with_name('vocab.json')} lacks {', '.join(missing[:8])}: byte-level BPE has a"
            " token for each of the 256 bytes, and for each special token"
        )
    tokenizer = Tokenizer(BPE(ids, read_merges(merges, ids)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    add_special(tokenizer, special)
    tokenizer.add_tokens([*added])
    tokenizer.encode_special_tokens = True
    return Converted(tokenizer, compose=False, dropped=0)


def read_merges(path: Path, ids: Collection[str] | None = None) -> list[tuple[str, str]]:
    """Return the pairs of a merges.txt, the first one to merge first. Raise InputError if a line is
    not a pair, or names a token that `ids` lack, if they are given."""
    try:
        lines = read(path).decode().splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: copy or download it again") from error
    known = None if ids is None else set(ids)
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(lines, start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        left, space, right = line.partition(" ")
        if not space or (known is not None and {left, right, left + right} - known):
            raise InputError(
                f"line {number} of {path} is {line!r}: every line names two tokens of vocab.json"
                " that join to a third"
            )
        pairs.append((left, right))
    return pairs
