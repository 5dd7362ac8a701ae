"""Build the tokenizers of a checkpoint. Each kind has its own files, and its own order of ids.

Only the files are read, without Hugging Face's tokenizer classes.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import AddedToken, ByteLevelBPETokenizer, Tokenizer

from model.importers.checkpoint import MARIAN, OWN, Checkpoint
from model.importers.fields import number
from model.importers.networks.marian_options import read_options
from model.importers.tokenizers import byt5
from model.importers.tokenizers.added_tokens import (
    HIDDEN,
    STORED,
    TOKENIZER_CONFIG,
    Lexicon,
    extend,
)
from model.importers.tokenizers.blenderbot_small import SmallFiles, convert_blenderbot_small
from model.importers.tokenizers.byte_level import convert_byte_level
from model.importers.tokenizers.compare import Encode, sentencepiece_encoder
from model.importers.tokenizers.kinds import (
    PREFIX_SPACE,
    adds_prefix_space,
    class_of,
    is_byte_level,
    is_bytes,
    kind_of,
    need,
    uses_tokenizer_json,
)
from model.importers.tokenizers.marian import EOS, read_marian_vocabularies
from model.importers.tokenizers.own import plain_tokenizers
from model.importers.tokenizers.piece_file import PieceFile, read_pieces, read_vocabulary
from model.importers.tokenizers.pieces import MARIAN_SPECIAL, Converted, convert_lexicon
from model.importers.tokenizers.tokenizer_file import (
    convert_library,
    encode_with,
    names_of,
    open_library,
    with_tokens,
)
from model.network.config import InputError
from model.usage import Codes

FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]  # ids 0 to 3, instead of the file's first three
OWN_SPECIALS = 3  # <unk>, <s>, </s> at the start of a sentencepiece model
PEGASUS_OFFSET = 103
CODE = {  # how a language token is written
    "nllb": re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"),
    "mbart": re.compile(r"([a-z]{2,3}_[A-Z]{2})"),
    "plbart": re.compile("__(java|python|en_XX|javascript|php|ruby|go)__"),
    "m2m_100": re.compile(r"__([a-z]{2,3})__"),
    "small100": re.compile(r"__([a-z]{2,3})__"),
    "marian": re.compile(r">>(.+)<<"),
    "t5": re.compile(r"<2(.+)>"),
}
LISTS = {  # languages that no file lists, by `language_codes` of tokenizer_config.json
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl"
        " gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml"
        " mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th"
        " tl tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}
PLBART_LISTS = {  # which its tokenizer has whatever files list
    "base": "java python en_XX",
    "multi": "java python en_XX javascript php ruby go",
}


@dataclass(frozen=True, slots=True)
class Side:
    """The tokenizer of one side, and its original if they can be compared: a sentencepiece model,
    whose pieces have the ids of `names`, one of the tokenizers library, the files of one of
    transformers, or the definition of the ids. `typed` are the tokens besides the original's own
    that texts may hold.
    """

    converted: Converted
    original: PieceFile | Tokenizer | ByteLevelBPETokenizer | SmallFiles | Encode | None = None
    names: list[str] = field(default_factory=list[str])
    typed: list[AddedToken] = field(default_factory=list[AddedToken])

    @property
    def tokenizer(self) -> Tokenizer:
        return self.converted.tokenizer

    def hides(self, name: str) -> bool:
        """Whether a typed name is text here, although the original reads it as a token."""
        return self.tokenizer.token_to_id(name) is None


@dataclass(frozen=True, slots=True)
class Vocabularies:
    """The tokenizers of both sides, and the ids of each language."""

    source: Side
    target: Side
    languages: Codes = field(default_factory=dict[str, list[int]])

    @property
    def are_one(self) -> bool:
        """Whether ids mean the same on both sides."""
        sides = (side.tokenizer.get_vocab().items() for side in (self.source, self.target))
        source, target = ({i: name.removesuffix(HIDDEN) for name, i in side} for side in sides)
        return source == target


def side_of(path: Path, lexicon: Lexicon, special: Collection[str] = ()) -> Side:
    """Return the side of a sentencepiece model. `special` are tokens that no text reaches, besides
    those that other files list."""
    file = read_pieces(path)
    return Side(convert_lexicon(file, lexicon, special), file, lexicon.names, lexicon.typed_tokens)


def read_vocabularies(checkpoint: Checkpoint) -> Vocabularies:
    """Return the tokenizers. Raise InputError naming the files that are missing."""
    if checkpoint.config_name == OWN:
        source, target = (Converted(each, False, 0) for each in plain_tokenizers(checkpoint))
        return Vocabularies(Side(source), Side(target))
    if checkpoint.is_marian:
        return read_marian_files(checkpoint)
    return read_bytes(checkpoint) if is_bytes(checkpoint) else read_files(checkpoint)


def read_files(checkpoint: Checkpoint) -> Vocabularies:
    """Return the tokenizers of files of Hugging Face's kinds of checkpoints."""
    kind = kind_of(checkpoint)
    if uses_tokenizer_json(checkpoint, kind):
        return read_stored(checkpoint, kind)
    match kind:
        case "marian":
            return read_marian(checkpoint)
        case "bart" | "blenderbot":
            return read_byte_level(checkpoint)
        case "blenderbot-small":
            return read_blenderbot_small(checkpoint)
        case "pegasus":
            return read_pegasus(checkpoint)
        case "t5":
            read = read_byte_level if is_byte_level(checkpoint) else read_t5_pieces
            return read(checkpoint)
        case _:
            return read_fairseq(checkpoint, kind)


