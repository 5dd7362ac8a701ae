"""Sentencepiece models trained on the built-in words: one of each kind of checkpoint."""

import random
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from model.importers.checkpoint import Checkpoint
from model.importers.convert import read_model
from model.importers.tokenizers.compare import equal_scores, read_scores
from model.importers.tokenizers.piece_file import PieceFile, read_pieces
from model.importers.tokenizers.pieces import Converted, convert_pieces
from model.importers.tokenizers.probes import WORDS
from model.importers.usage.usage import read_usage
from model.importers.vocabularies import read_vocabularies
from service.text.compose import with_compose
from service.text.tokenizer import Tokenizer

SYMBOLS = ["<2fr>", ">>x<<", "@"]
FEW = {"byte_fallback": True, "character_coverage": 0.98}
KINDS = {
    "unigram": {"model_type": "unigram"},
    "bpe": {"model_type": "bpe"},
    "unigram-bytes": {"model_type": "unigram", **FEW},
    "bpe-bytes": {"model_type": "bpe", **FEW},
    "identity": {"model_type": "unigram", "normalization_rule_name": "identity"},
    "folded": {
        "model_type": "unigram",
        "normalization_rule_name": "nmt_nfkc_cf",
        "user_defined_symbols": SYMBOLS,
    },
    "bpe-symbols": {"model_type": "bpe", "user_defined_symbols": SYMBOLS},
    "bpe-spaces": {
        "model_type": "bpe",
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
    },
}


@dataclass(frozen=True, slots=True, repr=False)
class Example:
    """A model of sentencepiece, and what this project makes of it."""

    file: PieceFile
    oracle: SentencePieceProcessor
    converted: Converted
    served: Tokenizer

    def agrees(self, text: str) -> bool:
        ids, expected = self.encode(text), self.oracle.encode(text)
        return ids == expected or equal_scores(ids, expected, read_scores(self.converted.tokenizer))

    def encode(self, text: str) -> list[int]:
        return self.served._library.encode(text, add_special_tokens=False).ids


def train(path: Path, sentences: list[str], **options) -> Path:
    options = {"vocab_size": 1500, "character_coverage": 1.0, **options}
    SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_prefix=str(path),
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    return path.with_suffix(".model")


def corpus() -> list[str]:
    """Sentences of the built-in words, and of the names of characters."""
    chance = random.Random(1)
    names = [unicodedata.name(chr(code), "").lower() for code in range(0x21, 0x500)]
    lines = [text.split() for text in WORDS.values()] + [names]
    return [" ".join(chance.choices(words, k=7)) for words in lines for _ in range(40)]


def open_example(path: Path) -> Example:
    file = read_pieces(path)
    converted = convert_pieces(file, special=["<s>", "</s>"])
    oracle = SentencePieceProcessor(model_file=str(path))
    return Example(file, oracle, converted, serve(converted))


def read(folder):
    """Return a checkpoint, its tokenizers, and how it is used."""
    checkpoint = Checkpoint(folder)
    vocabularies = read_vocabularies(checkpoint)
    usage = read_usage(checkpoint, vocabularies, read_model(checkpoint).config)
    return checkpoint, vocabularies, usage


def serve(converted: Converted) -> Tokenizer:
    """Return the service's tokenizer, opened as `open_library` opens a bundle's."""
    library = type(converted.tokenizer).from_str(converted.tokenizer.to_str())
    if converted.compose:
        library.normalizer = with_compose(library.normalizer)
    return Tokenizer(library, 1 << 20, {})


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces")
    return {kind: train(folder / kind, corpus(), **options) for kind, options in KINDS.items()}


@pytest.fixture(scope="session", params=KINDS)
def example(request, models):
    return open_example(models[request.param])
