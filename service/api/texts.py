"""Tokenize the texts of a request, or look up its lists of ids."""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fastapi import Request

from service.api.faults import Faults
from service.errors import HeedError, Invalid, TooLarge
from service.http.record import record_of
from service.http.waiting import compute_reading, settings_of
from service.tokenizer import Tokenizer, Tokens

TextsOrIds = str | Sequence[str | list[int]]


class TextField(NamedTuple):
    """A field of the body that holds texts or lists of ids, and the tokenizer that reads it.

    `remedy` is what helps against a text that is too long, beside shortening it.
    """

    pointer: str
    value: TextsOrIds
    tokenizer: Tokenizer
    remedy: str = ""


async def read_texts(request: Request, field: TextField, faults: Faults) -> list[Tokens]:
    """Return the tokens of each valid text. Add the errors of the others to `faults`."""
    (sequences,) = await read_fields(request, [field], faults)
    return sequences


async def read_pairs(
    request: Request, source: TextField, target: TextField, faults: Faults
) -> tuple[list[Tokens], list[Tokens]]:
    """Return the tokens of the valid pairs of a source and a target. Add to `faults` the errors of
    the others, and one if there are more targets than sources, or fewer."""
    sources, targets = count_texts(source.value), count_texts(target.value)
    if sources != targets:
        counts = f"{how_many(targets, 'target')} for {how_many(sources, 'source')}"
        faults.add(Invalid.at(target.pointer, f"holds {counts}: give one for each source"))
    read_sources, read_targets = await read_fields(request, [source, target], faults)
    return read_sources, read_targets


def count_texts(value: TextsOrIds) -> int:
    return 1 if isinstance(value, str) else len(value)


def how_many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


async def read_fields(
    request: Request, fields: Sequence[TextField], faults: Faults
) -> list[list[Tokens]]:
    """Return the tokens of each text or list of ids in each field, and record how long this took.

    Leave out the indices at which a field has an error, which is added to `faults`. If a field has
    more than max_sources, add only that.
    """
    limit = settings_of(request).max_sources
    too_long = [field for field in fields if count_texts(field.value) > limit]
    for field in too_long:
        holds = f"holds {count_texts(field.value)} sequences and the limit is {limit}"
        faults.add(TooLarge.at(field.pointer, f"{holds}: send several requests"))
    if too_long:
        return [[] for _ in fields]
    started = time.monotonic()
    size = sum(
        len(field.value) if isinstance(field.value, str) else sum(map(len, field.value))
        for field in fields
    )
    sequences = await compute_reading(request, lambda: tokenize_fields(fields, faults), size)
    record_of(request).end_stage("tokenize", started)
    return sequences


def tokenize_fields(fields: Sequence[TextField], faults: Faults) -> list[list[Tokens]]:
    outcomes = [list(tokenize_field(field)) for field in fields]
    failed: set[int] = set()
    for outcome in outcomes:
        for result, each in enumerate(outcome):
            if isinstance(each, HeedError):
                faults.add(each, result)
                failed.add(result)
    return [
        [
            each
            for result, each in enumerate(outcome)
            if isinstance(each, Tokens) and result not in failed
        ]
        for outcome in outcomes
    ]


def tokenize_field(field: TextField) -> Iterator[Tokens | HeedError]:
    """Yield the tokens of each text or list of ids, or the error that it has."""
    pointer, value, tokenizer, remedy = field
    if isinstance(value, str):
        items: list[tuple[str, str | list[int]]] = [(pointer, value)]
    else:
        items = [(f"{pointer}/{i}", item) for i, item in enumerate(value)]
    for at, item in items:
        try:
            if isinstance(item, str):
                yield tokenizer.encode(item, at)
            else:
                yield tokenizer.read_ids(item, at)
        except TooLarge as error:
            advice = remedy if isinstance(item, str) else ""
            yield TooLarge.at(at, error.faults[0].detail + advice)
        except Invalid as error:
            yield error
