"""Search options of a model, and the ranges that options have in bundles and in requests."""

from collections.abc import Sequence, Set
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from service.bundle.languages import TokenId

Count = Annotated[int, Field(ge=1, lt=1 << 31)]
LeastTokens = Annotated[int, Field(ge=0)]
BeamSize = Annotated[int, Field(ge=1, le=64)]
LengthPenalty = Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]
NgramSize = Annotated[int, Field(ge=0, le=64)]
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]
MOST_SUPPRESSED = 1 << 16  # ids and sequences in suppress_tokens
LONGEST_SUPPRESSED = 64  # ids of a sequence


def suppressed_item_variant(value: Any) -> str:
    """Return the tag of an item of suppress_tokens, so that a fault in it is reported once."""
    return "sequence" if isinstance(value, list) else "id"


SuppressedItem = Annotated[
    Annotated[TokenId, Tag("id")]
    | Annotated[list[TokenId], Field(min_length=1, max_length=LONGEST_SUPPRESSED), Tag("sequence")],
    Discriminator(suppressed_item_variant),
]


class Decoding(BaseModel):
    """Search options that requests inherit. `suppress_tokens` are added to those of a request;
    `renormalize` cannot be requested. Bundles may lack those that have a default here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_new_tokens: Count
    min_new_tokens: LeastTokens
    beam_size: BeamSize
    length_penalty: LengthPenalty
    early_stopping: bool
    no_repeat_ngram_size: NgramSize
    repetition_penalty: RepetitionPenalty
    suppress_tokens: Annotated[list[SuppressedItem], Field(max_length=MOST_SUPPRESSED)]
    encoder_no_repeat_ngram_size: NgramSize = 0
    encoder_repetition_penalty: RepetitionPenalty = 1.0
    renormalize: bool = False

    @cached_property
    def suppressed(self) -> "Bans":
        return bans_of(self.suppress_tokens)


class Bans(NamedTuple):
    """Tokens that are never generated, and sequences of several that are never completed."""

    ids: Set[int] = frozenset()
    sequences: tuple[tuple[int, ...], ...] = ()


def bans_of(items: Sequence[int | list[int]]) -> Bans:
    """Return what suppress_tokens holds; a list of one id is this id."""
    lists = [each for each in items if isinstance(each, list)]
    ids = {each for each in items if isinstance(each, int)} | {
        each[0] for each in lists if len(each) == 1
    }
    return Bans(ids, tuple(dict.fromkeys(tuple(each) for each in lists if len(each) > 1)))
