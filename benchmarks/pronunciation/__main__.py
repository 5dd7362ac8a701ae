"""Compare the default model with Phonetisaurus and g2p_en: python -m benchmarks.pronunciation DATA

All systems predict the words of dev.tsv, and the same code scores them. Phonetisaurus is trained on
train.tsv, with stress and without; g2p_en comes trained on CMUdict. Needs the extra `peers`.
"""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.pronunciation.accuracy import decode_as_served
from benchmarks.pronunciation.peers import (
    G2P_EN,
    PHONETISAURUS,
    g2p_en_predictions,
    phonetisaurus_predictions,
)
from benchmarks.pronunciation.report import Line, render, worst_words
from benchmarks.speed.report import DOCS
from model.data.pairs import Pair, read_pairs
from model.evaluate import accuracy, by_source, without_stress
from service.settings.settings import DEFAULT_BUNDLE, Precision, Provider, Settings

SETTINGS = {
    "int8, greedy": (Precision.int8, 1),
    "int8, 4 beams": (Precision.int8, 4),
    "fp32, greedy": (Precision.fp32, 1),
    "fp32, 4 beams": (Precision.fp32, 4),
}


def main(
    data: Annotated[Path, typer.Argument(help="Folder of train.tsv and dev.tsv", exists=True)],
    peers: Annotated[Path, typer.Option(help="Folder for trained models of Phonetisaurus")] = Path(
        "runs/peers"
    ),
) -> None:
    """Write docs/pronunciation-accuracy.md."""
    pairs, references = read_pairs(data / "train.tsv"), read_pairs(data / "dev.tsv")
    ours, worst = ask_heed(references)
    theirs = ask_peers(pairs, references, peers)
    peer = theirs[0].found.plain.word
    text = render([*ours, *theirs], peer, worst)
    (DOCS / "pronunciation-accuracy.md").write_text(text, encoding="utf-8")


def ask_heed(references: list[Pair]) -> tuple[list[Line], list[list[str]]]:
    """Return the lines of the default model, and the worst words of the first line."""
    lines: list[Line] = []
    predictions: list[dict[str, str]] = []
    for name, (precision, beam_size) in SETTINGS.items():
        settings = Settings(bundles=[DEFAULT_BUNDLE], provider=Provider.cpu, precision=precision)
        found, rate = asyncio.run(
            decode_as_served(settings, list(by_source(references)), beam_size)
        )
        lines.append(Line(f"Heed {name}", accuracy(found, references), rate))
        predictions.append(found)
    return lines, worst_words(predictions[0], references)


def ask_peers(pairs: list[Pair], references: list[Pair], models: Path) -> list[Line]:
    """Return the lines of the peers, Phonetisaurus first."""
    words = list(by_source(references))
    plain = [(word, without_stress(text)) for word, text in pairs]
    stressed = accuracy(phonetisaurus_predictions(pairs, words, models), references)
    unstressed = accuracy(phonetisaurus_predictions(plain, words, models), references)
    neural = accuracy(g2p_en_predictions(words), references)
    return [
        Line(PHONETISAURUS, stressed),
        Line(f"{PHONETISAURUS}, trained without stress", unstressed, has_stress=False),
        Line(G2P_EN, neural),
    ]


if __name__ == "__main__":
    typer.run(main)
