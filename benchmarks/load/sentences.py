"""HTTP with a translation model of OPUS-MT's size: python -m benchmarks.load.sentences

Sources are English sentences, of which each word is a token. Weights are random and never end a
target, so each target has as many tokens as a sentence on average.
"""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.kit.document import describe_machine, machine_line
from benchmarks.kit.models import MARIAN, SENTENCES, mean_words, with_words, write_models
from benchmarks.kit.results import SERVERS
from benchmarks.load.load import (
    Asked,
    both_served,
    measure_alone,
    measure_saturation,
    measure_share,
)
from benchmarks.speed.report import load_table
from model.export.files.manifest import Precision

SHARES = (0.3, 0.8)


def main(
    seconds: Annotated[float, typer.Option(help="Duration of each load")] = 40.0,
    texts: Annotated[Path, typer.Option(help="Sentences, one a line", exists=True)] = SENTENCES,
) -> None:
    """Print latencies, and how many sentences a second each server can answer."""
    sentences = texts.read_text(encoding="utf-8-sig").splitlines()
    asked = Asked(sentences, mean_words(sentences))
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        write_models(with_words(MARIAN.config, sentences), folder, Precision.int8)
        with both_served(folder) as ports:
            saturation = measure_saturation(ports, seconds, asked)
            slower = min(saturation.values())
            rows = [measure_share(ports, seconds, share, slower, asked) for share in SHARES]
            alone = measure_alone(ports, seconds, asked)
    typer.echo(f"{machine_line(describe_machine())}\n\n{load_table(rows)}")
    for what, found in (("sentences a second at most", saturation), ("ms, one connection", alone)):
        typer.echo(f"{what}: " + ", ".join(f"{name} {found[name]:.1f}" for name in SERVERS))


if __name__ == "__main__":
    typer.run(main)
