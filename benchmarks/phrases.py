"""What required phrases cost: python -m benchmarks.phrases BUNDLE TEXTS

Every text is decoded by plain beam search, and with two words that its target must contain. The
words come from its plain target and from the targets of a wider search, so that they fit the text.
The two searches take turns, and the CPU seconds of the whole process count: of reading a request,
decoding and answering it. The model remembers the phrases from the round that does not count.
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
WORD = re.compile(r"\w{2,}")
COLUMNS = ["words of the plain target", "texts", "CPU", "steps", "CPU a step"]
Body = Mapping[str, Any]


class Chosen(NamedTuple):
    """A plain request and one with phrases, of which `held` are in the plain target."""

    held: int
    plain: Body
    required: Body


class Cost(NamedTuple):
    """CPU seconds, and the steps of all rows together."""

    seconds: float
    steps: float


class Measured:
    """A model in this process, which answers some requests at a time."""

    def __init__(self, model: LocalModel, engine: LocalEngine, together: int) -> None:
        self._model, self._engine, self._together = model, engine, together

    async def choose(self, sources: Sequence[str], options: Body) -> list[Chosen]:
        chance, chosen = random.Random(1), list[Chosen]()
        for source in sources:
            body = {"source": source, "beam_size": BEAMS, **options}
            (plain,) = await self._targets(body)
            others = await self._targets({**body, "beam_size": WIDE, "num_hypotheses": WIDE})
            for held, words in choose_words(plain, others, chance):
                chosen.append(Chosen(held, body, {**body, "required": words}))
        return chosen

    async def _targets(self, body: Body) -> list[str]:
        (result,) = json.loads(await self._model.ask("/v1/decode", body))["results"]
        return [hypothesis["text"] for hypothesis in result["hypotheses"]]

    async def compare(self, chosen: Sequence[Chosen], rounds: int) -> list[str]:
        """Return what the phrases cost in each round as multiples of the plain searches, after a
        round that does not count."""
        found = [await self._ratio(chosen) for _ in range(rounds + 1)][1:]
        return [
            spread([each.seconds for each in found]),
            spread([each.steps for each in found]),
            spread([each.seconds / each.steps for each in found]),
        ]

    async def _ratio(self, chosen: Sequence[Chosen]) -> Cost:
        """Return the costs with phrases as multiples of those without, in turns of a few requests,
        so that a slow moment of the machine hits both."""
        costs: list[tuple[Cost, Cost]] = []
        for start in range(0, len(chosen), self._together):
            some = chosen[start : start + self._together]
            plain = await self._cost([each.plain for each in some])
            costs.append((plain, await self._cost([each.required for each in some])))
        return Cost(
            sum(after.seconds for _, after in costs) / sum(before.seconds for before, _ in costs),
            sum(after.steps for _, after in costs) / sum(before.steps for before, _ in costs),
        )

    async def _cost(self, bodies: Sequence[Body]) -> Cost:
        before = self._steps()
        with Stopwatch() as watch:
            await asyncio.gather(*(self._model.ask("/v1/decode", body) for body in bodies))
        return Cost(watch.cpu_seconds, self._steps() - before)

    def _steps(self) -> float:
        assert self._engine.local  # it is open
        return self._engine.local.status.steps.rows.sum


def choose_words(
    plain: str, others: Sequence[str], chance: random.Random
) -> Iterator[tuple[int, list[str]]]:
    """Yield pairs of words for a text: both from its plain target, one of them, and none. What is
    not in that target is in one of the others."""
    held = sorted({*WORD.findall(plain)})
    new = [sorted({*WORD.findall(other)}.difference(held)) for other in others]
    if len(held) > 1:
        yield 2, chance.sample(held, 2)
    if held and (some := next(filter(None, new), None)):
        yield 1, [chance.choice(held), chance.choice(some)]
    if two := next((words for words in new if len(words) > 1), None):
        yield 0, chance.sample(two, 2)


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


async def measure(
    bundle: Path, sources: Sequence[str], options: Body, together: int, rounds: int
) -> list[list[str]]:
    """Return a row of the table for each number of words that the plain targets have."""
    settings = Settings(bundles=[bundle], provider=Provider.cpu, self_check=False, threads=1)
    async with local_service(settings) as service:
        (served,) = service.registry.served.values()
        assert isinstance(served.engine, LocalEngine)
        measured = Measured(LocalModel(service), served.engine, together)
        chosen = await measured.choose(sources, options)
        rows: list[list[str]] = []
        for held in sorted({each.held for each in chosen}, reverse=True):
            some = [each for each in chosen if each.held == held]
            rows.append([f"{held} of 2", str(len(some)), *await measured.compare(some, rounds)])
        return rows


def main(
    bundle: Annotated[Path, typer.Argument(help="The model's bundle", exists=True)],
    texts: Annotated[Path, typer.Argument(help="File of sources, one a line", exists=True)],
    target_language: Annotated[str, typer.Option(help="If the model has several")] = "",
    count: Annotated[int, typer.Option(help="How many of the texts to use")] = 100,
    together: Annotated[int, typer.Option(help="Requests at a time")] = 8,
    rounds: Annotated[int, typer.Option(help="Turns of each search")] = 5,
) -> None:
    """Print what 4 beams with two phrases cost, as multiples of 4 beams without, with the medians
    of all rounds and the extremes."""
    options = {"target_language": target_language} if target_language else {}
    sources = texts.read_text(encoding="utf-8-sig").splitlines()[:count]
    typer.echo(table(COLUMNS, asyncio.run(measure(bundle, sources, options, together, rounds))))


if __name__ == "__main__":
    typer.run(main)