def read_stored(checkpoint: Checkpoint, kind: str) -> Vocabularies:
    """Read tokenizer.json: one tokenizer for both sides, with language tokens among its own."""
    path, code = checkpoint.folder / STORED, CODE.get(kind)
    library = open_library(path)
    lexicon = extend(checkpoint, names_of(library, path), rows_of(checkpoint), code)
    sets_flag = class_of(checkpoint).startswith(PREFIX_SPACE)
    library = with_tokens(library, lexicon, adds_prefix_space(checkpoint) if sets_flag else None)
    encode = encode_with(library)
    found = languages_of(lexicon.names, code)
    added = {i: name for i, name in found.items() if i in lexicon.tokens}
    languages: Codes = {name: [i] for i, name in added.items()}
    if kind == "t5":  # MADLAD's languages are pieces
        pieces = {i: name for i, name in found.items() if i not in added}
        languages |= {name: prefix_ids(encode, lexicon.names[i]) for i, name in pieces.items()}
    if kind in ("nllb", "mbart"):
        check_languages(checkpoint, languages)
    hidden = [lexicon.names[i] for i in (found if kind == "t5" else added)]
    converted = convert_library(library, lexicon, hidden)
    side = Side(converted, library, lexicon.names, lexicon.typed_tokens)
    return Vocabularies(side, side, languages)


def read_marian_files(checkpoint: Checkpoint) -> Vocabularies:
    """Read the vocabularies of a model of Marian, whose rows end with one for the start of a
    target."""
    found, sizes = read_marian_vocabularies(checkpoint), read_options(checkpoint).vocab_sizes
    sides: list[Side] = []
    codes: Codes = {}
    for vocabulary, size in zip(found, sizes, strict=True):
        if len(vocabulary.names) > size:
            raise InputError(
                f"{checkpoint.folder}: a vocabulary has {len(vocabulary.names)} tokens, and"
                f" {MARIAN} has dim-vocabs {size}: the files belong to two models"
            )
        lexicon = vocabulary.lexicon(max(sizes) + 1)
        languages = languages_of(vocabulary.names, CODE["marian"])
        codes = codes or {code: [i] for i, code in languages.items()}
        special = [vocabulary.names[i] for i in languages]
        sides.append(side_of(vocabulary.pieces, lexicon, [EOS, *special]))
    return Vocabularies(sides[0], sides[1], codes)


