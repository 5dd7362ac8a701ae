"""python -m benchmarks.accuracy PAIRS: error rates of a bundle as it is served, by precision."""

import asyncio
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from model.data import read_pairs
from model.evaluate import error_rates
from service.app import open_models
from service.constraints import SearchOptions
from service.entry import Entry
from service.settings import DEFAULT_BUNDLE, Precision, Provider, Settings

BATCH = 256  # sources that are sent together


async def decode(settings: Settings, sources: list[str], beam_size: int) -> tuple[list[str], float]:
    """-> texts, sources a second"""
    (model,) = (await asyncio.to_thread(open_models, settings)).values()
    await model.engine.start()
    longest = model.engine.bundle.manifest.decoding.max_new_tokens
    options = SearchOptions(max_new_tokens=longest, beam_size=beam_size)
    texts: list[str] = []
    started = time.perf_counter()
    for first in range(0, len(sources), BATCH):
        ids = [model.source.encode(source, "/").ids for source in sources[first : first + BATCH]]
        entries = [Entry(source_ids=np.array(each), search=options) for each in ids]
        answers = await asyncio.gather(*model.engine.submit(entries))
        texts += [model.target.decode(each.hypotheses[0].token_ids).text for each in answers]
    rate = len(sources) / (time.perf_counter() - started)
    await model.engine.close()
    return texts, rate


def main(
    pairs: Annotated[Path, typer.Argument(help="source<TAB>target lines", exists=True)],
    bundle: Annotated[Path, typer.Option(help="what to measure", exists=True)] = DEFAULT_BUNDLE,
    beam_size: int = 1,
) -> None:
    """Print word and phoneme error rates, stress stripped, at fp32 and int8."""
    references = read_pairs(pairs)
    sources = list(dict.fromkeys(source for source, _ in references))
    for precision in (Precision.fp32, Precision.int8):
        settings = Settings(bundles=[bundle], provider=Provider.cpu, precision=precision)
        texts, rate = asyncio.run(decode(settings, sources, beam_size))
        rates = error_rates(dict(zip(sources, texts, strict=True)), references, stress=False)
        typer.echo(
            f"{precision}: WER {rates.word:.2f} %, PER {rates.phoneme:.2f} %, {rate:.0f} sources/s"
        )


if __name__ == "__main__":
    typer.run(main)
