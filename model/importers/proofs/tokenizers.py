"""Prove that the tokenizers give the ids of the checkpoint's own, within a text and around it."""

import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any, cast

from tokenizers import ByteLevelBPETokenizer, Tokenizer

from model.importers.checkpoint import OWN, Checkpoint
from model.importers.proofs.proof import Proof
from model.importers.tokenizers.added_tokens import STORED
from model.importers.tokenizers.blenderbot_small import FOLLOWED, SmallFiles
from model.importers.tokenizers.compare import (
    Encode,
    compare_pieces,
    sentencepiece_encoder,
    with_typed,
)
from model.importers.tokenizers.kinds import BYTES, class_of, is_byte_level, is_bytes, kind_of
from model.importers.tokenizers.piece_file import PieceFile
from model.importers.tokenizers.probes import probes
from model.importers.tokenizers.tokenizer_file import encode_with, open_whole
from model.importers.usage.framing import TARGET_SLOT, deciding_frame, is_mbart_50
from model.importers.vocabularies import Side, Vocabularies
from model.usage import Codes, Slot, Usage, fill

MOST_TYPED = 50  # added tokens that are typed for a proof
AROUND = "ids around a text"
UNLOADABLE = (OSError, ValueError, RuntimeError, LookupError, TypeError, ImportError)
FRAMED = ("Hello", "The weather is lovely today", "a 1 b")


def prove_pieces(vocabularies: Vocabularies) -> list[Proof]:
    """Compare the ids of the built-in texts, and of texts with the tokens that the files add, on
    each side, with those of the original tokenizer."""
    proofs: list[Proof] = []
    sides = {"source": vocabularies.source, "target": vocabularies.target}
    for name, side in sides.items():
        if side.original is None:
            proofs.append(Proof(f"{name} tokenizer", "-", "there is no reference tokenizer", None))
            continue
        try:
            reference, encode = reference_of(side)
        except ImportError as error:
            said = f"pip install {error.name} compares them with Hugging Face"
            proofs.append(Proof(f"{name} tokenizer", "-", said, None))
            continue
        texts = [*probes(), *typed_texts(side)]
        expected = {text: encode(text) for text in texts}
        different = compare_pieces(side.converted, expected.__getitem__, texts)
        example = f", such as {different[0][:40]!r}" if different else ""
        result = f"{len(different)} of {len(texts)} texts have other ids{example}"
        if skipped := sum(expected[text] is None for text in texts):
            result += f"; {skipped} are not compared"
        if side.converted.dropped:
            result += f"; {side.converted.dropped} {dropped_of(side)}"
        proofs.append(Proof(f"{name} tokenizer", reference, result, not different))
    return proofs


def dropped_of(side: Side) -> str:
    """Return what is dropped of the original because the vocabulary lacks it."""
    if isinstance(side.original, PieceFile):
        return f"pieces of {side.original.path.name} have no id"
    return "merges are of or to a piece without an id"


def typed_texts(side: Side) -> Iterator[str]:
    """Yield texts with the added tokens, joined to words and apart from them."""
    for token in side.typed[:MOST_TYPED]:
        yield f"a{token.content}b {token.content} {token.content}c"


def reference_of(side: Side) -> tuple[str, Encode]:
    """Return the package that reads the original of a tokenizer with its version, or the name of
    the ids' definition, and its encoding of texts.

    The encoding returns None for texts with tokens that only one of the two finds in typed text.
    """
    names = {name: i for i, name in enumerate(side.names)}
    hidden: list[str] = []
    if isinstance(side.original, PieceFile):
        package, encode = "sentencepiece", sentencepiece_encoder(side.original, side.names)
        encode = with_typed(encode, side.typed, names)
        hidden = [name for name in side.original.user_defined if side.hides(name)]
    elif isinstance(side.original, SmallFiles):
        package, encode = "transformers", encode_small(side.original)
        encode = with_typed(encode, side.typed, names)
    elif isinstance(side.original, ByteLevelBPETokenizer):
        package, encode = "tokenizers", with_typed(encode_with(side.original), side.typed, names)
    elif isinstance(side.original, Tokenizer):
        package, encode = "tokenizers", encode_with(side.original)
        hidden = [name for name in side.original.get_vocab() if side.hides(name)]
    else:
        assert side.original is not None
        return "UTF-8", with_typed(side.original, side.typed, names)
    return (
        f"{package} {version(package)}",
        lambda text: None if any(token in text for token in hidden) else encode(text),
    )


