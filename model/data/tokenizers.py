"""Build the tokenizer.json files of a model. They add no special ids: the bundle says which ids
surround a text."""

import sys
from collections.abc import Iterable
from enum import StrEnum

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.trainers import WordLevelTrainer

PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
SPECIALS = [PAD, BOS, EOS, UNK]  # in this order, so that their ids are 0..3
APOSTROPHES = "[\u2018\u2019\u02bc\u0060\u00b4]"  # keyboards and editors write any of these for '


class Unit(StrEnum):
    """Units that a text is split into, one token each."""

    characters = "characters"  # in lower case, apostrophes unified
    words = "words"  # at white space, otherwise unchanged


def build_tokenizer(texts: Iterable[str], unit: Unit) -> Tokenizer:
    """Build a tokenizer with one token for every unit in `texts`, the most frequent first.

    It encodes any other unit as <unk>.
    """
    tokenizer = Tokenizer(WordLevel(unk_token=UNK))
    if unit is Unit.characters:
        tokenizer.normalizer = normalizers.Sequence(
            [
                normalizers.Replace(Regex(APOSTROPHES), "'"),
                normalizers.NFKC(),
                normalizers.Lowercase(),
                normalizers.Strip(),
            ]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # the trainer's default would keep only the 30,000 most frequent units
    trainer = WordLevelTrainer(vocab_size=sys.maxsize, special_tokens=SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def unit_of(tokenizer: Tokenizer) -> Unit:
    """Return the unit that this tokenizer, made by `build_tokenizer`, splits texts into."""
    at_spaces = isinstance(tokenizer.pre_tokenizer, pre_tokenizers.WhitespaceSplit)
    return Unit.words if at_spaces else Unit.characters
