"""Fields that several answers share. The file of each endpoint defines its own answer.

Endpoints write JSON straight from arrays: these pydantic models only document it.
"""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, Field

from service.attention import AttentionKind, AttentionMeasure, HeadReduction, LayerReduction
from service.errors import LONGEST_QUOTE

Code = Literal[
    "unparsable",
    "unauthorized",
    "forbidden",
    "not_found",
    "unknown_model",
    "not_supported",
    "method_not_allowed",
    "not_acceptable",
    "request_timeout",
    "conflict",
    "too_large",
    "unsupported_media_type",
    "misdirected",
    "invalid",
    "overloaded",
    "client_gone",
    "internal",
    "pass_failed",
    "unavailable",
    "deadline_exceeded",
]

Matrix = list[list[float]]


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


class Word(BaseModel):
    text: str = Field(description="The word.")
    start: int = Field(description="Position of its first character in the text.")
    end: int = Field(description="Position after its last character in the text.")


class WordAlignment(BaseModel):
    """Pairs of words: those of which some tokens are a pair."""

    source: list[Word] = Field(description="The words of the source.")
    target: list[Word] = Field(description="The words of the target.")
    pairs: list[list[int]] = Field(
        description="[source word, target word] pairs, both counted from 0."
    )
    pharaoh: str = Field(description="The same pairs in the Pharaoh format.")


class Alignment(BaseModel):
    pairs: list[list[int]] = Field(
        description="[source token, target token] pairs, both counted from 0."
    )
    pharaoh: str = Field(
        description="The same pairs as text in the Pharaoh format, for example 0-0 1-2."
    )
    words: WordAlignment | None = Field(
        default=None, description="The same of words, for alignment by model; else absent."
    )


