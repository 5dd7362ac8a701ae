"""The examples of a bundle: sources that show what its model does."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, get_args

from pydantic import BaseModel, ConfigDict, Field

from service.bundle.languages import Languages, Slot
from service.errors import StartupError


def is_absent(value: object) -> bool:
    return value is None


LanguageCode = Annotated[str | None, Field(exclude_if=is_absent)]


class Example(BaseModel):
    """A source, and the languages that a request must name for it: fields of /v1/decode."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Annotated[str, Field(min_length=1, max_length=1000)]
    source_language: LanguageCode = None
    target_language: LanguageCode = None


def check_examples(
    examples: Sequence[Example], languages: Languages, slots: Collection[Slot], path: Path
) -> None:
    """Raise StartupError for an example whose request would be refused: its language is unknown, or
    missing although there is a choice. `slots` are those of all templates."""
    for number, example in enumerate(examples):
        for slot in get_args(Slot):
            codes, given = languages.of(slot), getattr(example, slot)
            if given is not None and given not in codes:
                raise StartupError(
                    f"{path}: examples.{number} has the {slot} {given!r}, which languages lacks:"
                    " give one of its codes, or omit it if there are none"
                )
            if given is None and slot in slots and languages.default(slot) is None:
                raise StartupError(
                    f"{path}: examples.{number} has no {slot}, but this model has {len(codes)}:"
                    " give the code of one"
                )
