"""The JSON that is sent. Endpoints write it straight from arrays: these models document it."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from service.attention import AttentionKind, HeadReduction, LayerReduction


class AttendAnswer(BaseModel):
    outputs: list[Any] = Field(
        description="For each query the mean of the values, weighted by its attention. Nested like"
        " the values: numbers for numbers, vectors for vectors."
    )
    weights: list[Any] = Field(
        description="For each query its attention to each key; the weights of a query sum to 1, or"
        " are 0 if it may attend to no key."
    )
    shape: list[int] = Field(description="Shape of `weights`: [sequences,] queries, keys.")


class ModelResponse(BaseModel):
    model: str = Field(description="Name of the model that answered.")


class Token(BaseModel):
    text: str = Field(description="The token as written in the vocabulary.")
    id: int = Field(description="Its id in the vocabulary.")
    start: int | None = Field(
        description="Position of its first character in the text; null for special tokens."
    )
    end: int | None = Field(
        description="Position after its last character in the text; null for special tokens."
    )


class Alignment(BaseModel):
    pairs: list[list[int]] = Field(
        description="[source token, target token] pairs, both counted from 0."
    )
    pharaoh: str = Field(
        description="The same pairs as text in the Pharaoh format, for example 0-0 1-2."
    )


class AttentionBlock(BaseModel):
    """Attention weights of one kind. In decoder and cross attention, row i holds the weights with
    which the i-th generated token was predicted."""

    kind: AttentionKind = Field(description="encoder, decoder or cross.")
    layers: list[int] = Field(
        description="Layers in `data`, in this order along the axis layer; or those combined."
    )
    heads: list[int] = Field(
        description="Heads in `data`, in this order along the axis head; or those combined."
    )
    reduce_layers: LayerReduction | None = Field(
        default=None, description="How layers were combined; absent if they were not."
    )
    reduce_heads: HeadReduction | None = Field(
        default=None, description="How heads were combined; absent if they were not."
    )
    axes: list[str] = Field(
        description="Names of the axes of `data`: layer and head (unless combined), then the side"
        " of the rows and the side of the columns, each source or target."
    )
    shape: list[int] = Field(description="Shape of `data`.")
    rows: list[Token] = Field(
        description="The attending tokens: source tokens, or the target tokens being predicted."
    )
    columns: list[Token] = Field(
        description="The attended tokens: source tokens, or the target tokens read so far."
    )
    data: list[Any] = Field(
        description="Attention weights after the softmax. Every row sums to 1, unless reduced by"
        " max or rounded by decimals."
    )
    alignment: Alignment | list[Any] | None = Field(
        default=None,
        description="Aligned pairs, if requested: one object for each matrix in `data`, nested like"
        " them.",
    )


class Alternative(BaseModel):
    token: str = Field(description="The token as written in the vocabulary.")
    id: int = Field(description="Its id in the vocabulary.")
    log_prob: float = Field(description="Natural logarithm of its probability.")


class Hypothesis(BaseModel):
    text: str = Field(description="The target as text, with target_prefix, no special tokens.")
    tokens: list[str] = Field(
        description="Every generated token, with the end-of-sequence token if it was generated."
    )
    token_ids: list[int] = Field(description="The ids of these tokens.")
    score: float = Field(
        description="Rank value: sum of log_probs / number of tokens ** length_penalty."
    )
    log_probs: list[float] = Field(
        description="Natural logarithm of the probability of each generated token, after"
        " repetition_penalty but before temperature, top_k and top_p."
    )
    finish_reason: Literal["eos", "length", "stop"] = Field(
        description="Why generation ended. eos: the end-of-sequence token was generated; length:"
        " max_new_tokens was reached; stop: a `stop` text or id was generated, or no token was"
        " allowed."
    )
    top_log_probs: list[list[Alternative]] | None = Field(
        default=None,
        description="For each generated token the most probable tokens at its position, whether"
        " allowed or not. Absent unless requested.",
    )
    attention: list[AttentionBlock] | None = Field(
        default=None, description="One block for each requested kind. Absent unless requested."
    )


class DecodeResult(BaseModel):
    hypotheses: list[Hypothesis] = Field(
        description="Beams with the highest score first; samples in the order they were drawn."
    )
    source_tokens: int = Field(description="Tokens of the source, special tokens included.")


class Usage(BaseModel):
    source_tokens: int = Field(description="Tokens of all sources.")
    target_tokens: int = Field(description="Tokens of all hypotheses, or of all given targets.")


class DecodeAnswer(ModelResponse):
    results: list[DecodeResult] = Field(description="One for each source, in their order.")
    usage: Usage


class EncodeResult(BaseModel):
    hidden: list[list[float]] | str | None = Field(
        default=None,
        description="With pooling none: one vector per token, or base64 text if requested.",
    )
    embedding: list[float] | str | None = Field(
        default=None,
        description="With any other pooling: one vector, or base64 text if requested.",
    )
    shape: list[int] = Field(description="Shape of `hidden` or `embedding`.")
    tokens: list[str] = Field(description="The tokens that were encoded.")


class EncodeAnswer(ModelResponse):
    results: list[EncodeResult] = Field(description="One for each source, in their order.")


class AttentionResult(BaseModel):
    source: str = Field(description="The source as text.")
    target: str = Field(description="The target as text: the one given, or the one decoded.")
    attention: list[AttentionBlock] = Field(description="One block for each requested kind.")


class AttentionAnswer(ModelResponse):
    results: list[AttentionResult] = Field(description="One for each source, in their order.")


class ScoreResult(BaseModel):
    tokens: list[str] = Field(
        description="The tokens of the target; for a text also the end-of-sequence token."
    )
    log_probs: list[float] = Field(
        description="Natural logarithm of the probability of each token, given the source and the"
        " tokens before it."
    )
    sum: float = Field(description="Sum of log_probs.")
    mean: float = Field(description="Mean of log_probs.")
    perplexity: float = Field(
        description="exp(-mean): 1 if the model is certain of every token, larger if not. At most"
        " 1.7976931348623157e308, the largest double-precision number."
    )


class ScoreAnswer(ModelResponse):
    results: list[ScoreResult] = Field(description="One for each source, in their order.")
    usage: Usage


class TokenizeResult(BaseModel):
    tokens: list[str] = Field(description="The tokens as written in the vocabulary.")
    token_ids: list[int] = Field(description="Their ids in the vocabulary.")
    offsets: list[list[int] | None] = Field(
        description="[start, end) of each token in the text, in characters; null for special"
        " tokens."
    )


class TokenizeAnswer(ModelResponse):
    results: list[TokenizeResult] = Field(description="One for each text, in their order.")


class DetokenizeResult(TokenizeResult):
    text: str = Field(description="The text of the tokens, without special tokens.")


class DetokenizeAnswer(ModelResponse):
    results: list[DetokenizeResult] = Field(description="One for each list of ids, in their order.")


class ModelCard(BaseModel):
    name: str = Field(description="Name of the model, for the field `model` of requests.")
    task: str = Field(description="What the model does.")
    licence: str = Field(description="Licence of the weights.")
    attribution: str = Field(description="Whom to credit for the model and its data.")
    precision: str = Field(description="Precision of the loaded weights, such as fp32 or int8.")
    provider: str = Field(description="ONNX Runtime execution provider that computes.")
    attention: list[AttentionKind] = Field(description="Kinds of attention that it can show.")
    limits: dict[str, int] = Field(
        description="Longest source and target in tokens, special tokens included."
    )
    max_new_tokens: int = Field(
        description="Most tokens that are generated if a request does not set max_new_tokens."
    )
    config: dict[str, Any] = Field(description="Sizes of the network, such as num_heads.")


class ModelList(BaseModel):
    models: list[ModelCard]


class Health(BaseModel):
    status: Literal["ok"]


class Problem(BaseModel):
    """An error, as RFC 9457 defines problem documents."""

    type: str = Field(description="Always about:blank; `code` names the error.")
    title: str = Field(description="The HTTP status in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What is wrong and what to send instead, for people.")
    instance: str = Field(description="Path of the request.")
    code: str = Field(
        description="The error, for programs: unparsable, unknown_model, not_supported,"
        " not_acceptable, too_large, unsupported_media_type, invalid, overloaded, client_gone,"
        " pass_failed, unavailable, deadline_exceeded, internal, or the HTTP status in words."
    )
    request_id: str = Field(
        description="Id of the request: the X-Request-Id header of the request, or a new one."
    )
    errors: list[dict[str, str]] = Field(
        description="The faults in the body, at most ten: `pointer` (RFC 6901) says where, `detail`"
        " what is wrong.",
        json_schema_extra={
            "items": {
                "type": "object",
                "properties": {"pointer": {"type": "string"}, "detail": {"type": "string"}},
            }
        },
    )


REFUSAL = {  # the answer of /v1/decode to {"source": "heed", "max_new_tokens": 65}
    "type": "about:blank",
    "title": "Unprocessable Content",
    "status": 422,
    "detail": "/max_new_tokens is 65 but this model can generate at most 64 tokens: give 1 to 64",
    "instance": "/v1/decode",
    "code": "invalid",
    "request_id": "4b1de4ed9ea8468bbd0a1a34b4ae4d6a",
    "errors": [
        {
            "pointer": "/max_new_tokens",
            "detail": "is 65 but this model can generate at most 64 tokens: give 1 to 64",
        }
    ],
}
PROBLEM_SCHEMA = {"schema": Problem.model_json_schema()}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "The request was refused: `detail` says why, and what to send instead",
        "content": {"application/problem+json": {**PROBLEM_SCHEMA, "example": REFUSAL}},
    },
    "5XX": {
        "description": "The service failed; with a Retry-After header, try again after so many"
        " seconds",
        "content": {"application/problem+json": PROBLEM_SCHEMA},
    },
}
