"""Build and load tokenizer.json files. No special ids are added here: the bundle says which."""

import sys
from collections.abc import Iterable
from enum import StrEnum

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.trainers import WordLevelTrainer

PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
SPECIALS = [PAD, BOS, EOS, UNK]  # in this order, so their ids are 0..3


APOSTROPHES = "[\u2018\u2019\u02bc\u0060\u00b4]"  # whatever keyboards and editors make of one


class Unit(StrEnum):
    characters = "characters"  # in lower case
    words = "words"  # whatever stands between spaces


def build_tokenizer(texts: Iterable[str], unit: Unit) -> Tokenizer:
    """One token for every unit in `texts`, the most frequent first; all else is <unk>."""
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
    trainer = WordLevelTrainer(vocab_size=sys.maxsize, special_tokens=SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
