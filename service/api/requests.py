"""The JSON that comes in, checked."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from service.api.field_types import Indices, Plain, Prefix, Sequences, Source, Stop, Unicode
from service.attention import AlignmentMethod, AttentionKind, HeadReduction, LayerReduction


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
    kinds: list[AttentionKind] = Field(
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
    reduce_heads: HeadReduction = Field(
        default="none", description="over the selected heads, before layers are reduced"
    )
    reduce_layers: LayerReduction = Field(
        default="none",
        description="over the selected layers. rollout (Abnar and Zuidema 2020), of encoder and"
        " decoder with reduced heads: the product, from the lowest layer up, of W + I with rows"
        " scaled to sum to 1, where I stands for the residual connection",
    )
    rows: list[int] | None = Field(
        default=None,
        min_length=2,
        max_length=2,
        description="[start, stop) of the steps of decoder and cross, as in a slice of Python:"
        " negative ones count from the end, and what is not there is left out",
    )
    alignment: AlignmentMethod | None = Field(
        default=None,
        description="also the pairs of a source and a target token that belong together: for each"
        " target token its largest weight (argmax), or all of at least `threshold`; of cross, and"
        " of no special token. They count the tokens of source and target, what was forced too",
    )
    threshold: float | None = Field(
        default=None, gt=0, le=1, description="of alignment by threshold; absent: 0.2"
    )
    decimals: int | None = Field(
        default=None, ge=0, le=9, description="that weights are rounded to; absent: no rounding"
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
    normalize: bool = Field(
        default=False, description="scale every vector to length 1, after it was cut"
    )
    dimensions: int | None = Field(
        default=None, ge=1, description="cut every vector to its first so many; null: keep all"
    )
    encoding: Literal["float", "base64"] = Field(
        default="float", description="base64: of little-endian float32, row by row"
    )


class Searching(ModelRequest):
    """How to look for a target."""

    max_new_tokens: MaxNewTokens = None
    beam_size: int = Field(
        default=1,
        ge=1,
        le=64,
        description="hypotheses kept at each step; 1 is greedy search. The"
        " least likely of many may hold special tokens; suppress_tokens leaves them out",
    )
    length_penalty: float = Field(
        default=1.0,
        ge=-10,
        le=10,
        allow_inf_nan=False,
        description="score = sum of log-probs / tokens ** length_penalty; more favours longer ones",
    )
    early_stopping: bool = Field(
        default=True,
        description="stop when beam_size hypotheses have ended, though a beam that goes on might"
        " score better; false: when, moreover, none scores better than the worst of them at its"
        " present length",
    )
    temperature: float = Field(
        default=0.0,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="0: take the best. Above 0 every token is drawn, from the probabilities to the"
        " power of 1 / temperature, no special one but eos; not with beam_size above 1",
    )
    top_k: int | None = Field(
        default=None,
        ge=1,
        description="with a temperature: draw from the k most probable only",
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="with a temperature: draw from the fewest tokens whose probabilities sum to p,"
        " after temperature and top_k",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=1 << 63,
        description="of the draws: the same seed gives the same answer, whatever else is decoded;"
        " null: another one each time",
    )
    min_new_tokens: int = Field(default=0, ge=0, description="tokens before eos, at least")
    repetition_penalty: float = Field(
        default=1.0,
        ge=0.01,
        le=100,
        allow_inf_nan=False,
        description="above 1 makes tokens that occurred less likely: their logits are divided by it"
        " where positive, else multiplied; log_probs are those after it",
    )
    no_repeat_ngram_size: int = Field(
        default=0, ge=0, le=64, description="no sequence of so many tokens occurs twice; 0: any may"
    )
    suppress_tokens: list[int] = Field(
        default=[],
        max_length=1 << 16,
        fail_fast=True,
        description="ids that are never generated",
    )
    allowed_targets: list[Unicode] | None = Field(
        default=None,
        min_length=1,
        max_length=10_000,
        fail_fast=True,
        description="whole targets: the answer is one of them. Fewer than num_hypotheses give fewer"
        " hypotheses; with target_prefix, those that begin with it. Not with min_new_tokens,"
        " no_repeat_ngram_size, suppress_tokens or stop.",
    )
    target_prefix: Prefix | None = Field(
        default=None,
        description="how every target begins, a text or ids: part of text, but not of the generated"
        " tokens, their number, log_probs or score",
    )
    stop: Stop = Field(
        default=[],
        description="texts or ids that end a hypothesis and stay in its text and tokens. A text is"
        " looked for in what was generated, target_prefix not included, and may end inside a token;"
        " ids (see /v1/tokenize, side target) stand for whole tokens.",
    )


class DecodeRequest(Searching):
    source: Source
    num_hypotheses: int = Field(
        default=1,
        ge=1,
        le=64,
        description="to return: of beams the best, at most beam_size; with a temperature, so many"
        " samples",
    )
    top_log_probs: int = Field(
        default=0, ge=0, le=20, description="alternatives to show with each token"
    )
    attention: AttentionSelection | None = Field(
        default=None, description="attention weights to return; {} is all cross-attention"
    )
    stream: bool = Field(default=False, description="answer as server-sent events")


class AttentionRequest(Searching):
    source: Source
    target: Sequences | None = Field(
        default=None,
        description="One for each source; absent: what the model decodes. eos is added to texts.",
    )
    attention: AttentionSelection = Field(
        default=AttentionSelection(), description="which weights; absent: all cross-attention"
    )


class ScoreRequest(ModelRequest):
    source: Source
    target: Sequences = Field(
        description="one for each source; eos is added to texts, lists of ids are taken as is",
        examples=[["AH0 T EH1 N SH AH0 N"]],
    )


class DetokenizeRequest(ModelRequest):
    token_ids: list[list[int]] = Field(
        min_length=1, description="lists of ids, one for each text", examples=[[[28, 26, 11, 2]]]
    )
    side: Literal["source", "target"] = Field(default="target", description="whose tokenizer")


class TokenizeRequest(ModelRequest):
    text: Annotated[Plain, Field(description="a text or a list of texts", examples=["don't"])]
    side: Literal["source", "target"] = Field(
        default="source", description="whose tokenizer: targets end with eos"
    )
