"""The grapheme-to-phoneme peers of the extra `peers`: Phonetisaurus and g2p_en."""

import hashlib
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

# The extra is not installed where the code is checked.
import g2p_en.g2p  # pyright: ignore[reportMissingImports]
import phonetisaurus  # pyright: ignore[reportMissingImports]

from model.data.pairs import Pair
from model.evaluate import by_source

PHONETISAURUS = f"Phonetisaurus {version('phonetisaurus')}"
G2P_EN = f"g2p_en {version('g2p-en')}"


def phonetisaurus_predictions(pairs: list[Pair], words: list[str], models: Path) -> dict[str, str]:
    """Predict with Phonetisaurus. Train it on `pairs`, unless `models` has that model."""
    model = models / f"{hashlib.sha256(repr(pairs).encode()).hexdigest()[:12]}.fst"
    if not model.exists():
        lexicon = {
            word: [text.split() for text in dict.fromkeys(texts)]
            for word, texts in by_source(pairs).items()
        }
        phonetisaurus.train(lexicon, model)
    found = {word: " ".join(best) for word, best in phonetisaurus.predict(words, model)}
    return {word: found.get(word, "") for word in words}


def g2p_en_predictions(words: list[str]) -> dict[str, str]:
    """Predict with g2p_en's neural model alone, because its lexicon has most of the words."""
    g2p_en.g2p.cmudict = SimpleNamespace(dict=dict)  # an empty lexicon
    model = g2p_en.g2p.G2p()
    return {word: " ".join(model.predict(word.lower())) for word in words}