def read_marian(checkpoint: Checkpoint) -> Vocabularies:
    source, target, vocabulary = need(checkpoint, "marian")
    own = checkpoint.folder / "target_vocab.json"  # where the sides do not share their ids
    target_rows = number(checkpoint, "decoder_vocab_size", rows_of(checkpoint))
    sides: list[Side] = []
    codes: Codes = {}
    for path, ids, rows in (
        (source, vocabulary, rows_of(checkpoint)),
        (target, own if own.is_file() else vocabulary, target_rows),
    ):
        lexicon = extend(checkpoint, read_vocabulary(ids), rows, CODE["marian"])
        found = languages_of(lexicon.names, CODE["marian"])
        codes = codes or {code: [i] for i, code in found.items()}
        special = [lexicon.names[i] for i in found if i < lexicon.size]
        sides.append(side_of(path, lexicon, [*MARIAN_SPECIAL, *special]))
    return Vocabularies(sides[0], sides[1], codes)


def read_byte_level(checkpoint: Checkpoint) -> Vocabularies:
    vocabulary, merges = need(checkpoint, "bart")
    lexicon = extend(checkpoint, read_vocabulary(vocabulary), rows_of(checkpoint))
    names = lexicon.names[: lexicon.size]
    special = {name for name in (*FAIRSEQ, "<mask>") if name in names} | {*lexicon.structural}
    hidden, prefix_space = sorted(special - {FAIRSEQ[3]}), adds_prefix_space(checkpoint)
    converted = convert_byte_level(
        names, merges, hidden, lexicon.added, add_prefix_space=prefix_space
    )
    original = ByteLevelBPETokenizer(str(vocabulary), str(merges), prefix_space)
    side = Side(converted, original, lexicon.names, lexicon.typed_tokens)
    return Vocabularies(side, side)


def read_bytes(checkpoint: Checkpoint) -> Vocabularies:
    """Return the tokenizer of ByT5, for which files hold at most added tokens."""
    rows = rows_of(checkpoint)
    lexicon = extend(checkpoint, byt5.names_of_ids(rows), rows)
    converted = byt5.convert_bytes(lexicon)
    side = Side(converted, byt5.encode_bytes, lexicon.names, lexicon.typed_tokens)
    return Vocabularies(side, side)


def read_blenderbot_small(checkpoint: Checkpoint) -> Vocabularies:
    files = SmallFiles(*need(checkpoint, "blenderbot-small"))
    lexicon = extend(checkpoint, read_vocabulary(files.vocabulary), rows_of(checkpoint))
    converted = convert_blenderbot_small(files, lexicon)
    side = Side(converted, files, lexicon.names, lexicon.typed_tokens)
    return Vocabularies(side, side)


def read_pegasus(checkpoint: Checkpoint) -> Vocabularies:
    """Read pieces. Pegasus inserts 103 tokens of its own after the first two, <pad> and </s>."""
    (path,) = need(checkpoint, "pegasus")
    masked = ["<mask_1>", "<mask_2>", *(f"<unk_{i}>" for i in range(2, PEGASUS_OFFSET))]
    special = ["<pad>", "</s>", *masked]
    names = special + read_pieces(path).names[len(special) - PEGASUS_OFFSET :]
    lexicon = extend(checkpoint, names, rows_of(checkpoint))
    side = side_of(path, lexicon, [name for name in special if name in lexicon.names])
    return Vocabularies(side, side)