def encode_small(files: SmallFiles) -> Encode:
    """Return the encoding of BlenderbotSmall's class. It returns None for a text with a piece of
    several letters that has no id: Hugging Face reads it as unknown, Heed in smaller pieces."""
    from transformers import BlenderbotSmallTokenizer

    theirs: Any = BlenderbotSmallTokenizer(str(files.vocabulary), str(files.merges))
    known = theirs.get_vocab()

    def encode(text: str) -> list[int] | None:
        pieces = theirs.tokenize(text, split_special_tokens=True)
        if any(len(piece.removesuffix(FOLLOWED)) > 1 and piece not in known for piece in pieces):
            return None
        return theirs.convert_tokens_to_ids(pieces)

    return encode


def prove_ends(checkpoint: Checkpoint, vocabularies: Vocabularies, usage: Usage) -> Proof:
    """Compare whole encodings of sources, with the ids around them, with the checkpoint's own
    tokenizer: tokenizer.json where its post-processor decides, or else Hugging Face's class."""
    if checkpoint.config_name == OWN:
        return Proof(AROUND, "-", "heed.toml gives them, and there is no other source", None)
    if checkpoint.is_marian:
        return Proof(AROUND, "-", "Marian's are always the same: </s> after a source", None)
    if deciding_frame(checkpoint, vocabularies.languages):
        library = open_whole(checkpoint.folder / STORED)
        reference = f"tokenizers {version('tokenizers')}"
        return compare_ends(Library(library), vocabularies, usage, reference)
    if kind_of(checkpoint) == "blenderbot":
        said = "transformers 5 leaves </s> out where tokenizer.json does not give it, 4 does not"
        return Proof(AROUND, "-", said, None)
    try:
        import transformers
    except ImportError:
        return Proof(AROUND, "-", "pip install transformers compares them with Hugging Face", None)
    reference = f"transformers {version('transformers')}"
    try:
        theirs = open_theirs(transformers, checkpoint, vocabularies.languages)
    except Exception as error:
        if not (isinstance(error, UNLOADABLE) or type(error) is Exception):  # tokenizers has no own
            raise
        reason = " ".join(str(error).split())
        return Proof(AROUND, reference, f"it cannot load the tokenizer: {reason}"[:200], None)
    return compare_ends(theirs, vocabularies, usage, reference)


class Library:
    """A tokenizer.json with its post-processor, whose source language is fixed."""

    reads_target = True

    def __init__(self, library: Tokenizer) -> None:
        self._library = library

    def encode(self, text: str, _language: str | None, whole: bool) -> list[int]:
        return self._library.encode(text, add_special_tokens=whole).ids

    def id_of(self, name: str) -> int | None:
        return self._library.token_to_id(name)

    def languages(self, codes: Codes) -> list[str]:
        around = self.encode("a", None, whole=True)
        return [code for code, ids in codes.items() if ids[-1] in around]


class HuggingFace:
    """A tokenizer of transformers, which puts the language of a source around a text.

    `reads_target`: the token of a target is typed before a text, as for MADLAD. Otherwise the class
    puts it where that of a source would be, as SMaLL-100's.
    """

    def __init__(self, tokenizer: Any, reads_target: bool) -> None:
        self._tokenizer, self.reads_target = tokenizer, reads_target

    def encode(self, text: str, language: str | None, whole: bool) -> list[int]:
        if language is not None:
            self._tokenizer.src_lang = language
        return self._tokenizer(text, add_special_tokens=whole).input_ids

    def id_of(self, name: str) -> int | None:
        return self._tokenizer.convert_tokens_to_ids(name)

    def languages(self, codes: Codes) -> list[str]:
        return [*filter(self._knows, codes)]

    def _knows(self, code: str) -> bool:
        try:
            self._tokenizer.src_lang = code
        except KeyError:  # of M2M100's class, which has a list of its own
            return False
        return True


