"""What drafts save: python -m benchmarks.drafts BUNDLE TEXTS

Every text is decoded by greedy search, one request at a time: without a draft, with its source as a
draft, with its target in which some tokens are wrong, and with the targets of other texts. They
take turns, and the CPU seconds of the engine and the request count.
"""

import asyncio
import json
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.kit.document import table
from benchmarks.kit.process import Stopwatch
from service.command.local import LocalModel, local_service
from service.settings.settings import Precision, Provider, Settings

COLUMNS = ["draft", "texts", "the same tokens", "accepted of drafted", "times as fast"]
TURN = 10  # texts
Body = Mapping[str, Any]
Answer = dict[str, Any]  # a hypothesis


class Drafts:
    """The drafts of each text, by kind."""

    def __init__(self, plain: Sequence[Answer], size: int, wrong: float) -> None:
        chance, targets = random.Random(1), [each["token_ids"] for each in plain]

        def damaged(target: Sequence[int]) -> list[int]:
            return [chance.randrange(size) if chance.random() < wrong else i for i in target]

        others = [chance.choice(targets) for _ in targets]
        self.kinds: dict[str, list[Any]] = {
            "the source": ["source"] * len(targets),
            f"its target, {wrong:.0%} of the tokens wrong": [[damaged(each)] for each in targets],
            "random tokens": [[[chance.randrange(size) for _ in each]] for each in targets],
            "the target of another text": [[each] for each in others],
        }


async def decode(model: LocalModel, body: Body) -> Answer:
    (result,) = json.loads(await model.ask("/v1/decode", body))["results"]
    return result["hypotheses"][0]


async def run(model: LocalModel, bodies: Sequence[Body]) -> tuple[list[Answer], float]:
    """Return the answers, and the CPU seconds that they took."""
    with Stopwatch() as watch:
        answers = [await decode(model, body) for body in bodies]
    return answers, watch.cpu_seconds


async def compare(
    model: LocalModel, plain: Sequence[Body], drafts: Sequence[Any], rounds: int
) -> list[str]:
    """Return what drafts save, after a round that does not count."""
    drafted = [{**body, "draft": draft} for body, draft in zip(plain, drafts, strict=True)]
    ratios: list[float] = []
    same, counts = 0, [0, 0]
    for number in range(rounds + 1):
        spent = [0.0, 0.0]
        for start in range(0, len(plain), TURN):
            part = slice(start, start + TURN)
            expected, seconds = await run(model, plain[part])
            found, faster = await run(model, drafted[part])
            spent = [spent[0] + seconds, spent[1] + faster]
            if not number:
                pairs = zip(expected, found, strict=True)
                same += sum(one["token_ids"] == other["token_ids"] for one, other in pairs)
                counts[0] += sum(each["accepted"] for each in found)
                counts[1] += sum(each["drafted"] for each in found)
        if number:
            ratios.append(spent[0] / spent[1])
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return [str(len(plain)), str(same), f"{counts[0]:,} of {counts[1]:,}", spread]


async def measure(settings: Settings, bodies: Sequence[Body], wrong: float, rounds: int) -> str:
    async with local_service(settings) as service:
        (served,) = service.registry.served.values()
        model, size = LocalModel(service), served.bundle.manifest.config.target_vocab_size
        plain, _ = await run(model, bodies)
        kinds = Drafts(plain, size, wrong).kinds
        rows = [[kind, *await compare(model, bodies, kinds[kind], rounds)] for kind in kinds]
    return table(COLUMNS, rows)


def main(
    bundle: Annotated[Path, typer.Argument(help="The model's bundle", exists=True)],
    texts: Annotated[Path, typer.Argument(help="File of sources, one a line", exists=True)],
    precision: Annotated[Precision, typer.Option(help="Of the bundle")] = Precision.auto,
    new_tokens: Annotated[int, typer.Option(help="Most tokens; 0: the model's own limit")] = 0,
    count: Annotated[int, typer.Option(help="How many of the texts to use")] = 340,
    wrong: Annotated[float, typer.Option(help="Share of wrong tokens in a draft")] = 0.1,
    rounds: Annotated[int, typer.Option(help="Turns of each search")] = 5,
) -> None:
    """Print how many times as fast greedy search is with drafts, in the median of all rounds, with
    the extremes."""
    settings = Settings(
        bundles=[bundle], provider=Provider.cpu, self_check=False, threads=1, precision=precision
    )
    limit = {"max_new_tokens": new_tokens} if new_tokens else {}
    sources = texts.read_text(encoding="utf-8-sig").splitlines()[:count]
    bodies = [{"source": source, "beam_size": 1, **limit} for source in sources]
    typer.echo(asyncio.run(measure(settings, bodies, wrong, rounds)))


if __name__ == "__main__":
    typer.run(main)
