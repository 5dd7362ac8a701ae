"""Build the tokenizers of a checkpoint. Each kind has its own files, and its own order of ids.

Only the files are read, without Hugging Face's tokenizer classes.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from model.importers.byte_level import convert_byte_level
from model.importers.checkpoint import OWN, Checkpoint
from model.importers.compare import Encode, sentencepiece_encoder
from model.importers.language_codes import LISTS
from model.importers.own_tokenizers import plain_tokenizers
from model.importers.piece_file import PieceFile, read_pieces, read_vocabulary
from model.importers.pieces import MARIAN_SPECIAL, Converted, convert_pieces
from model.importers.tokenizer_file import convert_library, encode_with, open_library
from model.network.config import InputError
from model.usage import Codes

SENTENCEPIECE = "sentencepiece.bpe.model"
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]  # ids 0 to 3, instead of the file's first three
OWN_SPECIALS = 3  # <unk>, <s>, </s> at the start of a sentencepiece model
PEGASUS_OFFSET = 103
STORED = "tokenizer.json"
FILES = {  # of a tokenizer, by its kind
    "marian": ("source.spm", "target.spm", "vocab.json"),
    "bart": ("vocab.json", "merges.txt"),
    "pegasus": ("spiece.model",),
    "t5": ("spiece.model",),
    "m2m_100": (SENTENCEPIECE, "vocab.json"),
    "nllb": (SENTENCEPIECE,),
    "mbart": (SENTENCEPIECE,),
}
STORABLE = FILES.keys() - {"marian", "m2m_100"}  # kinds that tokenizer.json stands for
CODE = {  # how a language token is written
    "nllb": re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"),
    "mbart": re.compile(r"([a-z]{2}_[A-Z]{2})"),
    "m2m_100": re.compile(r"__([a-z]{2,3})__"),
    "marian": re.compile(r">>(.+)<<"),
    "t5": re.compile(r"<2(.+)>"),
}


@dataclass(frozen=True, slots=True)
class Side:
    """The tokenizer of one side, and its original if they can be compared: a sentencepiece model,
    whose pieces have the ids of `names`, or tokenizer.json.
    """

    converted: Converted
    original: PieceFile | Tokenizer | None = None
    names: list[str] = field(default_factory=list[str])

    @property
    def tokenizer(self) -> Tokenizer:
        return self.converted.tokenizer

    def hides(self, name: str) -> bool:
        """Whether a typed name is text, though it is that of a token in the original."""
        return self.tokenizer.token_to_id(name) is None


@dataclass(frozen=True, slots=True)
class Vocabularies:
    """The tokenizers of both sides, and the ids of each language."""

    source: Side
    target: Side
    languages: Codes = field(default_factory=dict[str, list[int]])


def side_of(path: Path, names: list[str], special: Collection[str]) -> Side:
    file = read_pieces(path)
    return Side(convert_pieces(file, names, special), file, names)


def read_vocabularies(checkpoint: Checkpoint) -> Vocabularies:
    """Return the tokenizers. Raise InputError naming the files that are missing."""
    if checkpoint.config_name == OWN:
        source, target = (Converted(each, False, 0) for each in plain_tokenizers(checkpoint))
        return Vocabularies(Side(source), Side(target))
    kind = kind_of(checkpoint)
    if uses_tokenizer_json(checkpoint, kind):
        return read_stored(checkpoint, kind)
    match kind:
        case "marian":
            return read_marian(checkpoint)
        case "bart":
            return read_byte_level(checkpoint)
        case "pegasus":
            return read_pegasus(checkpoint)
        case "t5":
            return read_t5(checkpoint)
        case _:
            return read_fairseq(checkpoint, kind)


def kind_of(checkpoint: Checkpoint) -> str:
    """Return the kind of tokenizer. NLLB has the network of M2M100, and files like mBART's."""
    kind = str(checkpoint.config["model_type"])
    if kind in ("mt5", "umt5"):
        return "t5"
    if kind == "m2m_100" and not (checkpoint.folder / "vocab.json").is_file():
        return "nllb"
    return kind


