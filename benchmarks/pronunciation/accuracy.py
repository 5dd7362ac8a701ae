"""Print a served bundle's error rates: python -m benchmarks.pronunciation.accuracy PAIRS"""

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from model.data.pairs import Pair, read_pairs
from model.evaluate import accuracy, by_source
from service.bundle.languages import Slot, fill, slots_of
from service.search.options import SearchOptions
from service.serving.model import Model
from service.serving.registry import Registry
from service.serving.supervisor import Supervisor
from service.settings.settings import DEFAULT_BUNDLE, Precision, Provider, Settings
from service.wire import Answer, Entry

BATCH = 1024  # sources per call
TYPED = re.compile(r">>(\w+)<< ?(.*)", re.DOTALL)  # a source in the files of OPUS-MT
PRECISIONS = (Precision.fp32, Precision.int8)
BEAM_SIZES = (1, 4)


def source_ids_of(model: Model, text: str) -> list[int]:
    """Tokenize a source. A language token before it counts as the language of a request.

    Raise BadParameter if the model does not know the language.
    """
    manifest = model.manifest
    typed = TYPED.fullmatch(text)
    if not (typed and manifest.languages.target):
        return model.source.encode(text, "/").ids
    code, rest = typed.groups()
    if code not in manifest.languages.target:
        known = ", ".join(manifest.languages.target)
        raise typer.BadParameter(f"{text!r} begins with an unknown language: give one of {known}")
    languages: dict[Slot, list[int]] = {"target_language": manifest.languages.target[code]}
    templates = (manifest.source_prefix, manifest.source_suffix)
    return (
        model.source.between(*(fill(each, languages) for each in templates)).encode(rest, "/").ids
    )


async def decode_as_served(
    settings: Settings, sources: list[str], beam_size: int
) -> tuple[dict[str, str], float]:
    """Return the best target text by source, and the sources decoded per second.

    All options but the beam size are the model's own.
    """
    registry = Registry(settings, Supervisor, on_change=lambda: None)
    await registry.open()
    (model,) = registry.served.values()
    if slots_of(model.manifest.decoder_start):
        raise typer.BadParameter("the model needs a target language, which this command lacks")
    own: dict[str, Any] = model.manifest.decoding.model_dump()
    suppressed = model.manifest.decoding.suppressed
    own |= {"beam_size": beam_size, "suppress_tokens": tuple(suppressed.ids)}
    own |= {"suppress_sequences": suppressed.sequences}
    options = SearchOptions(**own)

    async def answer(texts: list[str]) -> list[Answer]:
        ids = [source_ids_of(model, text) for text in texts]
        entries = [Entry(source_ids=np.array(each), search=options) for each in ids]
        return await asyncio.gather(*model.engine.submit(entries))

    await answer(sources[:BATCH])  # the first batch allocates memory: it is not timed
    started = time.perf_counter()
    answers: list[Answer] = []
    for first in range(0, len(sources), BATCH):
        answers += await answer(sources[first : first + BATCH])
    texts = [model.target.decode(each.hypotheses[0].token_ids).text for each in answers]
    rate = len(sources) / (time.perf_counter() - started)
    await registry.close()
    return dict(zip(sources, texts, strict=True)), rate


def served_error_rates(
    references: list[Pair], bundle: Path, precisions: Sequence[Precision], beam_sizes: Sequence[int]
) -> Iterator[str]:
    """Yield a line for each precision and beam size, as soon as it is measured."""
    for precision in precisions:
        settings = Settings(bundles=[bundle], provider=Provider.cpu, precision=precision)
        for beam_size in beam_sizes:
            texts, rate = asyncio.run(
                decode_as_served(settings, list(by_source(references)), beam_size)
            )
            found = accuracy(texts, references)
            yield f"{precision}, beam_size {beam_size}: {found}; {rate:.0f} sources/s"


def main(
    pairs: Annotated[Path, typer.Argument(help="File of source<TAB>target lines", exists=True)],
    bundle: Annotated[Path, typer.Option(help="Bundle to measure", exists=True)] = DEFAULT_BUNDLE,
) -> None:
    """Print word and phoneme error rates at fp32 and int8, greedy and with four beams."""
    for line in served_error_rates(read_pairs(pairs), bundle, PRECISIONS, BEAM_SIZES):
        typer.echo(line)


if __name__ == "__main__":
    typer.run(main)
