"""What required phrases cost: python -m benchmarks.phrases BUNDLE TEXTS

Every text is decoded with beams, plain and with two words that the target must contain. The words
come from its plain target and from those of a wider search, so that they fit the text: both may be
in the plain target, or one, or neither. Plain and required searches take turns. What they cost is
the CPU time of the process, in which requests are read, decoded and answered.
"""

import asyncio
import json
import random
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks.kit.document import table
from benchmarks.kit.process import Stopwatch
from service.command.local import LocalEngine, LocalModel, local_service
from service.settings.settings import Provider, Settings

BEAMS, WIDE = 4, 8
PHRASES = 2
WORD = re.compile(r"\w{2,}")
Body = Mapping[str, Any]


class Cost(NamedTuple):
    """CPU seconds, and the steps of all rows together."""

    seconds: float
    row_steps: float


def main(
    bundle: Annotated[Path, typer.Argument(help="The model's bundle", exists=True)],
    texts: Annotated[Path, typer.Argument(help="File of sources, one a line", exists=True)],
    target_language: Annotated[str, typer.Option(help="If the model has several")] = "",
    count: Annotated[int, typer.Option(help="How many of the texts to use")] = 100,
    together: Annotated[int, typer.Option(help="Requests at a time")] = 8,
    rounds: Annotated[int, typer.Option(help="Turns of each search")] = 5,
) -> None:
    """Print the cost of searches with two phrases, as multiples of plain ones."""
    options: Body = {"beam_size": BEAMS}
    if target_language:
        options = {**options, "target_language": target_language}
    sources = texts.read_text(encoding="utf-8").splitlines()[:count]
    rows = asyncio.run(measure(bundle, sources, options, together, rounds))
    typer.echo(
        table(
            ["words that the plain target has", "texts", "CPU", "row steps", "CPU a row step"], rows
        )
    )


async def measure(
    bundle: Path, sources: Sequence[str], options: Body, together: int, rounds: int
) -> list[list[str]]:
    settings = Settings(bundles=[bundle], provider=Provider.cpu, self_check=False, threads=1)
    async with local_service(settings) as service:
        (served,) = service.registry.served.values()
        measured = Measured(LocalModel(service), served.engine, together)
        chosen = await measured.choose(sources, options)
        return [
            [str(held), str(len(pairs)), *(await measured.compare(pairs, rounds))]
            for held, pairs in chosen.items()
            if pairs
        ]


class Measured:
    """A model in this process, and what it takes to answer requests."""

    def __init__(self, model: LocalModel, engine: LocalEngine, together: int) -> None:
        self._model, self._engine, self._together = model, engine, together

    async def choose(self, sources, options):
        chance = random.Random(1)
        chosen = {held: [] for held in range(PHRASES, -1, -1)}
        wide = {"beam_size": WIDE, "num_hypotheses": WIDE}
        for source in sources:
            body = {**options, "source": source}
            ((plain,), others) = [await self.targets(b) for b in (body, {**body, **wide})]
            for held, words in choose(plain, others, chance):
                chosen[held].append((body, {**body, "required": words}))
        return chosen

    async def targets(self, body):
        answer = json.loads(await self._model.ask("/v1/decode", body))
        return [h["text"] for h in answer["results"][0]["hypotheses"]]

    async def compare(self, pairs, rounds):
        plain, required = zip(*pairs, strict=True)
        costs = [
            [await self.cost(bodies) for bodies in (plain, required)] for _ in range(rounds + 1)
        ][1:]
        whole = [b.seconds / a.seconds for a, b in costs]
        steps = [b.row_steps / a.row_steps for a, b in costs]
        return [spread(whole), spread(steps), spread([w / s for w, s in zip(whole, steps)])]

    async def cost(self, bodies) -> Cost:
        before = self.row_steps()
        with Stopwatch() as watch:
            for start in range(0, len(bodies), self._together):
                await asyncio.gather(
                    *(
                        self._model.ask("/v1/decode", b)
                        for b in bodies[start : start + self._together]
                    )
                )
        return Cost(watch.cpu_seconds, self.row_steps() - before)

    def row_steps(self) -> float:
        return self._engine.local.status.steps.rows.sum


def choose(plain, others, chance):
    held = sorted({*WORD.findall(plain)})
    if len(held) >= 2:
        yield 2, chance.sample(held, 2)
    news = [sorted({*WORD.findall(o)} - {*held}) for o in others]
    news = [n for n in news if n]
    if held and news:
        yield 1, [chance.choice(held), chance.choice(news[0])]
    two = [n for n in news if len(n) > 1]
    if two:
        yield 0, chance.sample(two[0], 2)


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    typer.run(main)
