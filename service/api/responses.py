"""The JSON that goes out. It is written straight from arrays: these models document it."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from service.attention import AttentionKind, HeadReduction, LayerReduction


class AttendAnswer(BaseModel):
    outputs: list[Any] = Field(description="for each query the mean of the values, by its weights")
    weights: list[Any] = Field(description="for each query how much it heeds each key")
    shape: list[int] = Field(description="of weights")


class ModelResponse(BaseModel):
    model: str


class Token(BaseModel):
    text: str = Field(description="as the vocabulary has it")
    id: int
    start: int | None = Field(description="first character in the text; null for special tokens")
    end: int | None = Field(description="one past the last character; null for special tokens")


class Alignment(BaseModel):
    pairs: list[list[int]] = Field(description="[of the source's tokens, of the target's], from 0")
    pharaoh: str = Field(description="the same as text: 0-0 1-2")


class AttentionBlock(BaseModel):
    """Row i of decoder and cross is the step that predicted the i-th token, which labels it."""

    kind: AttentionKind
    layers: list[int] = Field(description="along the axis layer of data, or reduced")
    heads: list[int] = Field(description="along the axis head of data, or reduced")
    reduce_layers: LayerReduction | None = Field(default=None, description="only if reduced")
    reduce_heads: HeadReduction | None = Field(default=None, description="only if reduced")
    axes: list[str] = Field(description="what the axes of data are; layer, head if not reduced")
    shape: list[int] = Field(description="of data")
    rows: list[Token] = Field(description="the queries: source tokens, or predicted tokens")
    columns: list[Token] = Field(description="the keys: source tokens, or what the decoder read")
    data: list[Any] = Field(
        description="weights after the softmax; every row sums to 1, unless max made it or decimals"
    )
    alignment: Alignment | list[Any] | None = Field(
        default=None, description="only if asked for: of each matrix of data, nested like them"
    )


class Alternative(BaseModel):
    token: str
    id: int
    log_prob: float


class Hypothesis(BaseModel):
    text: str = Field(description="target_prefix included, special tokens not")
    tokens: list[str] = Field(description="every generated token, eos included")
    token_ids: list[int]
    score: float = Field(description="sum of log_probs / number of tokens ** length_penalty")
    log_probs: list[float] = Field(
        description="natural logarithm, one a token, after repetition_penalty alone"
    )
    finish_reason: Literal["eos", "length", "stop"] = Field(
        description="length: cut at max_new_tokens; stop: at a stop, or where nothing may follow"
    )
    top_log_probs: list[list[Alternative]] | None = Field(
        default=None, description="the most probable tokens at each step, allowed or not"
    )
    attention: list[AttentionBlock] | None = Field(default=None, description="only if asked for")


class DecodeResult(BaseModel):
    hypotheses: list[Hypothesis] = Field(description="beams best first, samples as drawn")
    source_tokens: int = Field(description="special tokens included")


class Usage(BaseModel):
    source_tokens: int = Field(description="of all sources")
    target_tokens: int = Field(description="of all hypotheses or targets")


class DecodeAnswer(ModelResponse):
    results: list[DecodeResult]
    usage: Usage


class EncodeResult(BaseModel):
    hidden: list[list[float]] | str | None = Field(
        default=None, description="pooling none: (tokens, d_model); a text if encoded as base64"
    )
    embedding: list[float] | str | None = Field(
        default=None, description="any other pooling: (d_model,); a text if encoded as base64"
    )
    shape: list[int]
    tokens: list[str]


class EncodeAnswer(ModelResponse):
    results: list[EncodeResult]


class AttentionResult(BaseModel):
    source: str
    target: str = Field(description="the one given, or the one decoded")
    attention: list[AttentionBlock]


class AttentionAnswer(ModelResponse):
    results: list[AttentionResult]


class ScoreResult(BaseModel):
    tokens: list[str] = Field(description="of the target, eos included if it was a text")
    log_probs: list[float] = Field(description="natural logarithm, one a token")
    sum: float
    mean: float
    perplexity: float = Field(description="exp(-mean)")


class ScoreAnswer(ModelResponse):
    results: list[ScoreResult]
    usage: Usage


class TokenizeResult(BaseModel):
    tokens: list[str]
    token_ids: list[int]
    offsets: list[list[int] | None] = Field(description="[start, end) in the text; null: special")


class TokenizeAnswer(ModelResponse):
    results: list[TokenizeResult]


class DetokenizeResult(TokenizeResult):
    text: str = Field(description="without special tokens")


class DetokenizeAnswer(ModelResponse):
    results: list[DetokenizeResult]


class ModelCard(BaseModel):
    name: str
    task: str
    licence: str
    attribution: str
    precision: str
    provider: str
    attention: list[AttentionKind] = Field(description="kinds it can show")
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


REFUSAL = {  # by /v1/decode, of {"source": "heed", "max_new_tokens": 65}
    "type": "about:blank",
    "title": "Unprocessable Content",
    "status": 422,
    "detail": "/max_new_tokens 65 is more than this model can generate: give 1 to 64",
    "instance": "/v1/decode",
    "code": "invalid",
    "request_id": "4b1de4ed9ea8468bbd0a1a34b4ae4d6a",
    "errors": [
        {
            "pointer": "/max_new_tokens",
            "detail": "65 is more than this model can generate: give 1 to 64",
        }
    ],
}
PROBLEM = {"schema": Problem.model_json_schema()}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "What was wrong, and what would be accepted",
        "content": {"application/problem+json": {**PROBLEM, "example": REFUSAL}},
    },
    "5XX": {
        "description": "What failed here, and when to try again",
        "content": {"application/problem+json": PROBLEM},
    },
}