class AttentionBlock(BaseModel):
    """Attention weights of one kind. In decoder and cross attention, row i holds the weights with
    which the i-th generated token was predicted."""

    kind: AttentionKind = Field(description="encoder, decoder or cross.")
    layers: list[int] = Field(
        description="Layers in `data`, in the order of the axis layer; or the layers combined."
    )
    heads: list[int] = Field(
        description="Heads in `data`, in the order of the axis head; or the heads combined."
    )
    reduce_layers: LayerReduction | None = Field(
        default=None, description="How layers were combined; absent if they were not."
    )
    reduce_heads: HeadReduction | None = Field(
        default=None, description="How heads were combined; absent if they were not."
    )
    measure: AttentionMeasure | None = Field(
        default=None, description="norm if weights were multiplied with norms; absent if not."
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
    data: Matrix | list[Matrix] | list[list[Matrix]] = Field(
        description="Attention weights after the softmax. Every row sums to 1, unless reduced by"
        " max, rounded by decimals or measured by norms."
    )
    alignment: Alignment | list[Alignment] | list[list[Alignment]] | None = Field(
        default=None,
        description="Aligned pairs, if requested. By model: one object. Else one for each matrix in"
        " `data`, nested like them.",
    )


class Alternative(BaseModel):
    token: str = Field(description="The token as written in the vocabulary.")
    id: int = Field(description="Its id in the vocabulary.")
    log_prob: float = Field(description="Natural logarithm of its probability.")


class Committed(BaseModel):
    """The beginning of a target that a longer source will not change."""

    text: str = Field(description="Its text, with target_prefix.")
    token_ids: list[int] = Field(
        description="Its ids, with target_prefix: the target_prefix of the next request."
    )


class TargetWord(Word):
    """A word of a target; start and end count in the text of the hypothesis."""

    log_prob: float = Field(description="Sum of the log_probs of its generated tokens.")
    mean_log_prob: float = Field(description="The same, divided by the number of these tokens.")
    entropy: float = Field(
        description="Mean, over these tokens, of the entropy in nats of the model's distribution"
        " when each was chosen. It is the model's own: penalties, banned tokens, allowed_targets"
        " and the temperature do not change it."
    )
    source_share: float | None = Field(
        default=None,
        description="The part of the word's probability that it loses if all tokens of the source"
        " are replaced, from 0 to 1, as in /v1/attribution. Absent unless requested.",
    )
    source: list[Word] | None = Field(
        description="The words of the source that it is aligned to; null if the model's bundle"
        " names no alignment."
    )


class Hypothesis(BaseModel):
    text: str = Field(description="The target as text: with target_prefix, without special tokens.")
    tokens: list[str] = Field(
        description="Every generated token, with the end-of-sequence token if it was generated."
    )
    token_ids: list[int] = Field(description="The ids of these tokens.")
    score: float = Field(
        description="Rank value: sum of log_probs / length ** length_penalty. The length"
        " counts the generated tokens and the model's start tokens after the first."
    )
    log_probs: list[float] = Field(
        description="Natural logarithm of the probability of each generated token, after"
        " repetition_penalty and encoder_repetition_penalty, but before temperature, top_k and"
        " top_p."
    )
    finish_reason: Literal["eos", "length", "stop"] = Field(
        description="Why generation ended. eos: the end-of-sequence token was generated; length:"
        " max_new_tokens was reached; stop: a `stop` text or id was generated, or no token was"
        " allowed."
    )
    unmet: list[str | list[str]] | None = Field(
        default=None,
        description="What it lacks of `required` and of the glossary: max_new_tokens is too small,"
        " or other options forbid a phrase. Hypotheses that lack least come first. Absent if it"
        " lacks nothing.",
    )
    drafted: int | None = Field(
        default=None,
        description="How many tokens of the draft were checked, each as often as it was. Absent"
        " without a draft.",
    )
    accepted: int | None = Field(
        default=None,
        description="How many of these the search chose, too. Absent without a draft.",
    )
    top_log_probs: list[list[Alternative]] | None = Field(
        default=None,
        description="For each generated token the most probable tokens at its position, whether"
        " allowed or not. Absent unless requested.",
    )
    attention: list[AttentionBlock] | None = Field(
        default=None, description="One block for each requested kind. Absent unless requested."
    )
    committed: Committed | None = Field(
        default=None,
        description="What may be shown or spoken. Absent unless source_final is false.",
    )
    tentative: str | None = Field(
        default=None, description="The rest of `text`. Absent unless source_final is false."
    )
    words: list[TargetWord] | None = Field(
        default=None,
        description="The words that were generated: those of target_prefix are left out. Absent"
        " unless requested.",
    )


class Usage(BaseModel):
    source_tokens: int = Field(description="Tokens of all sources.")
    target_tokens: int = Field(description="Tokens of all hypotheses, or of all given targets.")


class ProblemFault(BaseModel):
    """A fault in the body of a request."""

    pointer: str = Field(description="Where it is (RFC 6901).")
    detail: str = Field(description="What is wrong.")
    unknown: list[str] | None = Field(
        default=None,
        description="What the vocabulary lacks: parts of the text that `pointer` names, each cut"
        f" after {LONGEST_QUOTE} characters. Absent for other faults, and if the document would be"
        " too large.",
    )


class Problem(BaseModel):
    """An error, as RFC 9457 defines problem documents."""

    type: str = Field(description="Always about:blank; `code` names the error.")
    title: str = Field(description="The HTTP status in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What is wrong and what to send instead, for people.")
    instance: str = Field(description="Path of the request.")
    code: Code = Field(description="The error, for programs.")
    request_id: str = Field(
        description="Id of the request: the X-Request-Id header of the request, or a new one."
    )
    errors: list[ProblemFault] = Field(description="The faults in the body, at most ten.")


class FailedResult(BaseModel):
    """Takes the place of a result in the answer to a request with `partial`: its source was
    refused, or failed."""

    problem: Problem = Field(description="The answer that the source would have got alone.")


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
REFERENCE = "#/components/schemas/{model}"
PROBLEM_SCHEMA = {"schema": {"$ref": REFERENCE.format(model=Problem.__name__)}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "The request was refused: `detail` says why, and what to send instead",
        "content": {"application/problem+json": {**PROBLEM_SCHEMA, "example": REFUSAL}},
    },
    "5XX": {
        "description": "The service failed; with a Retry-After header, try again after that many"
        " seconds",
        "content": {"application/problem+json": PROBLEM_SCHEMA},
    },
}


def describe_files(media_types: Iterable[str]) -> dict[int | str, dict[str, Any]]:
    """Return what an OpenAPI document says of answers that are files of these media types."""
    content = {
        each: {"schema": {"type": "string"} | ({} if is_text(each) else {"format": "binary"})}
        for each in media_types
    }
    return {200: {"content": content}}


def is_text(media_type: str) -> bool:
    return media_type.startswith("text/") or media_type.endswith("+xml")
