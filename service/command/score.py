"""heed score: how probable targets are, by an engine in this process or a service."""

import asyncio
from typing import Any

import click

from service.command.asking import ask_in_parts, open_model
from service.command.errors import count_lines, reported
from service.command.files import open_lines
from service.command.flags import (
    LANGUAGES,
    ModelPlace,
    ablate_flag,
    given_fields,
    json_flag,
    language_flags,
    model_place,
    place_flags,
)
from service.errors import StartupError
from service.formats.json import Document, to_json


@click.command()
@click.argument("text", required=False)
@click.argument("target", required=False)
@language_flags
@ablate_flag
@place_flags
@json_flag
def score(text: str | None, target: str | None, as_json: bool, **values: Any) -> None:
    """Print how probable TARGET is for TEXT: the sum of the log-probs of its tokens, a tab, and its
    perplexity. Without arguments, standard input has lines TEXT<TAB>TARGET.

    \b
    heed score knight "N AY1 T"
    """
    if text is not None and target is None:
        raise click.UsageError("give a TARGET as well, or lines TEXT<TAB>TARGET on standard input")
    place = model_place(values)
    options = given_fields(values, [*LANGUAGES, "ablate"])
    with reported():
        pairs = [(text, target)] if text is not None else read_pair_lines()
        sources, targets = map(list, zip(*pairs, strict=True))
        body = {"source": sources, "target": targets, **options}
        document = asyncio.run(score_all(body, place))
        if as_json:
            click.echo(to_json(document))
        else:
            for result in document["results"]:
                click.echo(f"{result['sum']:.4f}\t{result['perplexity']:.4f}")


def read_pair_lines() -> list[tuple[str, str]]:
    """Return the pairs of standard input. Raise UsageError for a line that is not a pair, and
    StartupError if there is no line."""
    pairs: list[tuple[str, str]] = []
    count_lines()
    with open_lines() as lines:
        for number, line in enumerate(lines, 1):
            match line.split("\t"):
                case text, target:
                    pairs.append((text, target))
                case columns:
                    tabs = f"{len(columns) - 1} tabs" if columns[1:] else "no tab"
                    raise click.UsageError(f"line {number} has {tabs}: give lines TEXT<TAB>TARGET")
    if not pairs:
        raise StartupError("standard input holds no line: give lines TEXT<TAB>TARGET")
    return pairs


async def score_all(body: dict[str, Any], place: ModelPlace) -> Document:
    """Return the service's answer. Raise as the service does."""
    async with open_model(place) as model:
        return await ask_in_parts(model, "/v1/score", body)
