"""Quality and lag of a source that grows word by word: python -m benchmarks.simultaneous BUNDLE TSV

For each number of held tokens, every source of the file is decoded after each of its words, as
docs/simultaneous.md describes. Lag is average lagging (Ma et al., "STACL", 2019): by how many words
of the source the target is behind a speaker who writes it at the pace of the source.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from benchmarks.kit.serving import serving
from model.data.pairs import Pair, read_pairs
from service.client import DecodeOptions, Heed, ModelOptions

HOLDS = (1, 2, 4, 8, 16)


class Spoken(NamedTuple):
    """A target, and how many words of the source had been read when each of its words was
    committed."""

    text: str
    read: list[int]


def main(
    bundle: Annotated[Path, typer.Argument(help="A bundle that names its alignment", exists=True)],
    pairs: Annotated[Path, typer.Argument(help="Pairs that it was not trained on", exists=True)],
    target_language: Annotated[str, typer.Option(help="If the model has several")] = "",
    count: Annotated[int, typer.Option(help="How many of the pairs to use")] = 200,
) -> None:
    """Print a table of quality and lag."""
    language: ModelOptions = {"target_language": target_language} if target_language else {}
    chosen = read_pairs(pairs)[:count]
    with serving(bundle) as port, Heed(f"http://127.0.0.1:{port}") as heed:
        whole = [each.text for each in heed.decode([source for source, _ in chosen], **language)]
        words = sum(len(source.split()) for source, _ in chosen) / len(chosen)
        typer.echo("| held tokens | targets right | as of the whole source | average lagging |")
        typer.echo("|---|---|---|---|")
        for hold in HOLDS:
            spoken = [speak(heed, source, hold, language) for source, _ in chosen]
            print_line(
                str(hold), [each.text for each in spoken], whole, chosen, lag(spoken, chosen)
            )
        print_line("whole source", whole, whole, chosen, words)


def speak(heed: Heed, source: str, hold: int, language: ModelOptions) -> Spoken:
    """Return the target of a source of which one word after another is read."""
    committed, read = "", list[int]()
    prefix: Sequence[int] = []
    parts = [*growing(source)]
    for count, part in enumerate(parts[:-1], 1):
        options: DecodeOptions = {"source_final": False, "hold": hold, "target_prefix": prefix}
        (result,) = heed.decode(part, **options, **language)
        known = result.hypotheses[0].committed
        assert known is not None  # without source_final it would be
        committed, prefix = known["text"], known["token_ids"]
        read += [count] * (len(committed.split()) - len(read))
    text = heed.decode(source, target_prefix=prefix, **language)[0].text
    read += [len(parts)] * (len(text.split()) - len(read))
    return Spoken(text, read)


def growing(source: str) -> Iterator[str]:
    """Yield what has been read of a source after each of its words."""
    words = source.split()
    yield from (" ".join(words[:count]) for count in range(1, len(words) + 1))


def average_lagging(read: Sequence[int], words: int) -> float:
    """Return the average lagging of a target, in words, after a source of `words` words.

    `read` counts the source words that were read when each word of the target was committed.
    """
    pace = words / len(read)  # words of the source for each of the target
    last = next((i for i, count in enumerate(read, 1) if count >= words), len(read))
    return sum(count - i * pace for i, count in enumerate(read[:last])) / last


def lag(spoken: Sequence[Spoken], pairs: Sequence[Pair]) -> float:
    lags = [
        average_lagging(each.read, len(source.split()))
        for each, (source, _) in zip(spoken, pairs, strict=True)
    ]
    return sum(lags) / len(lags)


def print_line(
    name: str, texts: Sequence[str], whole: Sequence[str], pairs: Sequence[Pair], lagging: float
) -> None:
    right = share(text == target for text, (_, target) in zip(texts, pairs, strict=True))
    same = share(text == other for text, other in zip(texts, whole, strict=True))
    typer.echo(f"| {name} | {right:.1%} | {same:.1%} | {lagging:.2f} |")


def share(outcomes: Iterator[bool]) -> float:
    every = [*outcomes]
    return sum(every) / len(every)


if __name__ == "__main__":
    typer.run(main)
