"""How far the words of a model can be trusted: python -m benchmarks.confidence BUNDLE TEXTS GOLD

A target must have as many words as its source: the i-th word of one is of the i-th word of the
other. It is right if GOLD has this pair. Words that GOLD lacks are left out, as are case and
punctuation.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.kit.calibration import Judged, describe, judge
from benchmarks.kit.serving import serving
from model.data.pairs import read_pairs
from model.evaluate import by_source
from service.client import Heed, Result

BATCH = 32  # texts a request
MARKS = '.,:;!?()«»"…—'


def main(
    bundle: Annotated[Path, typer.Argument(help="The model's bundle", exists=True)],
    texts: Annotated[Path, typer.Argument(help="File of sources, one a line", exists=True)],
    gold: Annotated[Path, typer.Argument(help="File of word<TAB>right target lines", exists=True)],
) -> None:
    """Print how well each number tells right words from wrong ones, and how true probabilities
    are."""
    known = by_source(read_pairs(gold))
    sources = texts.read_text(encoding="utf-8-sig").splitlines()
    judged: list[Judged] = []
    unpaired = 0
    with serving(bundle) as port, Heed(f"http://127.0.0.1:{port}") as heed:
        for start in range(0, len(sources), BATCH):
            batch = sources[start : start + BATCH]
            for source, result in zip(
                batch, heed.decode(batch, words=True, source_share=True), strict=True
            ):
                if len(source.split()) == len(result.hypotheses[0].words or []):
                    judged += judge_words(source, result, known)
                else:
                    unpaired += 1
    typer.echo(f"{len(sources)} texts, {unpaired} of them with another number of words\n")
    typer.echo(describe(f"{len(judged)} words", judged))


def judge_words(source: str, result: Result, known: Mapping[str, list[str]]) -> Iterator[Judged]:
    """Yield the words of a target whose right form is known."""
    for word, target in zip(source.split(), result.hypotheses[0].words or [], strict=True):
        if right := known.get(bare(word)):
            yield judge(target, bare(target["text"]) in right)


def bare(word: str) -> str:
    return word.strip(MARKS).lower()


if __name__ == "__main__":
    typer.run(main)