def need(checkpoint: Checkpoint, kind: str) -> list[Path]:
    """Return the paths of the files. Raise InputError naming all that are missing."""
    names = FILES[kind]
    paths = [checkpoint.folder / name for name in names]
    if missing := [path.name for path in paths if not path.is_file()]:
        stead = f", or {STORED} in their place" if kind in STORABLE else ""
        raise InputError(
            f"{checkpoint.folder} has no {' and no '.join(missing)}: a checkpoint of kind"
            f" {checkpoint.config['model_type']} has {', '.join(names)} beside its weights{stead}"
        )
    return paths


def uses_tokenizer_json(checkpoint: Checkpoint, kind: str) -> bool:
    """Return whether to read tokenizer.json because other files are missing. A tokenizer.json that
    only lists added tokens does not count."""
    incomplete = not all((checkpoint.folder / name).is_file() for name in FILES[kind])
    return kind in STORABLE and incomplete and "model" in checkpoint.optional_json(STORED)


def read_stored(checkpoint: Checkpoint, kind: str) -> Vocabularies:
    """Read tokenizer.json: one tokenizer for both sides, with language tokens among its own."""
    library = open_library(checkpoint.folder / STORED)
    vocabulary = library.get_vocab()
    languages: Codes = {}
    found: dict[str, str] = {}  # the code of each language token
    if code := CODE.get(kind):
        in_pieces = kind == "t5"  # MADLAD's languages are
        added = {token.content for token in library.get_added_tokens_decoder().values()}
        names = sorted(vocabulary if in_pieces else added, key=vocabulary.__getitem__)
        found = {name: match[1] for name in names if (match := code.fullmatch(name))}
        encode = encode_with(library)
        languages = {
            code: prefix_ids(encode, name) if in_pieces else [vocabulary[name]]
            for name, code in found.items()
        }
    if kind in ("nllb", "mbart"):
        check_languages(checkpoint, languages)
    side = Side(convert_library(library, checkpoint.folder / STORED, found), library)
    return Vocabularies(side, side, languages)


def read_marian(checkpoint: Checkpoint) -> Vocabularies:
    source, target, vocabulary = need(checkpoint, "marian")
    own = checkpoint.folder / "target_vocab.json"  # where the sides do not share their ids
    sides: list[Side] = []
    codes: Codes = {}
    for path, ids in ((source, vocabulary), (target, own if own.is_file() else vocabulary)):
        names = read_vocabulary(ids)
        found = {name: i for i, name in enumerate(names) if CODE["marian"].fullmatch(name)}
        codes = codes or {name[2:-2]: [i] for name, i in found.items()}
        sides.append(side_of(path, names, [*MARIAN_SPECIAL, *found]))
    return Vocabularies(sides[0], sides[1], codes)


def read_byte_level(checkpoint: Checkpoint) -> Vocabularies:
    vocabulary, merges = need(checkpoint, "bart")
    names = read_vocabulary(vocabulary)
    special = [name for name in (*FAIRSEQ[:3], "<mask>") if name in names]
    side = Side(convert_byte_level(vocabulary, merges, special))
    return Vocabularies(side, side)


def read_pegasus(checkpoint: Checkpoint) -> Vocabularies:
    """Read pieces. Pegasus inserts 103 tokens of its own after the first two, <pad> and </s>."""
    (path,) = need(checkpoint, "pegasus")
    masked = ["<mask_1>", "<mask_2>", *(f"<unk_{i}>" for i in range(2, PEGASUS_OFFSET))]
    special = ["<pad>", "</s>", *masked]
    names = special + read_pieces(path).names[len(special) - PEGASUS_OFFSET :]
    side = side_of(path, names, special)
    return Vocabularies(side, side)


