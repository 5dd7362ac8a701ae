"""Read Marian's binary shortlists, lex.s2t.bin: for each token of a source the likely tokens of its
targets, and how many of the first ids, the most frequent tokens, belong to every shortlist.

Numbers, offsets and ids follow each other. All are compared with the size of the file before they
are used, and a checksum with all of them.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.importers.files.container import AGAIN
from model.importers.files.reading import PACKED, read
from model.network.config import InputError
from model.usage import Shortlists

PATTERNS = ("lex*.bin", f"lex*.bin{PACKED}")
MAGIC = 0xF11A48D5013417F5
HEADER = 6  # numbers of 8 bytes: magic, checksum, frequent, longest, offsets, ids
LARGEST = 24 << 20  # bytes; 32,000 tokens with up to 50 ids each have 5 million
WHOLE = (1 << 64) - 1
PIECE = 1 << 16  # numbers that are Python's own at once


def find_shortlists(folder: Path) -> Path | None:
    """Return the file of shortlists, if there is one. Raise InputError if there are several."""
    found = [path for pattern in PATTERNS for path in sorted(folder.glob(pattern))]
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:3])
        raise InputError(f"{folder} has {len(found)} files of shortlists, {names}: leave one in it")
    return found[0] if found else None


def read_shortlists(path: Path, source_size: int, target_size: int) -> Shortlists:
    """Return the shortlists for these vocabularies. Raise InputError if the file is damaged, or
    belongs to others."""
    content = read(path, LARGEST)
    if len(content) < 8 * HEADER or content[:8] != MAGIC.to_bytes(8, "little"):
        raise InputError(
            f"{path} does not begin as a binary shortlist of Marian does: give the lex.s2t.bin of"
            " this model, or leave the file out to score all tokens"
        )
    numbers = np.frombuffer(content, "<u8", HEADER).tolist()
    _, checksum, frequent, longest, count, listed = numbers
    if not 0 < count <= source_size + 1 or len(content) != 8 * (HEADER + count) + 4 * listed:
        raise InputError(
            f"{path} has {len(content)} bytes, and says that {count - 1} of {source_size} tokens of"
            f" sources have shortlists, with {listed} ids: {AGAIN}"
        )
    if checksum_of(content) != checksum:
        raise InputError(f"{path} has other contents than its checksum says: {AGAIN}")
    offsets = np.frombuffer(content, "<u8", count, 8 * HEADER).astype(np.int64)
    tokens = np.frombuffer(content, "<u4", listed, 8 * (HEADER + count)).astype(np.int64)
    lengths = np.diff(offsets)
    ordered = offsets[0] == 0 and offsets[-1] == listed
    if not (ordered and (lengths >= 0).all() and (lengths <= longest).all()):
        raise InputError(f"{path} has offsets that do not follow each other: {AGAIN}")
    if listed and tokens.max() >= target_size:
        raise InputError(
            f"{path} lists the id {tokens.max()}, and the target has {target_size} tokens: it"
            " belongs to another model"
        )
    rest = np.full(source_size + 1 - count, listed)  # the last tokens may have no list
    return Shortlists(
        np.concatenate([offsets, rest]), tokens, np.arange(min(frequent, target_size))
    )


def checksum_of(content: bytes) -> int:
    """Return Marian's hash of the whole numbers of 8 bytes after magic and checksum."""
    body: NDArray[np.uint64] = np.frombuffer(content, "<u8", len(content) // 8 - 2, 16)
    seed = 0
    for first in range(0, len(body), PIECE):
        for number in body[first : first + PIECE].tolist():
            seed ^= (number + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & WHOLE
    return seed


def with_own_tokens(shortlists: Shortlists) -> Shortlists:
    """Add each token to its own list, as Marian does where both sides have one vocabulary: names
    are copied."""
    count = len(shortlists.offsets) - 1
    offsets = shortlists.offsets + np.arange(count + 1)
    tokens = np.insert(shortlists.tokens, shortlists.offsets[:-1], np.arange(count))
    return Shortlists(offsets, tokens, shortlists.always)
