"""Turn vocab.json and merges.txt of BlenderbotSmall into a tokenizer.json: BPE of lower-case words,
in which "@@" ends a piece that another one follows."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from model.importers.tokenizers.added_tokens import HIDDEN, Lexicon
from model.importers.tokenizers.byte_level import read_merges
from model.importers.tokenizers.pieces import HIDDEN_END, Converted, add_special
from model.network.config import InputError

NULL, START, END, UNKNOWN = "__null__", "__start__", "__end__", "__unk__"
FOLLOWED = "@@"  # as vocab.json ends a piece within a word
WORD_END = "</w>"  # as merges.txt ends the last piece of a word
NEW_LINE = "__newln__"
FINAL_SIGMA = r"(?<=\p{L}|\p{L}\p{M})\u03a3(?!\p{M}*\p{L})"


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """The files of a tokenizer of BlenderbotSmall, which its class in transformers reads."""

    vocabulary: Path
    merges: Path


def convert_blenderbot_small(files: SmallFiles, lexicon: Lexicon) -> Converted:
    """Return the tokenizer of these files. Merges of or to a piece without an id are dropped: a
    word that needs them is read in smaller pieces. Raise InputError if a file is invalid, or if
    vocab.json has no unknown token."""
    names = lexicon.names[: lexicon.size]
    if UNKNOWN not in names:
        raise InputError(f"{files.vocabulary} lacks {UNKNOWN}, which stands for unknown letters")
    hidden = {NULL, START, END, *lexicon.structural} - {UNKNOWN}
    stored = [name + HIDDEN if name in hidden else stored_name(name) for name in names]
    ids = {name: i for i, name in enumerate(stored)}
    pairs = read_merges(files.merges)
    known = [pair for pair in pairs if ids.keys() >= {*pair, "".join(pair)}]
    unknown = stored_name(UNKNOWN)
    tokenizer = Tokenizer(BPE(ids, known, unk_token=unknown, end_of_word_suffix=WORD_END))
    tokenizer.normalizer = build_normalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex("[.,!?()]"), "merged_with_next"),
            pre_tokenizers.Split("'", "isolated"),
        ]
    )
    visible = decoders.Replace(Regex(HIDDEN_END), "")
    tokenizer.decoder = decoders.Sequence([visible, decoders.BPEDecoder(WORD_END)])
    add_special(tokenizer, [name for name in stored if name.endswith(HIDDEN)])
    tokenizer.add_tokens(lexicon.added)
    tokenizer.encode_special_tokens = True
    return Converted(tokenizer, compose=False, dropped=len(pairs) - len(known))


def stored_name(name: str) -> str:
    """Return the name of a piece as merges.txt has it."""
    followed = name.endswith(FOLLOWED) and name != FOLLOWED
    return name.removesuffix(FOLLOWED) if followed else name + WORD_END


def build_normalizer() -> normalizers.Normalizer:
    """A new line right after a word is a word of its own. Letters are those of Python's `lower`."""
    return normalizers.Sequence(
        [
            normalizers.Replace(Regex(r"(?<=[^\s'])\n"), f" {NEW_LINE} "),
            normalizers.Replace(Regex(FINAL_SIGMA), "\N{GREEK SMALL LETTER FINAL SIGMA}"),
            normalizers.Lowercase(),
        ]
    )
