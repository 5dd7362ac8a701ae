"""Build the tokenizer.json files of a model. They add no special ids: the bundle says which ids
surround a text."""

import json
import string
import sys
from collections.abc import Iterable
from enum import StrEnum

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from tokenizers.trainers import BpeTrainer, WordLevelTrainer

PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
SPECIALS = [PAD, BOS, EOS, UNK]  # in this order, so that their ids are 0..3
APOSTROPHES = "[\u2018\u2019\u02bc\u0060\u00b4]"  # keyboards and editors write any of these for '
SPACES = "[\\s\u2581]+"  # U+2581 stands for a space in the names of pieces
ALONE = "\u2581?[\\p{P}\\p{N}]"  # a punctuation mark or digit, with the space before it
# Where a capital belongs to a word, not to an initialism: before a small letter (other than the s
# of GPUs and JFK's), after one, or alone. The counts bound the time that a long text takes.
IN_A_WORD = (
    r"{0}(?=(?>[A-Z]{{0,15}})(?!'?s\b)[a-z'])|(?<=[a-z'][A-Z]{{0,15}}){0}|(?<![A-Z]){0}(?![A-Z])"
)
VOCABULARY_SIZE = 4000  # enough for some 100,000 pairs; more pieces would be seen too rarely


class Unit(StrEnum):
    """Units that a text is split into, one token each."""

    characters = "characters"  # apostrophes unified, `Case` says which capitals are kept
    words = "words"  # at white space, otherwise unchanged
    pieces = "pieces"  # frequent parts of words, learned from the texts; the case is kept


class Case(StrEnum):
    """Which capitals remain where the unit is characters; words and pieces always keep theirs."""

    lower_case = "lower"  # none
    initialisms = "initialisms"  # of A to Z, those of GPU, GPUs and JFK's, but not Hello, McDonald
    keep = "keep"  # all


def build_tokenizer(
    texts: Iterable[str],
    unit: Unit,
    case: Case = Case.lower_case,
    vocabulary_size: int = VOCABULARY_SIZE,
) -> Tokenizer:
    """Build a tokenizer with a token for every unit in `texts`, or for at most `vocabulary_size`
    pieces, unless the texts have more characters than that.

    It encodes any other unit, or a character that no piece has, as <unk>.
    """
    match unit:
        case Unit.characters:
            tokenizer = character_tokenizer(case)
        case Unit.words:
            tokenizer = Tokenizer(WordLevel(unk_token=UNK))
            tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        case Unit.pieces:
            tokenizer = piece_tokenizer()
    if unit is Unit.pieces:
        trainer = BpeTrainer(
            vocab_size=vocabulary_size,
            min_frequency=2,
            special_tokens=SPECIALS,
            show_progress=False,
        )
    else:
        # the trainer's default would keep only the 30,000 most frequent units
        trainer = WordLevelTrainer(
            vocab_size=sys.maxsize, special_tokens=SPECIALS, show_progress=False
        )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def character_tokenizer(case: Case) -> Tokenizer:
    tokenizer = Tokenizer(WordLevel(unk_token=UNK))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(APOSTROPHES), "'"),
            normalizers.NFKC(),
            *case_normalizers(case),
            normalizers.Strip(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def case_normalizers(case: Case) -> list[normalizers.Normalizer]:
    match case:
        case Case.lower_case:
            return [normalizers.Lowercase()]
        case Case.initialisms:
            return [
                normalizers.Replace(Regex(IN_A_WORD.format(letter)), letter.lower())
                for letter in string.ascii_uppercase
            ]
        case Case.keep:
            return []


def piece_tokenizer() -> Tokenizer:
    """Return byte pair encoding as sentencepiece has it: pieces begin with U+2581 where a space or
    the text begins, so that decoding restores every space.

    White space becomes one space, as in sentencepiece. Digits and punctuation marks are not merged.
    """
    tokenizer = Tokenizer(BPE(unk_token=UNK))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(SPACES), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Split(Regex(ALONE), "isolated")]
    )
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def unit_of(tokenizer: Tokenizer) -> Unit:
    """Return the unit that this tokenizer, made by `build_tokenizer`, splits texts into."""
    if isinstance(tokenizer.decoder, decoders.Metaspace):
        return Unit.pieces
    at_spaces = isinstance(tokenizer.pre_tokenizer, pre_tokenizers.WhitespaceSplit)
    return Unit.words if at_spaces else Unit.characters


def normalize(tokenizer: Tokenizer, text: str) -> str:
    """Return the text as the tokenizer splits it."""
    return tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text


def case_of(tokenizer: Tokenizer) -> Case:
    """Return which capitals this tokenizer keeps: all, unless `build_tokenizer` made it to keep
    fewer."""
    kept = {"ab a": Case.lower_case, "AB a": Case.initialisms, "AB A": Case.keep}
    return kept.get(normalize(tokenizer, "AB A"), Case.keep)


def unknown_id_of(tokenizer: Tokenizer) -> int | None:
    """Return the id of the unknown token; None if every text is known, as to bytes."""
    model = json.loads(tokenizer.to_str())["model"]
    if "unk_id" in model:
        return model["unk_id"]
    name = model.get("unk_token")
    return None if name is None else tokenizer.token_to_id(name)