def read_t5_pieces(checkpoint: Checkpoint) -> Vocabularies:
    """Read T5's pieces, and its extra ids after them, from the last to the first. MADLAD's
    languages are pieces."""
    (path,) = need(checkpoint, "t5")
    file, rows = read_pieces(path), rows_of(checkpoint)
    options = checkpoint.optional_json(TOKENIZER_CONFIG)
    listed = options.get("extra_ids")
    listed = 100 if listed is None else listed
    if type(listed) is not int or listed < 0:
        raise InputError(
            f"{checkpoint.folder / TOKENIZER_CONFIG} has extra_ids {listed!r}; expected a"
            " whole number"
        )
    extra = min(listed, max(rows - len(file.names), 0))
    masks = [f"<extra_id_{i}>" for i in reversed(range(extra))]
    lexicon = extend(checkpoint, file.names + masks, rows, CODE["t5"])
    names = lexicon.names[: lexicon.size]
    found = languages_of(lexicon.names, CODE["t5"])
    pieces = [lexicon.names[i] for i in found if lexicon.names[i] in file.user_defined]
    hidden = {"<pad>", "</s>", "<s>", *masks, *pieces}
    side = side_of(path, lexicon, [name for name in names if name in hidden])
    encode = sentencepiece_encoder(file)
    languages = {
        code: prefix_ids(encode, lexicon.names[i]) if lexicon.names[i] in pieces else [i]
        for i, code in found.items()
        if lexicon.names[i] in pieces or i in lexicon.tokens
    }
    return Vocabularies(side, side, languages)


def prefix_ids(encode: Encode, name: str) -> list[int]:
    """Return the ids that a language token adds at the start of a text."""
    alone, after = encode("a") or [], encode(f"{name} a") or []
    return [*after[: len(after) - len(alone)]]


def read_fairseq(checkpoint: Checkpoint, kind: str) -> Vocabularies:
    """Read mBART, mBART-50, PLBart, M2M100, SMaLL-100 or NLLB: pieces, and language tokens after
    them."""
    if kind in ("m2m_100", "small100"):
        path, vocabulary = need(checkpoint, kind)
        names = read_vocabulary(vocabulary)
    else:
        (path,) = need(checkpoint, kind)
        names = FAIRSEQ + read_pieces(path).names[OWN_SPECIALS:]
    code, rows = CODE[kind], rows_of(checkpoint)
    implied = plbart_tokens(checkpoint) if kind == "plbart" else []
    lexicon = extend(checkpoint, names, rows, code, implied)
    if kind in ("m2m_100", "small100") and not languages_of(lexicon.names, code):
        default = "m2m100" if kind == "small100" else ""
        listed = checkpoint.optional_json(TOKENIZER_CONFIG).get("language_codes", default)
        implied = [f"__{each}__" for each in LISTS.get(str(listed), "").split()]
        lexicon = extend(checkpoint, names, rows, code, implied)
    found = languages_of(lexicon.names, code)
    languages: Codes = {each: [i] for i, each in found.items() if i in lexicon.tokens}
    check_languages(checkpoint, languages)
    special = [name for name in (*FAIRSEQ[:3], "<mask>") if name in lexicon.names[: lexicon.size]]
    side = side_of(path, lexicon, special)
    return Vocabularies(side, side, languages)


def plbart_tokens(checkpoint: Checkpoint) -> list[str]:
    """Return the tokens that follow PLBart's pieces. Raise InputError if it has another list of
    languages."""
    listed = checkpoint.optional_json(TOKENIZER_CONFIG).get("language_codes") or "base"
    if not isinstance(listed, str) or listed not in PLBART_LISTS:
        raise InputError(
            f"{checkpoint.folder / TOKENIZER_CONFIG} has language_codes {listed!r}; expected"
            f" {' or '.join(PLBART_LISTS)}"
        )
    mask = ["<mask>"] if listed == "base" else []
    return [f"__{each}__" for each in PLBART_LISTS[listed].split()] + mask


def rows_of(checkpoint: Checkpoint) -> int:
    return number(checkpoint, "vocab_size")


def languages_of(names: Sequence[str], code: re.Pattern[str] | None) -> dict[int, str]:
    """Return the codes of the language tokens among names, by id."""
    if code is None:
        return {}
    return {i: match[1] for i, name in enumerate(names) if (match := code.fullmatch(name))}


def check_languages(checkpoint: Checkpoint, languages: Codes) -> None:
    """Raise InputError if there are no languages: the model needs them."""
    if not languages:
        raise InputError(
            f"{checkpoint.folder} names no languages: give its tokenizer.json,"
            " added_tokens.json, special_tokens_map.json, or a tokenizer_config.json with"
            " added_tokens_decoder or language_codes"
        )
