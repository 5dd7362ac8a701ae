"""Show how far a training is: a bar on a terminal, lines elsewhere."""

from collections.abc import Iterator
from time import monotonic

import typer
from rich.console import Console
from rich.progress import Progress

SECONDS = 30.0  # between the lines of an epoch


def follow(losses: Iterator[float], epoch: str, pairs: int, batch_size: int) -> list[float]:
    """Return the losses of an epoch's batches. While they are computed, show the name of the epoch
    and how many of its pairs are done: at once, whether or not a terminal shows it."""
    if Console().is_terminal:
        return list(with_bar(losses, epoch, pairs, batch_size))
    return list(with_lines(losses, epoch, pairs, batch_size))


def with_bar(losses: Iterator[float], epoch: str, pairs: int, batch_size: int) -> Iterator[float]:
    with Progress() as progress:
        bar = progress.add_task(epoch, total=pairs)
        for loss in losses:
            yield loss
            progress.advance(bar, batch_size)
        progress.update(bar, completed=pairs)  # concatenation leaves fewer examples


def with_lines(
    losses: Iterator[float], epoch: str, pairs: int, batch_size: int, seconds: float = SECONDS
) -> Iterator[float]:
    typer.echo(epoch)
    said = monotonic()
    for batch, loss in enumerate(losses, 1):
        yield loss
        if monotonic() - said >= seconds:
            said = monotonic()
            typer.echo(
                f"{epoch}: {min(pairs, batch * batch_size)} of {pairs} pairs, loss {loss:.2f}"
            )
