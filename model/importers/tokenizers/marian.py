"""Read the vocabularies of a model of Marian: sentencepiece models whose own ids are the model's,
or lists of ids, with the sentencepiece models that split the text."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken

from model.importers.checkpoint import Checkpoint
from model.importers.files.flat_yaml import read_flat
from model.importers.files.marian import find_vocabularies, plain_name
from model.importers.files.reading import PACKED, read
from model.importers.tokenizers.added_tokens import Lexicon
from model.importers.tokenizers.piece_file import read_pieces
from model.network.config import InputError

EOS, UNKNOWN = "</s>", "<unk>"
SIDES = ("source", "target")


@dataclass(frozen=True, slots=True)
class MarianVocabulary:
    """The sentencepiece model of a side, and the names of its ids."""

    pieces: Path
    names: list[str]

    @property
    def eos_id(self) -> int:
        return self.names.index(EOS)

    def lexicon(self, rows: int) -> Lexicon:
        """Return the names of all rows of the embedding: those without a token get a name that no
        text reaches."""
        size = len(self.names)
        tokens = {i: AddedToken(f"<hole {i}>", special=True) for i in range(size, rows)}
        names = self.names + [token.content for token in tokens.values()]
        return Lexicon(names, size, tokens, frozenset())


def read_marian_vocabularies(checkpoint: Checkpoint) -> tuple[MarianVocabulary, MarianVocabulary]:
    """Return the vocabularies of source and target. Raise InputError if a file is missing or
    damaged."""
    paths, folder = find_vocabularies(checkpoint.folder), checkpoint.folder
    source, target = (
        read_side(folder, path, side) for path, side in zip(paths, SIDES, strict=True)
    )
    return source, target


def read_side(folder: Path, path: Path, side: str) -> MarianVocabulary:
    if plain_name(path).endswith(".spm"):
        pieces, names = path, read_pieces(path).names
    else:
        pieces, names = find_pieces(folder, side, path), read_ids(path)
    if missing := [name for name in (EOS, UNKNOWN) if name not in names]:
        raise InputError(f"{path} lacks {' and '.join(missing)}, which every model of Marian has")
    return MarianVocabulary(pieces, names)


def find_pieces(folder: Path, side: str, vocabulary: Path) -> Path:
    """Return the sentencepiece model that splits the texts of a side."""
    for name in (f"{side}.spm", f"{side}.spm{PACKED}"):
        if (folder / name).is_file():
            return folder / name
    raise InputError(
        f"{folder} has no {side}.spm, which splits texts into the tokens of {vocabulary.name}:"
        " copy the whole folder; models whose texts other programs split, such as subword-nmt,"
        " cannot be converted"
    )


def read_ids(path: Path) -> list[str]:
    """Return the tokens of a list of ids, in their order. Raise InputError unless the ids are 0, 1,
    2, ..., each once."""
    values = read_flat(read(path), str(path))
    names = {value: name for name, value in values.items() if isinstance(value, str)}
    for i in range(len(values)):
        if str(i) not in names:
            raise InputError(
                f"{path} has {len(values)} tokens, but none has the id {i}: ids are 0 to"
                f" {len(values) - 1}, each once"
            )
    return [names[str(i)] for i in range(len(values))]