def open_theirs(transformers: Any, checkpoint: Checkpoint, languages: Codes) -> HuggingFace:
    """Load the tokenizer by the class of its kind: files may name none, or another one."""
    kind = kind_of(checkpoint)
    match kind:
        case "nllb":
            name = "NllbTokenizer"
        case "m2m_100" | "small100":
            name = "M2M100Tokenizer"
        case "blenderbot-small":
            name = "BlenderbotSmallTokenizer"
        case "plbart":
            name = "PLBartTokenizer"
        case "mbart":
            name = "MBart50Tokenizer" if is_mbart_50(checkpoint, languages) else "MBartTokenizer"
        case "t5" if is_bytes(checkpoint):
            name = BYTES
        case "t5" if not (class_of(checkpoint) or is_byte_level(checkpoint)):
            name = "T5Tokenizer"  # AutoTokenizer knows none for UMT5
        case _:
            name = "AutoTokenizer"
    load = getattr(transformers, name).from_pretrained
    with warnings.catch_warnings(action="ignore"):  # about packages that it could use
        return HuggingFace(load(checkpoint.folder, local_files_only=True), kind != "small100")


def compare_ends(
    theirs: Library | HuggingFace, vocabularies: Vocabularies, usage: Usage, reference: str
) -> Proof:
    """Compare the ids around texts, and those of the added tokens in them.

    What is between is compared with the original file: libraries of Hugging Face read some texts
    otherwise. Tokens to which the reference gives another id than the files are left out.
    """
    side = vocabularies.source
    known = {name: i for i, name in enumerate(side.names)}
    added = [token.content for token in side.typed if token.content.strip()][:MOST_TYPED]
    moved = [name for name in added if theirs.id_of(name) != known[name]]
    same = {known[name] for name in added if name not in moved}
    texts = [*FRAMED, *(f"a{name}b" for name in added if name not in moved)]
    compared = 0
    for text in texts:
        for language, ids in chosen_languages(theirs, vocabularies, usage):
            token = ids.get(TARGET_SLOT, []) if language is None else []
            typed = f"{side.names[token[0]]} " if token else ""
            whole, plain = (theirs.encode(typed + text, language, w) for w in (True, False))
            inner = plain[len(token) :]
            ours = [*fill(usage.source_prefix, ids), *inner, *fill(usage.source_suffix, ids)]
            if whole != ours:
                result = f"{typed + text!r} is {whole}, and Heed's are {ours}"
                return Proof(AROUND, reference, result, False)
            read = side.tokenizer.encode(text, add_special_tokens=False).ids
            if [i for i in read if i in same] != [i for i in inner if i in same]:
                result = f"{text!r} is {inner}, and Heed's are {read}"
                return Proof(AROUND, reference, result, False)
            compared += 1
    if not compared:
        said = "it gives all languages other ids than the files do"
        return Proof(AROUND, reference, said, None)
    result = f"{compared} texts have the same ids around them"
    if moved:
        result += f"; not compared: {len(moved)} added tokens whose ids in the files are others"
    return Proof(AROUND, reference, result, True)


def chosen_languages(
    theirs: Library | HuggingFace, vocabularies: Vocabularies, usage: Usage
) -> list[tuple[str | None, dict[Slot, list[int]]]]:
    """Return languages in which to encode: the first, the middle and the last that the reference
    knows under the same id. Ids are those of the slots. A code is set as that of the source, but
    the token of a target is typed if the reference reads it in texts.

    M2M100's class puts the ids of a list of its own around a text, whatever the files name them.
    """
    around = (*usage.source_prefix, *usage.source_suffix)
    slot = next((each for each in around if isinstance(each, str)), None)
    if slot is None:
        return [(None, {})]
    names, codes = vocabularies.source.names, vocabularies.languages
    known = [
        code
        for code in theirs.languages(codes)
        if len(codes[code]) == 1 and theirs.id_of(names[codes[code][0]]) == codes[code][0]
    ]
    if slot == TARGET_SLOT and theirs.reads_target:
        return [(None, {TARGET_SLOT: codes[code]}) for code in few(known)] or [(None, {})]
    put = [code for code in known if codes[code][0] in theirs.encode("a", code, whole=True)]
    return [(code, {cast("Slot", slot): codes[code]}) for code in few(put)]


def few(codes: Sequence[str]) -> list[str]:
    """Return the first, the middle and the last of these codes."""
    return sorted({codes[i] for i in (0, len(codes) // 2, -1)}) if codes else []
