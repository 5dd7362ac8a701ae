"""Turn a sentencepiece model into a tokenizer.json that gives the same ids without sentencepiece.

A vocabulary is a list of names in the order of their ids. A name that no text may become, such as
</s>, is stored with a space at its end: normalized text has no U+0020.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram

from model.importers.tokenizers.added_tokens import HIDDEN, Lexicon, with_flags
from model.importers.tokenizers.piece_file import Piece, PieceFile, PieceKind
from model.network.config import InputError

SPACE = "\u2581"  # stands for a space in sentencepiece
HIDDEN_END = r"(?<=\S) \z"  # not the spaces of a token that is nothing else
TYPED_BYTE_END = "(?<=<0x[0-9A-F]{2})>"  # splits a typed "<0x41>", which is text, not a byte
USER_SCORE = -0.1  # sentencepiece's own score of user-defined symbols
MARIAN_SPECIAL = ("</s>", "<pad>")
DECOMPOSED, COMPOSED = "e\u0301", "\u00e9"


@dataclass(frozen=True, slots=True)
class Converted:
    """A tokenizer, and what the bundle has to say about it.

    `compose` is true if the service must compose letters and their marks before the tokenizer's own
    normalizer. `dropped` counts the pieces of the file that the vocabulary lacks.
    """

    tokenizer: Tokenizer
    compose: bool
    dropped: int


def convert_pieces(
    file: PieceFile,
    vocabulary: Sequence[str] | None = None,
    special: Collection[str] = (),
    added: Collection[AddedToken] = (),
) -> Converted:
    """Return the tokenizer of a sentencepiece model whose id i is `vocabulary[i]`; by default the
    file's own order. Tokens `added` that the vocabulary lacks follow it.

    Text never becomes one of the `special` tokens, and their text is left out of decoded text. A
    name that the file lacks is unreachable, unless it is one character: libraries look such pieces
    up by their text. Raise InputError if the vocabulary lacks the file's unknown piece or a
    special name.
    """
    vocabulary = file.names if vocabulary is None else vocabulary
    known = set(vocabulary)
    if missing := [name for name in (file.unknown, *special) if name not in known]:
        raise InputError(
            f"{file.path} needs the tokens {', '.join(missing)}, which the vocabulary of"
            f" {len(vocabulary)} tokens lacks: give the vocabulary that belongs to it"
        )
    if len(known) < len(vocabulary):
        twice = next(name for name in vocabulary if vocabulary.count(name) > 1)
        raise InputError(f"the vocabulary of {file.path} has {twice!r} twice: give every id a name")
    pieces, hidden = {piece.text: piece for piece in file.pieces}, {*special}
    typed = {token.content for token in added}
    stored = [
        name
        if name in typed or (name not in hidden and is_reachable(name, pieces))
        else name + HIDDEN
        for name in vocabulary
    ]
    ids = {name: i for i, name in enumerate(vocabulary)}
    build = build_bpe if file.is_bpe else build_unigram
    tokenizer = Tokenizer(build(file, stored, ids))
    tokenizer.normalizer = build_normalizer(file)
    if splitters := build_splitters(file):
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splitters)
    tokenizer.decoder = build_decoder(file)
    add_special(tokenizer, [stored[ids[name]] for name in special])
    tokenizer.add_tokens([*added])
    tokenizer.encode_special_tokens = True
    dropped = sum(p.kind is PieceKind.normal and p.text not in known for p in file.pieces)
    return Converted(tokenizer, composes(file), dropped)


def convert_lexicon(file: PieceFile, lexicon: Lexicon, special: Collection[str] = ()) -> Converted:
    """Return the tokenizer of a sentencepiece model with the tokens that other files add to it.

    They are found before a text is normalized, and each part between them is read as a text.
    """
    hidden = dict.fromkeys([*special, *lexicon.structural])
    hidden.pop(file.unknown, None)  # texts may hold unknown letters
    added = [with_flags(token, normalized=False) for token in lexicon.added]
    return convert_pieces(file, lexicon.names[: lexicon.size], [*hidden], added)


def is_reachable(name: str, pieces: Mapping[str, Piece]) -> bool:
    if name not in pieces:
        return len(name) == 1
    return pieces[name].kind in (PieceKind.normal, PieceKind.user_defined, PieceKind.byte)


def add_special(tokenizer: Tokenizer, names: Collection[str]) -> None:
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in names])


def build_unigram(file: PieceFile, stored: Sequence[str], ids: Mapping[str, int]) -> Unigram:
    # Unknown letters score a constant below the least score, so hidden pieces must not lower it.
    least = min(piece.score for piece in file.pieces if piece.kind is PieceKind.normal)
    scores = {piece.text: score_of(piece, least) for piece in file.pieces}
    scored = [(stored[i], scores.get(name, least)) for name, i in ids.items()]
    return Unigram(scored, ids[file.unknown], file.byte_fallback)


def score_of(piece: Piece, least: float) -> float:
    if piece.kind is PieceKind.normal:
        return piece.score
    return USER_SCORE if piece.kind is PieceKind.user_defined else least


def build_bpe(file: PieceFile, stored: Sequence[str], ids: Mapping[str, int]) -> BPE:
    places = {name: i for i, name in enumerate(stored)}
    return BPE(
        places,
        [*merges(file, places.keys() & ids.keys())],  # of names that are not hidden
        unk_token=stored[ids[file.unknown]],
        fuse_unk=True,
        byte_fallback=file.byte_fallback,
        ignore_merges=bool(file.user_defined),  # such a symbol is one token without merges
    )


def merges(file: PieceFile, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield every pair of pieces that makes a piece, the best piece first, all among `names`."""
    normal = {piece.text for piece in file.pieces if piece.kind is PieceKind.normal}
    parts = {text for text in names if text in normal or len(text) == 1}
    ranked = sorted((p for p in file.pieces if p.text in parts), key=lambda p: -p.score)
    for piece in ranked:
        text = piece.text
        for i in range(1, len(text)):
            if text[:i] in parts and text[i:] in parts:
                yield text[:i], text[i:]


