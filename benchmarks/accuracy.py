"""python -m benchmarks.accuracy PAIRS: error rates of a bundle as it is served, by precision."""

import asyncio
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from model.data.pairs import read_pairs
from model.evaluate import accuracy, by_source
from service.app import open_models
from service.engine.messages import Answer, Entry
from service.search.options import SearchOptions
from service.settings import DEFAULT_BUNDLE, Precision, Provider, Settings

BATCH = 1024  # sources that are sent together


async def decode(
    settings: Settings, sources: list[str], beam_size: int
) -> tuple[dict[str, str], float]:
    """-> text by source, sources a second"""
    (model,) = (await asyncio.to_thread(open_models, settings)).values()
    await model.engine.start()
    longest = model.engine.bundle.manifest.decoding.max_new_tokens
    options = SearchOptions(max_new_tokens=longest, beam_size=beam_size)

    async def answer(texts: list[str]) -> list[Answer]:
        ids = [model.source.encode(text, "/").ids for text in texts]
        entries = [Entry(source_ids=np.array(each), search=options) for each in ids]
        return await asyncio.gather(*model.engine.submit(entries))

    await answer(sources[:BATCH])  # what is done once is done
    started = time.perf_counter()
    answers: list[Answer] = []
    for first in range(0, len(sources), BATCH):
        answers += await answer(sources[first : first + BATCH])
    texts = [model.target.decode(each.hypotheses[0].token_ids).text for each in answers]
    rate = len(sources) / (time.perf_counter() - started)
    await model.engine.close()
    return dict(zip(sources, texts, strict=True)), rate


def main(
    pairs: Annotated[Path, typer.Argument(help="source<TAB>target lines", exists=True)],
    bundle: Annotated[Path, typer.Option(help="what to measure", exists=True)] = DEFAULT_BUNDLE,
) -> None:
    """Print word and phoneme error rates at fp32 and int8, greedy and with four beams."""
    references = read_pairs(pairs)
    for precision in (Precision.fp32, Precision.int8):
        settings = Settings(bundles=[bundle], provider=Provider.cpu, precision=precision)
        for beam_size in (1, 4):
            texts, rate = asyncio.run(decode(settings, list(by_source(references)), beam_size))
            typer.echo(
                f"{precision}, beam_size {beam_size}: {accuracy(texts, references)};"
                f" {rate:.0f} sources/s"
            )


if __name__ == "__main__":
    typer.run(main)
