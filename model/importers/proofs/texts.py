"""Texts for proofs and for int8: those that the model can read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.data.sentences import MOST, SENTENCES, readable
from model.data.tokenizers import unknown_id_of
from model.export.checks.samples import ordinary_ids, random_rows
from model.importers.files.reading import read
from model.importers.proofs.proof import Proof
from model.importers.tokenizers.compare import compose
from model.importers.vocabularies import Side
from model.network.config import InputError, TransformerConfig
from model.usage import Usage, filler

LONGEST, SHORT = 96, 32  # ids of a text: most of a network's, and of a large one's
LARGE = 10**8  # weights of a large network, which takes seconds for each token of all texts
ENGLISH = "English"
SPARE = 8  # tokens by which a target may be longer than the longest source
RANDOM = 24  # most ids of a row of random tokens


@dataclass(frozen=True, slots=True)
class Texts:
    """Ids of each source as the encoder reads them, and the ids that the decoder reads first.

    At most `longest` tokens are decoded from a source. `unknown` is the share of unknown tokens
    among those of the texts.
    """

    origin: str
    sources: list[list[int]]
    start: list[int]
    longest: int
    unknown: float

    def proof(self) -> Proof:
        result = f"{len(self.sources)} texts, {self.unknown:.1%} of their tokens unknown"
        return Proof("texts", self.origin, result, None, "read")


class Reader:
    """Encodes sources, and fills languages into the ids around them."""

    def __init__(self, side: Side, usage: Usage, config: TransformerConfig, weights: int) -> None:
        self.config = config
        self.longest = LONGEST if weights < LARGE else SHORT
        self._side, self._unknown_id = side, unknown_id_of(side.tokenizer)
        self.fill = filler(usage)
        prefix, suffix = self.fill(usage.source_prefix), self.fill(usage.source_suffix)
        self._around = prefix, suffix
        self._room = max(0, config.max_source_length - len(prefix) - len(suffix))

    def encode(self, text: str) -> list[int]:
        """Return the ids of the text alone."""
        tokenizer = self._side.tokenizer
        read = compose(text, tokenizer) if self._side.converted.compose else text
        return tokenizer.encode(read, add_special_tokens=False).ids

    def source(self, ids: Sequence[int]) -> list[int]:
        """Return ids with those around them; the last ones of a text that is too long are cut."""
        prefix, suffix = self._around
        return [*prefix, *ids[: min(self.longest, self._room)], *suffix]

    def whole(self, text: str, place: str) -> list[int]:
        """Return the ids of a text and those around it. Raise InputError naming `place` if there
        are more than the model reads."""
        ids = self.encode(text)
        if not ids:
            raise InputError(f"{place}: the source has no token: remove the line")
        if len(ids) > self._room:
            raise InputError(
                f"{place}: the source has {len(ids)} tokens, and the model reads {self._room}:"
                " shorten or remove it"
            )
        prefix, suffix = self._around
        return [*prefix, *ids, *suffix]

    def unknown(self, ids: Sequence[int]) -> float:
        """Return the share of unknown tokens."""
        return sum(i == self._unknown_id for i in ids) / max(1, len(ids))

    def known(self) -> list[int]:
        """Return the ids of all tokens that a text may have."""
        tokenizer = self._side.tokenizer
        added = tokenizer.get_added_tokens_decoder()
        special = {i for i, token in added.items() if token.special} | {*self.config.specials}
        return sorted({*tokenizer.get_vocab().values()} - special - {self._unknown_id})


def read_texts(reader: Reader, usage: Usage, file: Path | None) -> Texts:
    """Return the texts of a file, or the built-in sentences that the tokenizer reads best, or
    random tokens if it reads none of them. Raise InputError if the file holds no text."""
    if file is not None:
        lines = read_lines(file)
        encoded = map(reader.encode, lines[:: -(-len(lines) // MOST)])
        rows, origin = [ids for ids in encoded if ids], file.name
        if not rows:
            raise InputError(f"{file}: the tokenizer finds no token in its texts: give others")
    else:
        has_slot = "source_language" in (*usage.source_prefix, *usage.source_suffix)
        spoken = [ENGLISH] if has_slot else SENTENCES
        rows = readable(reader.encode, reader.unknown, {each: SENTENCES[each] for each in spoken})
        origin = "built-in sentences"
    if not rows:
        rows, origin = random_tokens(reader), "random tokens"
    unknown = reader.unknown([i for row in rows for i in row])
    sources = [reader.source(row) for row in rows]
    start = reader.fill(usage.decoder_start)
    most = min(reader.longest, max(map(len, sources))) + SPARE
    longest = max(1, min(most, reader.config.max_target_length + 1 - len(start)))
    return Texts(origin, sources, start, longest, unknown)


def random_tokens(reader: Reader) -> list[list[int]]:
    random = np.random.default_rng(0)
    lengths = random.integers(1, 1 + min(RANDOM, reader.config.max_source_length), MOST).tolist()
    ids = reader.known() or ordinary_ids(reader.config.source_vocab_size, reader.config)
    return random_rows(np.array(ids), lengths, random)


def read_lines(path: Path) -> list[str]:
    """Return what precedes a tab on each line that is not empty."""
    lines = [line.partition("\t")[0] for line in read_text(path).splitlines()]
    if found := [line for line in lines if line.strip()]:
        return found
    raise InputError(f"{path} holds no text: give a file with a text on each line")


def read_text(path: Path) -> str:
    try:
        return read(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: convert it") from error
