"""The JSON that goes in and comes out. Answers are written straight from arrays: their models
here document them and validate nothing."""

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
Row = Annotated[list[int], Field(fail_fast=True)]
Ids = Annotated[list[Row], Field(min_length=1, fail_fast=True), Tag("as ids")]
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


class DecodeRequest(ModelRequest):
    source: Source
    max_new_tokens: MaxNewTokens = None
    attention: AttentionSelection | None = Field(
        default=None, description="attention weights to return; {} is all cross-attention"
    )


class AttentionRequest(ModelRequest):
    source: Source
    target: Sequences | None = Field(
        default=None,
        description="One for each source; absent: what the model decodes. eos is added to texts.",
    )
    max_new_tokens: MaxNewTokens = None
    attention: AttentionSelection = Field(
        default=AttentionSelection(), description="which weights; absent: all cross-attention"
    )


class TokenizeRequest(ModelRequest):
    text: Annotated[Plain, Field(description="a text or a list of texts", examples=["don't"])]
    side: Literal["source", "target"] = Field(
        default="source", description="whose tokenizer: targets end with eos"
    )


class Answer(BaseModel):
    model: str


class Token(BaseModel):
    text: str = Field(description="as the vocabulary has it")
    id: int
    start: int | None = Field(description="first character in the text; null for special tokens")
    end: int | None = Field(description="one past the last character; null for special tokens")


class AttentionBlock(BaseModel):
    """Row i of decoder and cross is the step that predicted the i-th token, which labels it."""

    kind: Kind
    layers: list[int] = Field(description="which layers the first axis of data holds")
    heads: list[int] = Field(description="which heads the second axis of data holds")
    axes: list[str] = Field(description="what the axes of data are")
    shape: list[int] = Field(description="of data")
    rows: list[Token] = Field(description="the queries: source tokens, or predicted tokens")
    columns: list[Token] = Field(description="the keys: source tokens, or what the decoder read")
    data: list[list[list[list[float]]]] = Field(
        description="weights after the softmax; every row sums to 1"
    )


class Hypothesis(BaseModel):
    text: str = Field(description="without special tokens")
    tokens: list[str] = Field(description="every generated token, eos included")
    token_ids: list[int]
    score: float = Field(description="sum of log_probs / number of tokens")
    log_probs: list[float] = Field(description="natural logarithm, one a token")
    finish_reason: Literal["eos", "length"] = Field(description="length: cut at max_new_tokens")
    attention: list[AttentionBlock] | None = Field(default=None, description="only if asked for")


class DecodeResult(BaseModel):
    hypotheses: list[Hypothesis] = Field(description="best first")
    source_tokens: int = Field(description="special tokens included")


class Usage(BaseModel):
    source_tokens: int = Field(description="of all sources")
    target_tokens: int = Field(description="of all hypotheses")


class DecodeAnswer(Answer):
    results: list[DecodeResult]
    usage: Usage


class EncodeResult(BaseModel):
    hidden: list[list[float]] | None = Field(
        default=None, description="pooling none: (tokens, d_model)"
    )
    embedding: list[float] | None = Field(default=None, description="any other pooling: (d_model,)")
    shape: list[int]
    tokens: list[str]


class EncodeAnswer(Answer):
    results: list[EncodeResult]


class AttentionResult(BaseModel):
    source: str
    target: str = Field(description="the one given, or the one decoded")
    attention: list[AttentionBlock]


class AttentionAnswer(Answer):
    results: list[AttentionResult]


class TokenizeResult(BaseModel):
    tokens: list[str]
    token_ids: list[int]
    offsets: list[list[int] | None] = Field(description="[start, end) in the text; null: special")


class TokenizeAnswer(Answer):
    results: list[TokenizeResult]


class ModelCard(BaseModel):
    name: str
    task: str
    licence: str
    attribution: str
    precision: str
    provider: str
    attention: list[Kind] = Field(description="kinds it can show")
    limits: dict[str, int] = Field(description="positions, specials included")
    max_new_tokens: int = Field(description="unless a request says otherwise")
    config: dict[str, Any]


class ModelList(BaseModel):
    models: list[ModelCard]


class Health(BaseModel):
    status: Literal["ok"]


class Problem(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str = Field(
        description="unparsable, unknown_model, not_supported, too_large, unsupported_media_type,"
        " invalid, overloaded, pass_failed, unavailable, deadline_exceeded, internal, or the"
        " status in words"
    )
    request_id: str = Field(description="that of the X-Request-Id header")
    errors: list[dict[str, str]] = Field(
        description="the faults in the body, ten at most: where (RFC 6901) and what",
        json_schema_extra={
            "items": {
                "type": "object",
                "properties": {"pointer": {"type": "string"}, "detail": {"type": "string"}},
            }
        },
    )
