"""The answer of /v1/decode, whole and as events. `EVENTS` and their fields become components of the
OpenAPI document, which FastAPI would not add."""

from typing import Any, Literal

from pydantic import BaseModel, Field, Json

from service.api.answering.responses import (
    REFERENCE,
    Alternative,
    FailedResult,
    Hypothesis,
    ModelResponse,
    Problem,
    TargetWord,
    Usage,
)


class DecodedSentence(BaseModel):
    """The hypotheses of a sentence. In their attention, offsets of source tokens count in the whole
    source, and those of target tokens in the text of the hypothesis."""

    start: int = Field(description="Position of its first character in the source.")
    end: int = Field(description="Position after its last character in the source.")
    hypotheses: list[Hypothesis] = Field(description="As without split.")
    source_tokens: int = Field(description="Tokens of the sentence, special tokens included.")
    source: str | None = Field(
        default=None,
        description="What was decoded, without markup. With markup, the sentences are those of a"
        " text that has each text of the document in a line. Absent unless markup.",
    )


class JoinedHypothesis(BaseModel):
    """The h-th hypotheses of all sentences, joined."""

    text: str = Field(description="The source, with the text of a hypothesis for each sentence.")
    score: float = Field(description="Sum of the scores of the sentences.")
    finish_reason: Literal["eos", "length", "stop"] = Field(
        description="length if a sentence was cut by max_new_tokens, else stop if one was stopped,"
        " else eos."
    )
    unmet: list[str | list[str]] | None = Field(
        default=None,
        description="What the hypotheses of sentences lack of `required` and of the glossary."
        " Absent if they lack nothing.",
    )
    words: list[TargetWord] | None = Field(
        default=None, description="The words of all sentences. Absent unless requested."
    )


class DecodeResult(BaseModel):
    hypotheses: list[Hypothesis] | list[JoinedHypothesis] = Field(
        description="Beams with the highest score first; samples in the order they were drawn."
        " With split: as many joined hypotheses as every sentence has."
    )
    source_tokens: int = Field(description="Tokens of the source, special tokens included.")
    sentences: list[DecodedSentence] | None = Field(
        default=None,
        description="The sentences in their order, or with markup the texts of the document. Absent"
        " unless split or markup.",
    )


class DecodeAnswer(ModelResponse):
    results: list[DecodeResult | FailedResult] = Field(
        description="One for each source, in their order."
    )
    usage: Usage


class EventPlace(BaseModel):
    """The result, and the sentence, that an event belongs to."""

    result: int = Field(description="Which result, counted from 0.")
    sentence: int | None = Field(
        default=None,
        description="Which sentence of the result, counted from 0. Absent unless split.",
    )
    start: int | None = Field(
        default=None,
        description="Position in the source of the first character of the sentence, whose place"
        " its text takes. Absent unless split.",
    )
    end: int | None = Field(
        default=None,
        description="Position after its last character. Absent unless split.",
    )


class StreamedToken(EventPlace):
    """A generated token of greedy search or sampling."""

    hypothesis: int = Field(description="Which hypothesis of the result, counted from 0.")
    text: str = Field(
        description="What the token adds to the text of the hypothesis: a character of several"
        " tokens comes with the last of them. The first token also adds target_prefix."
    )
    token: str = Field(description="The token as written in the vocabulary.")
    token_id: int = Field(description="Its id in the vocabulary.")
    log_prob: float = Field(description="As in `log_probs` of the hypothesis.")
    top_log_probs: list[Alternative] | None = Field(
        default=None,
        description="The most probable tokens at its position. Absent unless requested.",
    )


class StreamedBeam(EventPlace):
    """The progress of a beam search."""

    stable: str = Field(description="The beginning of the text, which no later event takes back.")
    tentative: str = Field(description="The text of the best hypothesis so far.")


class TokenEvent(BaseModel):
    event: Literal["token"]
    data: Json[StreamedToken]


class BeamEvent(BaseModel):
    event: Literal["beam"]
    data: Json[StreamedBeam]


class DoneEvent(BaseModel):
    """The last event of a stream: the complete answer."""

    event: Literal["done"]
    data: Json[DecodeAnswer]


class ErrorEvent(BaseModel):
    """The last event of a stream that failed."""

    event: Literal["error"]
    data: Json[Problem]


EVENTS: tuple[type[BaseModel], ...] = (TokenEvent, BeamEvent, DoneEvent, ErrorEvent)
# OpenAPI 3.1 has no schema of a stream: validators apply this one to each event
EVENT_SCHEMA: dict[str, Any] = {
    "oneOf": [{"$ref": REFERENCE.format(model=event.__name__)} for event in EVENTS]
}
