"""Write docs/pronunciation-accuracy.md from the predictions of each system."""

from typing import NamedTuple

from benchmarks.kit.document import describe_machine, machine_line, table
from benchmarks.pronunciation.accuracy import BATCH
from model.data.pairs import Pair
from model.evaluate import Accuracy, by_source, edit_distance, without_stress

WORST = 50
COLUMNS = ["system", "WER %", "PER %", "WER, stress", "PER, stress", "stress %", "ratio", "words/s"]
HEAD = """# How well the default model pronounces

After this page you can compare the accuracy of the default model with that of its peers.

`python -m benchmarks.pronunciation` writes this page; do not edit it. It counts the first
hypothesis of each system for {words:,} words held out from training. The training recipe was chosen
by these words, too.

- WER: percentage of words that equal none of their reference pronunciations.
- PER: edits per 100 phonemes, to the nearest reference.
- The first WER and PER ignore stress; the columns with "stress" count it.
- stress %: percentage of correct vowels whose stress is correct, too.
- ratio: WER divided by that of Phonetisaurus, which was trained on the same pairs.
- words/s: decoded in batches of {batch:,}.

{machine}

"""
NOTES = """
g2p_en runs its neural model without its lexicon. The model has most likely seen these words in
training, and does not know the apostrophe.

## The {worst} worst words

Heed int8, greedy. Most edits first, then alphabetical; stress is ignored.

"""


class Line(NamedTuple):
    """A row of the table: one system. `rate` is in words per second, None if not measured."""

    system: str
    found: Accuracy
    rate: float | None = None
    has_stress: bool = True


def render(lines: list[Line], peer: float, worst: list[list[str]]) -> str:
    """Return the document. `peer` is the WER that the ratios divide by."""
    head = HEAD.format(
        words=lines[0].found.plain.words, batch=BATCH, machine=machine_line(describe_machine())
    )
    systems = table(COLUMNS, [cells_of(line, peer) for line in lines])
    notes = NOTES.format(worst=WORST)
    return head + systems + notes + table(["word", "reference", "answer", "edits"], worst)


def cells_of(line: Line, peer: float) -> list[str]:
    plain, stressed = line.found.plain, line.found.stressed
    with_stress = [f"{stressed.word:.2f}", f"{stressed.phoneme:.2f}", f"{line.found.stress:.1f}"]
    return [
        line.system,
        f"{plain.word:.2f}",
        f"{plain.phoneme:.2f}",
        *(with_stress if line.has_stress else [""] * 3),
        f"{plain.word / peer:.3f}",
        "" if line.rate is None else f"{line.rate:.0f}",
    ]


def worst_words(predictions: dict[str, str], references: list[Pair]) -> list[list[str]]:
    """Return a row for each of the words with the most edits to their nearest reference."""
    errors: list[tuple[int, str, str]] = []
    for word, texts in by_source(references).items():
        ours = without_stress(predictions[word]).split()
        edits = [(edit_distance(ours, without_stress(text).split()), text) for text in texts]
        errors.append((-min(edits)[0], word, min(edits)[1]))
    chosen = sorted(errors)[:WORST]
    return [[word, text, predictions[word], str(-edits)] for edits, word, text in chosen]
