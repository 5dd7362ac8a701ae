"""Read sentencepiece models and vocab.json files, and validate them."""

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from model.importers.files.reading import read
from model.network.config import InputError

UNIGRAM, BPE = 1, 2  # sentencepiece's numbers of its model types
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


class PieceKind(Enum):
    """Sentencepiece's numbers of its kinds of pieces."""

    normal = 1
    unknown = 2
    control = 3
    user_defined = 4
    unused = 5
    byte = 6


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    score: float
    kind: PieceKind


@dataclass(frozen=True, slots=True)
class PieceFile:
    """The content of a sentencepiece model; pieces are in the order of its own ids."""

    path: Path
    pieces: list[Piece]
    is_bpe: bool
    byte_fallback: bool
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool

    @property
    def names(self) -> list[str]:
        return [piece.text for piece in self.pieces]

    @property
    def user_defined(self) -> list[str]:
        return [piece.text for piece in self.pieces if piece.kind is PieceKind.user_defined]

    @property
    def unknown(self) -> str:
        return next(piece.text for piece in self.pieces if piece.kind is PieceKind.unknown)


def read_pieces(path: Path) -> PieceFile:
    """Read a sentencepiece model. Raise InputError if the file is another one, is cut off, or has
    options that tokenizer.json cannot express."""
    model = parse(path)
    spec, training = model.normalizer_spec, model.trainer_spec
    if training.model_type not in (UNIGRAM, BPE):
        kind = MODEL_TYPES.get(training.model_type, training.model_type)
        raise InputError(f"{path} is a sentencepiece model of type {kind}: give unigram or bpe")
    for name, value, only in (
        ("escape_whitespaces", spec.escape_whitespaces, True),
        ("treat_whitespace_as_suffix", training.treat_whitespace_as_suffix, False),
    ):
        if value != only:
            raise InputError(f"{path} was trained with {name} {value}: only {only} is supported")
    if not (
        all(type(p.piece) is str for p in model.pieces) and is_charsmap(spec.precompiled_charsmap)
    ):
        raise InputError(f"{path} has pieces or a normalizer that are damaged: copy it again")
    file = PieceFile(
        path,
        [Piece(piece.piece, piece.score, PieceKind(piece.type)) for piece in model.pieces],
        training.model_type == BPE,
        training.byte_fallback,
        spec.precompiled_charsmap,
        spec.add_dummy_prefix,
        spec.remove_extra_whitespaces,
    )
    kinds = {piece.kind for piece in file.pieces}
    if missing := [
        kind.name for kind in (PieceKind.unknown, PieceKind.normal) if kind not in kinds
    ]:
        raise InputError(f"{path} has no {' and no '.join(missing)} piece: train it again")
    return file


def is_charsmap(content: bytes) -> bool:
    """Return whether `content` is empty or well-formed: the size of a trie in bytes, the trie, and
    texts that end in NUL."""
    if not content:
        return True
    end = 4 + int.from_bytes(content[:4], "little")
    try:
        texts = content[end:].decode()
    except UnicodeDecodeError:
        return False
    return end % 4 == 0 and texts.endswith("\0")


def parse(path: Path) -> Any:
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise InputError(
            f"{path} is read by sentencepiece, which is not installed: run pip install"
            " 'heed-server[convert]'"
        ) from error
    model: Any = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        model.ParseFromString(read(path))
    except DecodeError as error:
        raise InputError(
            f"{path} is not a sentencepiece model, or is cut off: copy or download it again"
        ) from error
    # A file that is cut off between two fields parses, but has lost the fields at its end.
    if not (model.pieces and model.HasField("trainer_spec") and model.HasField("normalizer_spec")):
        raise InputError(f"{path} is not a whole sentencepiece model: copy or download it again")
    return model


def read_vocabulary(path: Path) -> list[str]:
    """Return the tokens of a vocab.json in the order of their ids.

    Raise InputError unless it is an object of tokens with the ids 0, 1, 2, ..., each once.
    """
    try:
        content = json.loads(read(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}): copy or download it again") from error
    if not isinstance(content, dict) or not content:
        raise InputError(f'{path} is not an object such as {{"</s>": 0}} of tokens and their ids')
    ids: dict[str, Any] = content
    ordered = sorted((i, token) for token, i in ids.items() if type(i) is int)
    for expected, (found, token) in enumerate(ordered):
        if found != expected:
            raise InputError(
                f"{path} gives {token!r} the id {found} where {expected} comes next: ids are 0 to"
                f" {len(ids) - 1}, each once"
            )
    if len(ordered) < len(ids):
        wrong = next(token for token, i in ids.items() if type(i) is not int)
        raise InputError(f"{path} gives {wrong!r} the id {ids[wrong]!r}: give a whole number")
    return [token for _, token in ordered]