def build_normalizer(file: PieceFile) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if file.charsmap:
        steps.append(normalizers.Precompiled(file.charsmap))
    if file.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
        steps.append(normalizers.Replace(Regex(rf"\A |[ {SPACE}]+\z"), ""))
    if file.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    return normalizers.Sequence(steps)


def build_splitters(file: PieceFile) -> list[pre_tokenizers.PreTokenizer]:
    """Return splitters that cut no piece. They save time: the tokenizer caches the parts."""
    splitters: list[pre_tokenizers.PreTokenizer] = []
    if file.byte_fallback and not file.is_bpe:
        splitters.append(pre_tokenizers.Split(Regex(TYPED_BYTE_END), "merged_with_next"))
    if file.is_bpe and file.user_defined:
        longest_first = sorted(file.user_defined, key=len, reverse=True)
        symbols = Regex("|".join(re.escape(symbol) for symbol in longest_first))
        splitters.append(pre_tokenizers.Split(symbols, "isolated"))
    if not any(SPACE in name[1:] for name in file.names):
        splitters.append(pre_tokenizers.Split(SPACE, "merged_with_next"))
    return splitters


def build_decoder(file: PieceFile) -> decoders.Decoder:
    steps: list[decoders.Decoder] = [decoders.Replace(Regex(HIDDEN_END), "")]
    if file.byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if file.add_dummy_prefix or file.remove_extra_whitespaces:
        steps.append(decoders.Replace(Regex(rf"\A{SPACE}"), ""))
    steps.append(decoders.Replace(SPACE, " "))
    return decoders.Sequence(steps)


def composes(file: PieceFile) -> bool:
    """Return whether the file's normalizer turns a letter and its mark into one character."""
    if not file.charsmap:
        return False
    return normalizers.Precompiled(file.charsmap).normalize_str(DECOMPOSED) == COMPOSED
