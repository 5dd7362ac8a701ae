"""Read YAML as Marian writes it: keys with texts or lists of texts, nothing deeper.

Events are read one by one, because the parsers of whole documents recurse: a file of opening
brackets would end the process. Texts stay texts, as in Marian: `no` is a token, not false.
"""

from collections.abc import Iterator
from typing import Any

import yaml

from model.network.config import InputError

LARGEST = 1 << 25  # bytes; a vocabulary of 250,000 tokens has 6 MB
LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
FRAMES = (
    yaml.StreamStartEvent,
    yaml.StreamEndEvent,
    yaml.DocumentStartEvent,
    yaml.DocumentEndEvent,
)
Values = dict[str, str | list[str]]


class NotFlatError(Exception):
    """A value is where none of its kind may be."""


def read_flat(content: bytes, name: str) -> Values:
    """Return the values by their keys; a key that is there twice has its last value. What lists in
    lists hold is in one list. Raise InputError, which names `name`, for anything else."""
    if len(content) > LARGEST:
        raise InputError(f"{name} has {len(content)} bytes; expected at most {LARGEST}")
    try:
        events: Iterator[Any] = yaml.parse(content.rstrip(b"\0").decode(), Loader=LOADER)
        return read_pairs(event for event in events if not isinstance(event, FRAMES))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        reason = getattr(error, "problem", None) or getattr(error, "reason", "no text")
        raise InputError(f"{name} is not YAML ({reason}): copy or download it again") from error
    except (NotFlatError, StopIteration) as error:
        raise InputError(
            f"{name} does not hold keys with texts or lists of texts alone: copy or download it"
            " again"
        ) from error


def read_pairs(events: Iterator[Any]) -> Values:
    """Raise NotFlatError, or StopIteration if there is no value."""
    values: Values = {}
    if not isinstance(next(events), yaml.MappingStartEvent):
        raise NotFlatError
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key, value = text_of(event), next(events)
        is_list = isinstance(value, yaml.SequenceStartEvent)
        values[key] = read_items(events) if is_list else text_of(value)
    return values


def read_items(events: Iterator[Any]) -> list[str]:
    """Return the texts of a list that has begun, and of lists in it."""
    items: list[str] = []
    depth = 1
    while depth:
        event = next(events)
        if isinstance(event, yaml.SequenceStartEvent) and depth == 1:
            depth += 1
        elif isinstance(event, yaml.SequenceEndEvent):
            depth -= 1
        else:
            items.append(text_of(event))
    return items


def text_of(event: Any) -> str:
    if not isinstance(event, yaml.ScalarEvent):
        raise NotFlatError
    return event.value
