"""The JSON that comes in, checked."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from service.attention import Kind

VARIANT = "as "  # how the tags of a union's variants begin; no part of a JSON pointer


def source_variant(value: Any) -> str | None:
    """Names the variant before it is validated, so that a fault is reported once, in its place."""
    if isinstance(value, str):
        return "as text"
    if value == [] or (isinstance(value, list) and isinstance(value[0], str)):
        return "as texts"
    return "as ids" if isinstance(value, list) and isinstance(value[0], list) else None


def indices_variant(value: Any) -> str | None:
    if value == "all":
        return "as all"
    return "as indices" if isinstance(value, list) else None


def check_unicode(text: str) -> str:
    """JSON can escape half a surrogate pair, which no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = "has half a surrogate pair at {place}: not valid Unicode"
        raise PydanticCustomError("unicode", message, {"place": error.start}) from error
    return text


Unicode = Annotated[str, AfterValidator(check_unicode)]
Text = Annotated[Unicode, Tag("as text")]
Texts = Annotated[list[Unicode], Field(min_length=1, fail_fast=True), Tag("as texts")]
Ids = Annotated[
    list[Annotated[list[int], Field(fail_fast=True)]],
    Field(min_length=1, fail_fast=True),
    Tag("as ids"),
]
Sequences = Annotated[
    Text | Texts | Ids,
    Discriminator(
        source_variant,
        custom_error_type="sequences",
        custom_error_message="Input should be a text, a list of texts, or a list of lists of ids",
    ),
]
Plain = Annotated[
    Text | Texts,
    Discriminator(
        source_variant,
        custom_error_type="sequences",
        custom_error_message="Input should be a text or a list of texts",
    ),
]
Indices = Annotated[
    Annotated[Literal["all"], Tag("as all")]
    | Annotated[list[int], Field(min_length=1, max_length=1024, fail_fast=True), Tag("as indices")],
    Discriminator(
        indices_variant,
        custom_error_type="indices",
        custom_error_message="Input should be 'all' or a list of indices",
    ),
]

Source = Annotated[
    Sequences,
    Field(
        description="a text, a list of texts, or a list of lists of ids, which are taken as is",
        examples=[["attention", "transformer"]],
    ),
]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def bound(cls, value: Any) -> Any:
        """A fault for each of 100,000 unknown fields would cost a second to report."""
        if isinstance(value, dict) and len(value) > len(cls.model_fields) + 8:
            context = {"count": len(value), "fields": ", ".join(cls.model_fields)}
            raise PydanticCustomError("fields", "has {count} fields; there is {fields}", context)
        return value


class ModelRequest(Strict):
    model: str | None = Field(
        default=None, description="needed only where several models are served"
    )


class AttentionSelection(Strict):
    kinds: list[Kind] = Field(
        default=["cross"],
        min_length=1,
        max_length=3,
        description="encoder: source to source; decoder: target to target; cross: target to source",
    )
    layers: Indices = Field(
        default="all", description="all, or indices; negative ones count from the end"
    )
    heads: Indices = Field(
        default="all", description="all, or indices; negative ones count from the end"
    )


MaxNewTokens = Annotated[
    int | None,
    Field(
        ge=1, description="tokens to generate at most, eos counted; null: as many as the model may"
    ),
]


class EncodeRequest(ModelRequest):
    source: Source
    pooling: Literal["none", "mean", "max", "first", "last"] = Field(
        default="none", description="none: one vector a token; else one a source"
    )
    normalize: bool = Field(default=False, description="scale every vector to length 1")


class Searching(ModelRequest):
    """How to look for a target."""

    max_new_tokens: MaxNewTokens = None
    beam_size: int = Field(
        default=1, ge=1, le=64, description="hypotheses kept at each step; 1 is greedy search"
    )
    length_penalty: float = Field(
        default=1.0,
        ge=-10,
        le=10,
        description="score = sum of log-probs / tokens ** length_penalty; more favours longer ones",
    )
    early_stopping: bool = Field(
        default=True,
        description="stop when beam_size hypotheses have ended; false: when, moreover, no beam"
        " scores better at its present length",
    )


class DecodeRequest(Searching):
    source: Source
    num_hypotheses: int = Field(
        default=1, ge=1, le=64, description="to return, best first; at most beam_size"
    )
    attention: AttentionSelection | None = Field(
        default=None, description="attention weights to return; {} is all cross-attention"
    )


class AttentionRequest(Searching):
    source: Source
    target: Sequences | None = Field(
        default=None,
        description="One for each source; absent: what the model decodes. eos is added to texts.",
    )
    attention: AttentionSelection = Field(
        default=AttentionSelection(), description="which weights; absent: all cross-attention"
    )


class TokenizeRequest(ModelRequest):
    text: Annotated[Plain, Field(description="a text or a list of texts", examples=["don't"])]
    side: Literal["source", "target"] = Field(
        default="source", description="whose tokenizer: targets end with eos"
    )


def depth_variant(value: Any) -> str | None:
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
        custom_error_message="Input should be a list of numbers, of vectors, or of sequences of"
        " vectors, none of them empty",
    ),
]
Length = Annotated[int, Field(ge=0, le=1 << 31)]
Lengths = Annotated[
    Annotated[list[Length], Field(fail_fast=True), Tag("as numbers")]
    | Annotated[
        list[Annotated[list[Length], Field(min_length=1, fail_fast=True)]], Tag("as vectors")
    ],
    Discriminator(
        depth_variant,
        custom_error_type="lengths",
        custom_error_message="Input should be a list of integers, or of lists of integers",
    ),
]


class AdditiveWeights(Strict):
    query: Rows = Field(description="W_q, hidden x width of a query")
    key: Rows = Field(description="W_k, hidden x width of a key")
    score: Row = Field(description="w, hidden")


class AttendRequest(Strict):
    mechanism: Literal["average", "gaussian", "scaled_dot_product", "additive"] = Field(
        description="how a query scores a key: all the same; -|width (q - k)|^2 / 2;"
        " q . k / sqrt(d); w . tanh(W_q q + W_k k)"
    )
    queries: Numbers = Field(description="numbers, vectors, or sequences of vectors")
    keys: Numbers = Field(description="numbers, vectors, or sequences of vectors")
    values: Numbers = Field(description="one for each key")
    valid_lengths: Lengths | None = Field(
        default=None, description="how many keys are seen: one a sequence, or one a query"
    )
    causal: bool = Field(default=False, description="query i sees keys 0 to i")
    width: Finite | None = Field(default=None, description="of the Gaussian's inverse; 1 if absent")
    weights: AdditiveWeights | None = Field(default=None, description="of additive attention")
    truth: Row | None = Field(
        default=None,
        description="what numbers should come out: drawn beside the outputs",
    )
