"""python -m benchmarks.pronunciation DATA: the default model beside Phonetisaurus and g2p_en.

DATA holds train.tsv and dev.tsv. All predict the words of dev.tsv and are scored by the same code.
Phonetisaurus is trained on train.tsv, with stress and without; g2p_en comes trained on CMUdict.
"""

import asyncio
import hashlib
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import g2p_en.g2p
import matplotlib.pyplot as plt
import phonetisaurus
import typer

from benchmarks.accuracy import BATCH, decode
from benchmarks.report import machine, table
from model.data.pairs import Pair, read_pairs
from model.evaluate import Accuracy, accuracy, by_source, edit_distance, without_stress
from model.training.run import LOSSES
from service.settings import DEFAULT_BUNDLE, Precision, Provider, Settings

DOCS = Path(__file__).parents[1] / "docs"
CURVE = "pronunciation-loss.svg"
WORST = 50
HEAD = """# How well the default model pronounces

Written by `python -m benchmarks.pronunciation`; do not edit. {words:,} words held out from
training, though the recipe was chosen by them; the first hypothesis of each system. WER: words that
equal none of their pronunciations; PER: edits a phoneme, to the nearest of them; both without
stress, then with it. Stress: of the vowels that are right, those whose stress is right. The ratio
is WER over that of Phonetisaurus trained on the same pairs. Words/s: decoded in batches of
{batch:,}.

{machine}

"""
NOTES = """
g2p_en is its neural model alone, without its lexicon: it has most likely seen these words in
training, and it knows no apostrophe.

## Learning curve

![loss of training and of held-out words, by epoch]({curve})

## The {worst} worst

Of one hypothesis, greedy at int8: most edits first, stress aside, then by the alphabet.

"""


def served(words: list[str], precision: Precision, beam_size: int) -> tuple[dict[str, str], float]:
    settings = Settings(bundles=[DEFAULT_BUNDLE], provider=Provider.cpu, precision=precision)
    return asyncio.run(decode(settings, words, beam_size))


def phonetisaurus_predictions(pairs: list[Pair], words: list[str], peers: Path) -> dict[str, str]:
    """Trains a model where `peers` has none of these pairs yet."""
    model = peers / f"{hashlib.sha256(repr(pairs).encode()).hexdigest()[:12]}.fst"
    if not model.exists():
        lexicon = {
            word: [text.split() for text in dict.fromkeys(texts)]
            for word, texts in by_source(pairs).items()
        }
        phonetisaurus.train(lexicon, model)
    found = {word: " ".join(best) for word, best in phonetisaurus.predict(words, model)}
    return {word: found.get(word, "") for word in words}


def g2p_en_predictions(words: list[str]) -> dict[str, str]:
    g2p_en.g2p.cmudict = SimpleNamespace(dict=dict)  # the model alone is asked
    model = g2p_en.g2p.G2p()
    return {word: " ".join(model.predict(word.lower())) for word in words}


def row(name: str, found: Accuracy, peer: float) -> list[str]:
    rates = (found.plain.word, found.plain.phoneme, found.stressed.word, found.stressed.phoneme)
    numbers = [f"{each:.2f}" for each in rates]
    return [name, *numbers, f"{found.stress:.1f}", f"{found.plain.word / peer:.3f}"]


def worst(predictions: dict[str, str], references: list[Pair]) -> list[list[str]]:
    errors: list[tuple[int, str, str]] = []
    for word, texts in by_source(references).items():
        ours = without_stress(predictions[word]).split()
        edits = [(edit_distance(ours, without_stress(text).split()), text) for text in texts]
        errors.append((-min(edits)[0], word, min(edits)[1]))
    chosen = sorted(errors)[:WORST]
    return [[word, text, predictions[word], str(-edits)] for edits, word, text in chosen]


def draw(losses: Path) -> None:
    rows = [[float(x) for x in line.split("\t")] for line in losses.read_text().splitlines()]
    epochs, training, dev = zip(*rows, strict=True)
    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "heed"}  # the same bytes each time
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    left.plot(epochs, training, color="#777777")
    left.set_title("training", fontsize=10)
    right.plot(epochs, dev, color="#1f5fa8")
    right.set_title("held-out words", fontsize=10)
    for axes in (left, right):
        axes.set(xlabel="epoch", ylabel="nats a phoneme")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(DOCS / CURVE, metadata={"Date": None})


def main(
    data: Annotated[Path, typer.Argument(help="train.tsv and dev.tsv", exists=True)],
    run: Annotated[Path, typer.Option(help="the run of the bundle's model", exists=True)],
    peers: Annotated[Path, typer.Option(help="models of Phonetisaurus")] = Path("runs/peers"),
) -> None:
    """Write docs/pronunciation-accuracy.md and its picture."""
    pairs, references = read_pairs(data / "train.tsv"), read_pairs(data / "dev.tsv")
    words = list(by_source(references))
    plain = [(word, without_stress(text)) for word, text in pairs]
    stressed = accuracy(phonetisaurus_predictions(pairs, words, peers), references)
    unstressed = accuracy(phonetisaurus_predictions(plain, words, peers), references)
    neural = accuracy(g2p_en_predictions(words), references)
    peer = stressed.plain.word
    rows: list[list[str]] = []
    for precision in (Precision.int8, Precision.fp32):
        for beam_size in (1, 4):
            found, rate = served(words, precision, beam_size)
            name = f"Heed {precision}, " + (f"{beam_size} beams" if beam_size > 1 else "greedy")
            rows.append([*row(name, accuracy(found, references), peer), f"{rate:.0f}"])
            if (precision, beam_size) == (Precision.int8, 1):
                errors = worst(found, references)
    tool = f"Phonetisaurus {version('phonetisaurus')}"
    name, word, phoneme, *_, ratio = row(f"{tool}, trained without stress", unstressed, peer)
    rows += [
        [*row(tool, stressed, peer), ""],
        [name, word, phoneme, "", "", "", ratio, ""],
        [*row(f"g2p_en {version('g2p-en')}", neural, peer), ""],
    ]
    draw(run / LOSSES)
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    columns = ["system", "WER %", "PER %", "WER, stress", "PER, stress", "stress %", "ratio"]
    text = HEAD.format(words=len(words), batch=BATCH, machine=facts) + table(
        [*columns, "words/s"], rows
    )
    text += NOTES.format(curve=CURVE, worst=WORST)
    text += table(["word", "reference", "answer", "edits"], errors)
    (DOCS / "pronunciation-accuracy.md").write_text(text)


if __name__ == "__main__":
    typer.run(main)
