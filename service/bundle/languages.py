"""The languages of a model, and templates: lists of ids with slots that a language fills."""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, product
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

TokenId = Annotated[int, Field(ge=0)]
Slot = Literal["source_language", "target_language"]
Template = Sequence[int | Slot]
Codes = dict[str, list[TokenId]]


def item_variant(value: Any) -> str:
    """Return the tag of an item of a template, so that a fault in it is reported once."""
    return "slot" if isinstance(value, str) else "id"


TemplateItem = Annotated[
    Annotated[TokenId, Tag("id")] | Annotated[Slot, Tag("slot")], Discriminator(item_variant)
]
StartItem = Annotated[
    Annotated[TokenId, Tag("id")] | Annotated[Literal["target_language"], Tag("slot")],
    Discriminator(item_variant),
]


class Languages(BaseModel):
    """The token ids of each language code: `source` fills source_language, `target` the other.
    Where no template has the slot, codes may have no ids: they only say what the model translates.

    `default_target` is the language of targets for requests that name none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Codes
    target: Codes
    default_target: str | None = None  # bundles may lack it

    @model_validator(mode="after")
    def check_default(self) -> Self:
        if self.default_target is not None and self.default_target not in self.target:
            raise ValueError("must have its default_target among the codes of the target")
        return self

    def default(self, slot: Slot) -> str | None:
        """Return the language of requests that name none; None if they must name one."""
        codes = self.of(slot)
        if slot == "target_language" and self.default_target is not None:
            return self.default_target
        return next(iter(codes)) if len(codes) == 1 else None

    def of(self, slot: Slot) -> Codes:
        return self.source if slot == "source_language" else self.target

    def every_id(self, template: Template) -> set[int]:
        """Return the ids of a template in all languages."""
        return {token_id for ids in self._choices(template) for each in ids for token_id in each}

    def fills(self, template: Template) -> set[tuple[int, ...]]:
        """Return the ids of a template, once for each language that may fill it."""
        return {tuple(chain.from_iterable(ids)) for ids in product(*self._choices(template))}

    def _choices(self, template: Template) -> list[Collection[Sequence[int]]]:
        """Return the ids that each item of a template may stand for."""
        return [[[each]] if isinstance(each, int) else self.of(each).values() for each in template]

    def most_ids(self, template: Template) -> int:
        """Return how many ids a template has in the languages with the most ids."""
        return sum(
            1 if isinstance(each, int) else max(map(len, self.of(each).values()), default=0)
            for each in template
        )


def slots_of(template: Template) -> list[Slot]:
    return [each for each in template if isinstance(each, str)]


def fill(template: Template, languages: Mapping[Slot, Sequence[int]]) -> list[int]:
    """Return the ids of a template. A slot that is not in `languages` adds none."""
    ids: list[int] = []
    for each in template:
        ids += [each] if isinstance(each, int) else languages.get(each, ())
    return ids
