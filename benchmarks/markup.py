"""Tags at the right word: python -m benchmarks.markup BUNDLE

The bundle is that of docs/tutorial.md's converted checkpoint. Its generator knows which words of a
translation each part of a line became, so where the tags around each part belong.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.kit.serving import serving
from examples.ledger.lines import CODES, Line, marked_lines
from service.client import Heed, Result

TAG = re.compile(r"</?\w+>")
WORD_OR_TAG = re.compile(rf"{TAG.pattern}|[\w'-]+")
OF_NO_PART = "de"  # between the parts of a Spanish date
UNSEEN = 2024  # seed
BATCH = 200  # lines a request, which may have 5,000 tags


def main(
    bundle: Annotated[Path, typer.Argument(help="A bundle that names its alignment", exists=True)],
    count: Annotated[int, typer.Option(help="How many lines to translate")] = 3000,
) -> None:
    """Print a table of the tags that stand at the right word."""
    marked = [line for line in islice(marked_lines(UNSEEN), count) if "&" not in line.english]
    with serving(bundle, max_sources=BATCH) as port, Heed(f"http://127.0.0.1:{port}") as heed:
        right, every = count_tags(heed, marked)
    typer.echo("| tags of the | right | in all |")
    typer.echo("|---|---|---|")
    for tag, found in every.items():
        typer.echo(f"| `{tag}` | {100 * right[tag] / found:.1f} % | {found} |")
    typer.echo(f"| all | {100 * right.total() / every.total():.1f} % | {every.total()} |")


def count_tags(heed: Heed, marked: list[Line]) -> tuple[Counter[str], Counter[str]]:
    """Return how often each tag is right, and how often it occurs, in the lines that the model
    translates rightly."""
    right, every = Counter[str](), Counter[str]()
    for language in CODES:
        lines = [line for line in marked if line.language == language]
        for line, result in translate(heed, lines, language):
            if TAG.sub("", result.text) != TAG.sub("", line.translation):
                continue
            found, known = dict(places(result.text)), dict(places(line.translation))
            every.update(known.keys())
            right.update(tag for tag, place in known.items() if found[tag] == place)
    return right, every


def translate(heed: Heed, lines: list[Line], language: str) -> Iterator[tuple[Line, Result]]:
    for start in range(0, len(lines), BATCH):
        some = lines[start : start + BATCH]
        sources = [line.english for line in some]
        results = heed.decode(sources, markup="xml", target_language=language)
        yield from zip(some, results, strict=True)


def places(text: str) -> Iterator[tuple[str, int]]:
    """Yield each tag with the number of words before it."""
    words = 0
    for found in WORD_OR_TAG.finditer(text):
        if TAG.fullmatch(found[0]):
            yield found[0], words
        elif found[0] != OF_NO_PART:
            words += 1


if __name__ == "__main__":
    typer.run(main)
