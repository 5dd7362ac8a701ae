"""The JSON body of /v1/attend: queries, keys and values as numbers, vectors or sequences."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from service.api.reading.field_types import Strict


def depth_variant(value: Any) -> str | None:
    """Return the tag of lists nested one, two or three deep; None for empty or deeper ones."""
    names = ["as numbers", "as vectors", "as sequences"]
    for name in names:
        if not isinstance(value, list) or not value:
            return None
        value = value[0]
        if not isinstance(value, list):
            return name
    return None


Finite = Annotated[float, Field(allow_inf_nan=False)]
Row = Annotated[list[Finite], Field(min_length=1, fail_fast=True)]
Rows = Annotated[list[Row], Field(min_length=1, fail_fast=True)]
Numbers = Annotated[
    Annotated[Row, Tag("as numbers")]
    | Annotated[Rows, Tag("as vectors")]
    | Annotated[list[Rows], Field(min_length=1, fail_fast=True), Tag("as sequences")],
    Discriminator(
        depth_variant,
        custom_error_type="numbers",
        custom_error_message="must be a list of numbers, of vectors, or of sequences of"
        " vectors, none of them empty",
    ),
]
Length = Annotated[int, Field(ge=0, le=1 << 31)]
ValidLengths = Annotated[
    Annotated[list[Length], Field(fail_fast=True), Tag("as numbers")]
    | Annotated[
        list[Annotated[list[Length], Field(min_length=1, fail_fast=True)]], Tag("as vectors")
    ],
    Discriminator(
        depth_variant,
        custom_error_type="lengths",
        custom_error_message="must be a list of integers, or of lists of integers",
    ),
]


class AdditiveWeights(Strict):
    query: Rows = Field(description="Matrix W_q, with shape (hidden, numbers in a query).")
    key: Rows = Field(description="Matrix W_k, with shape (hidden, numbers in a key).")
    score: Row = Field(description="Vector w, with `hidden` numbers.")


class AttendRequest(Strict):
    mechanism: Literal["average", "gaussian", "scaled_dot_product", "additive"] = Field(
        description="How a query q scores a key k before the softmax. average: all keys alike;"
        " gaussian: -|width (q - k)|^2 / 2; scaled_dot_product: q . k / sqrt(d), where d is the"
        " length of q; additive: w . tanh(W_q q + W_k k)."
    )
    queries: Numbers = Field(
        description="The queries: a list of numbers, of vectors, or of sequences of vectors."
    )
    keys: Numbers = Field(
        description="The keys: a list of numbers, of vectors, or of sequences of vectors."
    )
    values: Numbers = Field(
        description="The values, one for each key: a list of numbers, of vectors, or of sequences"
        " of vectors."
    )
    valid_lengths: ValidLengths | None = Field(
        default=None,
        description="How many of the first keys may be attended to: one number per sequence, or a"
        " list per sequence with one number per query. null: all keys.",
    )
    causal: bool = Field(
        default=False, description="Let query i attend only to keys 0 to i, as in a decoder."
    )
    width: Finite | None = Field(
        default=None,
        description="For gaussian: the factor of the distance; a larger one narrows the kernel."
        " null: 1.",
    )
    weights: AdditiveWeights | None = Field(
        default=None, description="For additive, which requires them: the learned parameters."
    )
    truth: Row | None = Field(
        default=None,
        description="For queries, keys and values that are numbers: the expected output of each"
        " query, drawn with the outputs in a picture.",
    )
