"""HTTP with a translation model of OPUS-MT's size: python -m benchmarks.load.sentences

Sources are English sentences, of which each word is a token. Weights are random and never end a
target, so each target has as many tokens as a sentence on average.
"""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.kit.document import describe_machine, machine_line
from benchmarks.kit.models import MARIAN, random_model, write_models
from benchmarks.kit.results import SERVERS
from benchmarks.load.load import (
    Asked,
    both_served,
    measure_alone,
    measure_saturation,
    measure_share,
)
from benchmarks.speed.report import load_table
from model.checkpoint import TrainedModel
from model.data.tokenizers import Unit, build_tokenizer
from model.export.files.manifest import Precision
from model.network.config import TransformerConfig

SHARES = (0.3, 0.8)
SENTENCES = Path(__file__).parents[2] / "tests" / "service" / "real" / "sentences.en.txt"


def with_words(config: TransformerConfig, texts: list[str]) -> TrainedModel:
    """Return a random model that has a token for each word of the texts, and for other words as
    many as its vocabulary holds."""
    count = len(build_tokenizer(texts, Unit.words).get_vocab())
    others = " ".join(f"word{i}" for i in range(config.source_vocab_size - count))
    tokenizer = build_tokenizer([*texts, others], Unit.words)
    return TrainedModel(random_model(config), tokenizer, tokenizer)


def main(
    seconds: Annotated[float, typer.Option(help="Duration of each load")] = 40.0,
    texts: Annotated[Path, typer.Option(help="Sentences, one a line", exists=True)] = SENTENCES,
) -> None:
    """Print latencies, and how many sentences a second each server can answer."""
    sentences = texts.read_text(encoding="utf-8").splitlines()
    words = sum(len(sentence.split()) for sentence in sentences)
    asked = Asked(sentences, round(words / len(sentences)))
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
