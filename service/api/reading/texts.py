"""Tokenize the texts of a request, or look up its lists of ids."""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from service.api.reading.call import Call
from service.api.reading.faults import Faults
from service.errors import MOST_FAULTS, Invalid, TooLarge
from service.text.tokenizer import Tokenizer, Tokens

TextsOrIds = str | Sequence[str | list[int]]


class TextField(NamedTuple):
    """A field of the body that holds texts or lists of ids, and the tokenizer that reads it.

    `remedy` says what to do about a text that is too long, in addition to shortening it.
    """

    pointer: str
    value: TextsOrIds
    tokenizer: Tokenizer
    remedy: str = ""


async def read_texts(call: Call, field: TextField, faults: Faults) -> list[Tokens]:
    """Return the tokens of each valid text. Add the errors of invalid texts to `faults`."""
    (sequences,) = await read_fields(call, [field], faults)
    return sequences


async def read_pairs(
    call: Call, source: TextField, target: TextField, faults: Faults
) -> tuple[list[Tokens], list[Tokens]]:
    """Return the tokens of the valid pairs of a source and a target. Add the errors of the other
    pairs to `faults`, and one if the numbers of sources and targets differ."""
    sources, targets = count_texts(source.value), count_texts(target.value)
    if sources != targets:
        counts = f"{how_many(targets, 'target')} for {how_many(sources, 'source')}"
        faults.add(Invalid.at(target.pointer, f"holds {counts}: give one for each source"))
    read_sources, read_targets = await read_fields(call, [source, target], faults)
    return read_sources, read_targets


def count_texts(value: TextsOrIds) -> int:
    return 1 if isinstance(value, str) else len(value)


def how_many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


async def read_fields(
    call: Call, fields: Sequence[TextField], faults: Faults
) -> list[list[Tokens]]:
    """Return the tokens of each text or list of ids in each field, and record how long this took.

    Add each error to `faults`, and leave its index out of all fields. If a field has more than
    max_sources texts, add only this error.
    """
    limit = call.settings.max_sources
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
    sequences = await call.compute_reading(lambda: tokenize_fields(fields, faults), size)
    call.record.end_stage("tokenize", started)
    return sequences


def tokenize_fields(fields: Sequence[TextField], faults: Faults) -> list[list[Tokens]]:
    read = [dict(tokenize_field(field, faults)) for field in fields]
    valid = sorted(set[int].intersection(*map(set, read)))
    return [[each[result] for result in valid] for each in read]


def tokenize_field(field: TextField, faults: Faults) -> Iterator[tuple[int, Tokens]]:
    """Yield the tokens of each valid text or list of ids, with its index. Add the errors of invalid
    ones to `faults`; stop at MOST_FAULTS unless the request is partial."""
    pointer, value = field.pointer, field.value
    single = isinstance(value, str)
    refused = 0
    for result, item in enumerate([value] if single else value):
        try:
            tokens = tokenize_item(field, item, pointer if single else f"{pointer}/{result}")
        except (Invalid, TooLarge) as error:
            faults.add(error, result)
            refused += 1
        else:
            yield result, tokens
        if refused == MOST_FAULTS and not faults.partial:
            return


def tokenize_item(field: TextField, item: str | list[int], pointer: str) -> Tokens:
    """Return the tokens of a text or a list of ids. Raise Invalid or TooLarge."""
    if not isinstance(item, str):
        return field.tokenizer.read_ids(item, pointer)
    try:
        return field.tokenizer.encode(item, pointer)
    except TooLarge as error:
        raise TooLarge.at(pointer, error.faults[0].detail + field.remedy) from None