def read_t5(checkpoint: Checkpoint) -> Vocabularies:
    """Read T5's pieces, and its extra ids after them, from the last to the first. MADLAD's
    languages are pieces."""
    (path,) = need(checkpoint, "t5")
    file = read_pieces(path)
    options = checkpoint.optional_json("tokenizer_config.json")
    room = max(int(checkpoint.config["vocab_size"]) - len(file.names), 0)
    extra = min(int(options.get("extra_ids", 100)), room)
    masks = [f"<extra_id_{i}>" for i in reversed(range(extra))]
    special = [name for name in ("<pad>", "</s>", "<s>") if name in file.names]
    found = {name: match[1] for name in file.user_defined if (match := CODE["t5"].fullmatch(name))}
    side = side_of(path, file.names + masks, [*special, *masks, *found])
    encode = sentencepiece_encoder(file)
    languages = {code: prefix_ids(encode, name) for name, code in found.items()}
    return Vocabularies(side, side, languages)


def prefix_ids(encode: Encode, name: str) -> list[int]:
    """Return the ids that a language token adds at the start of a text."""
    alone, after = encode("a") or [], encode(f"{name} a") or []
    return [*after[: len(after) - len(alone)]]


def read_fairseq(checkpoint: Checkpoint, kind: str) -> Vocabularies:
    """Read mBART, mBART-50, M2M100 or NLLB: pieces, and language tokens after them."""
    if kind == "m2m_100":
        path, vocabulary = need(checkpoint, kind)
        names = read_vocabulary(vocabulary)
    else:
        (path,) = need(checkpoint, kind)
        names = FAIRSEQ + read_pieces(path).names[OWN_SPECIALS:]
    added = added_tokens(checkpoint, len(names))
    if kind == "m2m_100" and not any(CODE[kind].fullmatch(name) for name in added):
        listed = checkpoint.optional_json("tokenizer_config.json").get("language_codes")
        codes = LISTS.get(str(listed), "").split()
        added |= {f"__{code}__": i for i, code in enumerate(codes, len(names))}
    for name, i in sorted(added.items(), key=lambda item: item[1]):
        if i == len(names):
            names.append(name)
    languages = {
        found[1]: [i]
        for i, name in enumerate(names)
        if name in added and (found := CODE[kind].fullmatch(name))
    }
    check_languages(checkpoint, languages)
    hidden = {*FAIRSEQ, "<mask>", *added} - {FAIRSEQ[3]}  # texts may hold unknown letters
    special = [name for name in names if name in hidden]
    side = side_of(path, names, special)
    return Vocabularies(side, side, languages)


def check_languages(checkpoint: Checkpoint, languages: Codes) -> None:
    """Raise InputError if there are none: the model cannot be used without."""
    if not languages:
        raise InputError(
            f"{checkpoint.folder} names no languages: give its tokenizer.json,"
            " added_tokens.json, special_tokens_map.json, or a tokenizer_config.json with"
            " added_tokens_decoder or language_codes"
        )


def added_tokens(checkpoint: Checkpoint, first: int) -> dict[str, int]:
    """Return the ids of the tokens that are not pieces, from all files that list such tokens.

    Tokens that are listed without ids have the ids from `first` on.
    """
    listing = checkpoint.optional_json("special_tokens_map.json")
    plain = cast("list[Any]", listing.get("additional_special_tokens") or [])
    named = [each if isinstance(each, str) else str(each["content"]) for each in plain]
    tokens = {name: i for i, name in enumerate(named, first)}
    decoder = checkpoint.optional_json("tokenizer_config.json").get("added_tokens_decoder") or {}
    for i, token in cast("dict[str, Any]", decoder).items():
        tokens[token["content"]] = int(i)
    listed = checkpoint.optional_json("tokenizer.json").get("added_tokens") or []
    for token in cast("list[dict[str, Any]]", listed):
        tokens[token["content"]] = int(token["id"])
    return tokens | cast("dict[str, int]", checkpoint.optional_json("added_tokens.json"))
