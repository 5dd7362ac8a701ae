"""Compare a converted tokenizer with its original on the built-in texts."""

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence

from tokenizers import AddedToken, Tokenizer

from model.importers.files.reading import read
from model.importers.tokenizers.piece_file import PieceFile
from model.importers.tokenizers.pieces import Converted
from model.importers.tokenizers.probes import probes

LONGEST = 4  # characters that compose to one
EXTENDING = {"Mn", "Mc", "Me", "Cf", "Cn", "Sk"}  # categories of marks, joiners, skin tones
VOWELS = "\u0e33\u0eb3"  # of Thai and Lao, which extend a letter, too
DIVIDER = "\x07"
Encode = Callable[[str], Sequence[int] | None]


def compare_pieces(
    converted: Converted, reference: Encode, texts: Iterable[str] | None = None
) -> list[str]:
    """Return the texts, by default the built-in ones, that have other ids in `reference`.

    Texts for which `reference` returns None are not compared. Different ids with the same total
    score count as equal: sentencepiece adds scores in 32 bits, the tokenizers library in 64.
    """
    tokenizer = converted.tokenizer
    scores = read_scores(tokenizer)
    added = tokenizer.get_added_tokens_decoder().values()
    pattern = pattern_of([token for token in added if not token.special])
    different: list[str] = []
    for text in probes() if texts is None else texts:
        expected = reference(text)
        read = compose_between(text, pattern, tokenizer) if converted.compose else text
        ids = tokenizer.encode(read, add_special_tokens=False).ids
        if (
            expected is not None
            and ids != list(expected)
            and not equal_scores(ids, expected, scores)
        ):
            different.append(text)
    return different


def sentencepiece_encoder(file: PieceFile, vocabulary: Sequence[str] | None = None) -> Encode:
    """Return sentencepiece's own encoding of texts, in the ids of `vocabulary`.

    It returns None for a text with a piece that the vocabulary lacks, or with unknown letters that
    Hugging Face looks up together and the converted tokenizer one by one: if the vocabulary has
    some of them, or all together, as a token of the other side.
    """
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_proto=read(file.path))
    ids = {name: i for i, name in enumerate(file.names if vocabulary is None else vocabulary)}
    unknown = ids[file.unknown]

    def differs(piece: str) -> bool:
        if processor.piece_to_id(piece) != processor.unk_id():
            return piece not in ids
        return len(piece) > 1 and (piece in ids or any(letter in ids for letter in piece))

    def encode(text: str) -> list[int] | None:
        pieces = processor.encode(text, out_type=str)
        if any(map(differs, pieces)):
            return None
        return [ids.get(piece, unknown) for piece in pieces]

    return encode


def with_typed(encode: Encode, tokens: Sequence[AddedToken], ids: Mapping[str, int]) -> Encode:
    """Return an encoding that finds these tokens in a text, and gives the parts between them to
    `encode`."""
    if not tokens:
        return encode
    pattern = pattern_of(tokens)
    patterns = [(re.compile(as_pattern(token)), ids[token.content]) for token in tokens]

    def encode_parts(text: str) -> list[int] | None:
        found: list[int] = []
        for i, part in enumerate(pattern.split(text)):
            if i % 2:
                found += [next(i for each, i in patterns if each.fullmatch(part))]
            elif (read := encode(part) if part else []) is None:
                return None
            else:
                found += read
        return found

    return encode_parts


def pattern_of(tokens: Sequence[AddedToken]) -> re.Pattern[str]:
    """Return a pattern that finds these tokens in a text, as its one group; nothing if none."""
    longest_first = sorted(tokens, key=lambda token: len(token.content), reverse=True)
    return re.compile(f"({'|'.join(map(as_pattern, longest_first)) or '(?!)'})")


def as_pattern(token: AddedToken) -> str:
    """Return a regular expression of the text that a token stands for."""
    around = r"(?<!\w){}(?!\w)" if token.single_word else "{}"
    before, after = r"\s*" * token.lstrip, r"\s*" * token.rstrip
    return before + around.format(re.escape(token.content)) + after


def read_scores(tokenizer: Tokenizer) -> list[float]:
    """Return the scores of a unigram model by id; none for other models."""
    model = json.loads(tokenizer.to_str())["model"]
    return [score for _, score in model["vocab"]] if model["type"] == "Unigram" else []


def equal_scores(ids: Sequence[int], others: Sequence[int], scores: Sequence[float]) -> bool:
    if not scores:
        return False
    first, second = (math.fsum(scores[i] for i in each) for each in (ids, others))
    return math.isclose(first, second, rel_tol=1e-6)


def compose(text: str, tokenizer: Tokenizer) -> str:
    """Compose marks with their letters as the service does (docs/bundle.md, `compose`)."""
    read, i = "", 0
    while i < len(text):
        end = next((n for n in range(LONGEST, 1, -1) if composed(text[i : i + n])), 1)
        letter = composed(text[i : i + end]) if end > 1 else text[i]
        read += letter
        i += end
        following = text[i : i + 1]
        joins = (following and may_extend(following)) or letter + following == "\r\n"
        if joins and replaces(tokenizer, letter) and replaces(tokenizer, DIVIDER):
            read += DIVIDER
    return read


def may_extend(character: str) -> bool:
    """Return whether a character may be one with the letter before it, as a mark is (UAX 29). One
    that Python does not know may be a mark that the tokenizers library knows."""
    return unicodedata.category(character) in EXTENDING or character in VOWELS


def compose_between(text: str, added: re.Pattern[str], tokenizer: Tokenizer) -> str:
    """Compose the parts of a text between added tokens, which are found before it is normalized."""
    parts = enumerate(added.split(text))
    return "".join(part if i % 2 else compose(part, tokenizer) for i, part in parts)


def replaces(tokenizer: Tokenizer, letter: str) -> bool:
    return letter not in tokenizer.normalizer.normalize_str(letter)


def composed(typed: str) -> str:
    """Return the character that NFKC makes of single characters in their order, "" if none."""
    apart = "".join(unicodedata.normalize("NFKD", character) for character in typed)
    whole = unicodedata.normalize("NFC", apart)
    single = 1 < len(typed) == len(apart) and len(whole) == 1
    return whole if single and unicodedata.normalize("NFD", whole) == apart else ""
