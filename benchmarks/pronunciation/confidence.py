"""How often the default model is right where it says that it is sure:
python -m benchmarks.pronunciation.confidence PAIRS

Prints the tables of docs/confidence.md, and draws docs/confidence.svg. A pronunciation is right if
it is one of those in PAIRS, with stress; a sound, if it is in the best match with one of these.
"""

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.kit.calibration import Judged, describe, judge, reliability
from benchmarks.kit.serving import serving
from benchmarks.speed.report import DOCS
from model.data.pairs import read_pairs
from model.evaluate import by_source
from service.client import Heed
from service.formats.picture import Colour, Dot, Label, Line, Picture
from service.formats.svg import to_svg
from service.settings.settings import DEFAULT_BUNDLE

BATCH = 64  # words a request
BEAMS = 1, 4
SIDE, MARGIN = 260.0, 70.0
GREY, BLUE = (190, 190, 190), (31, 91, 160)


def main(
    pairs: Annotated[Path, typer.Argument(help="File of source<TAB>target lines", exists=True)],
) -> None:
    """Print how well each number tells right from wrong, and draw how true probabilities are."""
    references = by_source(read_pairs(pairs))
    with serving(DEFAULT_BUNDLE) as port, Heed(f"http://127.0.0.1:{port}") as heed:
        for beams in BEAMS:
            words, sounds = judge_all(heed, references, beams)
            typer.echo(f"{beams} beams, {len(words)} words, {len(sounds)} sounds\n")
            for name, judged in (("whole pronunciations", words), ("sounds", sounds)):
                typer.echo(describe(name, judged))
            if beams == 1:
                (DOCS / "confidence.svg").write_bytes(draw(words, sounds))


def judge_all(
    heed: Heed, references: Mapping[str, list[str]], beams: int
) -> tuple[list[Judged], list[Judged]]:
    """Return all pronunciations that the model finds, and all their sounds."""
    words: list[Judged] = []
    sounds: list[Judged] = []
    sources = [*references]
    for start in range(0, len(sources), BATCH):
        batch = sources[start : start + BATCH]
        results = heed.decode(
            batch,
            beam_size=beams,
            num_hypotheses=min(2, beams),
            words=True,
            source_share=True,
        )
        for source, result in zip(batch, results, strict=True):
            best, *others = result.hypotheses
            own = best.words or []
            measures = {
                "probability": float(np.exp(sum(best.log_probs))),
                "mean log-prob": float(np.mean(best.log_probs)),
                "least log-prob of a token": min(best.log_probs),
                "mean entropy (negative)": -mean_of(own, "entropy"),
                "largest entropy of a sound (negative)": -max(
                    (word["entropy"] for word in own), default=0.0
                ),
                "least source share of a sound": min(
                    (word["source_share"] for word in own), default=1.0
                ),
            }
            if others:
                measures["score minus that of the second"] = best.score - others[0].score
            words.append(Judged(measures, result.text in references[source]))
            matched = matches(result.text, references[source])
            sounds += [judge(word, ok) for word, ok in zip(own, matched, strict=True)]
    return words, sounds


def mean_of(words: Sequence[Mapping[str, float]], number: str) -> float:
    return sum(word[number] for word in words) / max(1, len(words))


def matches(text: str, references: Sequence[str]) -> list[bool]:
    """Return whether each sound is in the best match with a reference."""
    said = text.split()

    def match(reference: str) -> list[bool]:
        right = [False] * len(said)
        blocks = SequenceMatcher(None, reference.split(), said, autojunk=False)
        for _, first, size in blocks.get_matching_blocks():
            right[first : first + size] = [True] * size
        return right

    return max(map(match, references), key=sum)


def draw(words: Sequence[Judged], sounds: Sequence[Judged]) -> bytes:
    """Return reliability diagrams of both as SVG: points on the grey line keep their promise."""
    picture = Picture(MARGIN + 2 * (SIDE + MARGIN), SIDE + 2 * MARGIN, "reliability diagrams")
    for i, (name, judged) in enumerate((("whole pronunciations", words), ("sounds", sounds))):
        left = MARGIN + i * (SIDE + MARGIN)
        add_plot(picture, left, name, [*reliability(judged, "probability")])
    return to_svg(picture)


def add_plot(
    picture: Picture, left: float, name: str, points: Sequence[tuple[float, float]]
) -> None:
    bottom, right = MARGIN + SIDE, left + SIDE

    def place(x: float, y: float) -> tuple[float, float]:
        return left + x * SIDE, bottom - y * SIDE

    corners = [(left, MARGIN), (right, MARGIN), (right, bottom), (left, bottom), (left, MARGIN)]
    frame: Colour = GREY
    picture.shapes += [
        Line(corners, frame),
        Line([place(0, 0), place(1, 1)], GREY, dashed=True),
        Line([place(*point) for point in points], BLUE),
        *(Dot(*place(*point), BLUE) for point in points),
        Label(left + SIDE / 2, MARGIN - 16, name),
        Label(left + SIDE / 2, bottom + 34, "mean probability"),
        Label(left - 34, MARGIN + SIDE / 2, "share that is right", upwards=True),
    ]
    for value in (0.0, 0.5, 1.0):
        picture.shapes += [
            Label(place(value, 0)[0], bottom + 14, f"{value:g}"),
            Label(left - 8, place(0, value)[1], f"{value:g}", "end"),
        ]


if __name__ == "__main__":
    typer.run(main)
