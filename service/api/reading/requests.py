"""Fields that several request bodies share. The file of each endpoint defines its own body.

Only the form of a body is validated here; `search`, `selection`, `languages` and `texts` compare
the fields with each other and with the model. Descriptions are shown in /docs.
"""

from typing import Annotated

from pydantic import Field

from service.api.reading.field_types import (
    GlossaryEntries,
    Indices,
    Required,
    Stop,
    Strict,
    Suppressed,
    TargetPrefix,
    Unicode,
)
from service.attention import (
    AlignmentMethod,
    AttentionKind,
    AttentionMeasure,
    HeadReduction,
    LayerReduction,
)
from service.bundle.decoding import (
    BeamSize,
    LeastTokens,
    LengthPenalty,
    NgramSize,
    RepetitionPenalty,
)


class ModelRequest(Strict):
    model: str | None = Field(
        default=None,
        description="Name of the model, as GET /v1/models lists it. Required only if the service"
        " has several models.",
    )


class LanguageRequest(ModelRequest):
    """The languages of sources and targets, for models that have several."""

    source_language: str | None = Field(
        default=None,
        max_length=64,
        description="Code of the sources' language, one of those in GET /v1/models. Required only"
        " if the model must know it and has several. Sources given as ids must hold the ids of"
        " their language; this field is then refused if it would have no other effect.",
    )
    target_language: str | None = Field(
        default=None,
        max_length=64,
        description="Code of the targets' language, one of those in GET /v1/models. Required only"
        " if the model must know it, has several, and none is its default_target. Its special"
        " tokens are part neither of texts nor of the generated tokens.",
    )


class AttentionSelection(Strict):
    instead = '{} selects all cross-attention, {"kinds": ["encoder"]} another kind'

    kinds: list[AttentionKind] = Field(
        default=["cross"],
        min_length=1,
        max_length=3,
        examples=[["cross"]],
        description="Which attention: encoder (source tokens attend to source tokens), decoder"
        " (target tokens attend to earlier target tokens), cross (target tokens attend to source"
        " tokens).",
    )
    layers: Indices = Field(
        default="all",
        description='Which layers: "all", or indices from 0; negative ones count from the last.',
    )
    heads: Indices = Field(
        default="all",
        description='Which heads: "all", or indices from 0; negative ones count from the last.',
    )
    reduce_heads: HeadReduction = Field(
        default="none",
        description="How to combine the selected heads into one matrix: none (keep all), mean or"
        " max. Heads are combined before layers.",
    )
    reduce_layers: LayerReduction = Field(
        default="none",
        description="How to combine the selected layers into one matrix: none (keep all), mean, max"
        " or rollout. rollout (Abnar and Zuidema 2020) estimates how much of each input reaches"
        " each output through all layers: it multiplies, from the lowest layer up, the matrices"
        " W + I with rows scaled to sum to 1, where I stands for the residual connection. It needs"
        " reduce_heads, and kinds without cross.",
    )
    measure: AttentionMeasure = Field(
        default="weight",
        description="What to measure: weight, the attention weights; or norm (Kobayashi et al."
        " 2020), each weight times the length of what the head makes of the attended token's value"
        " in its output. Tokens with short values, on which heads often put the weight that they"
        " need nowhere, then measure little. norm cannot be combined with rollout.",
    )
    rows: list[int] | None = Field(
        default=None,
        min_length=2,
        max_length=2,
        examples=[[0, 2]],
        description="Return only the rows [start, stop) of decoder and cross attention; there is"
        " one row per generated token. Negative numbers count from the end, as in a Python slice;"
        " missing rows are skipped. null: all rows.",
    )
    alignment: AlignmentMethod | None = Field(
        default=None,
        description="Also return which source token belongs to which target token. model: by the"
        " attention that the model's bundle names as aligning, whichever layers and heads are"
        " selected; words are aligned too. argmax: by each selected matrix of cross-attention, for"
        " each target token the source token with the largest weight. threshold: all pairs whose"
        " weight is at least `threshold`. Special tokens are never paired. Pairs are positions in"
        " the whole source and target, with target_prefix.",
    )
    threshold: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Least weight of a pair, for alignment by threshold; with measure norm, least"
        " share of the sum of its row. null: 0.2.",
    )
    decimals: int | None = Field(
        default=None,
        ge=0,
        le=9,
        description="Decimals to round weights to, for a shorter answer. null: no rounding.",
    )


class AblatedHeads(Strict):
    instead = '{"kind": "cross", "layer": -1, "heads": [0]}'

    kind: AttentionKind = Field(description="Which attention: encoder, decoder or cross.")
    layer: int = Field(description="Which layer, from 0; negative ones count from the last.")
    heads: Indices = Field(
        description='Which heads of the layer: "all", or indices from 0; negative ones count from'
        " the last.",
    )


Ablate = Annotated[
    list[AblatedHeads],
    Field(
        max_length=1024,
        examples=[[{"kind": "cross", "layer": -1, "heads": [0]}]],
        description="Heads to switch off: they give nothing, as if their slices of the output"
        " projection were 0. Everything is computed without them: encoding, every step of the"
        " search, scores and attention. The heads still have weights. Only models whose"
        " bundles have gated graphs can do it.",
    ),
]


class Searching(LanguageRequest):
    """Options of the search for a target. The model's own values, `Decoding` in
    service.bundle.decoding, apply where a request sets none."""

    max_new_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens to generate, end-of-sequence token included. null: the model's own"
        " limit.",
    )
    beam_size: BeamSize | None = Field(
        default=None,
        description="Number of beams: partial hypotheses kept at each decoding step. 1 is greedy"
        " search. The worst of many beams may contain special tokens such as padding; exclude them"
        " with suppress_tokens. null: the model's own; 1 with a temperature above 0.",
    )
    length_penalty: LengthPenalty | None = Field(
        default=None,
        description="Exponent in the score that ranks hypotheses: sum of log-probs / length **"
        " length_penalty. The length counts the generated tokens and the model's start tokens after"
        " the first, such as a target language. Larger values favour longer hypotheses. null: the"
        " model's own.",
    )
    early_stopping: bool | None = Field(
        default=None,
        description="When beam search ends. true: stop as soon as beam_size hypotheses are"
        " finished. false: continue until no live beam, at its present length, can beat the worst"
        " of them. null: the model's own.",
    )
    temperature: float = Field(
        default=0.0,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="0: choose the most probable token (or search with beams). Above 0: draw every"
        " token at random, from the probabilities to the power of 1 / temperature; padding, start"
        " and unknown tokens are never drawn. temperature (sampling) and beam_size > 1 (beam"
        " search) cannot be combined.",
    )
    top_k: int | None = Field(
        default=None,
        ge=1,
        description="With a temperature: draw only from the k most probable tokens. null: all.",
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="With a temperature: draw only from the fewest tokens whose probabilities sum"
        " to at least p, after temperature and top_k. null: all.",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=1 << 63,
        description="With a temperature: seed of the random draws. The same seed gives the same"
        " answer, whatever else is decoded at the same time. null: a new seed for each request.",
    )
    min_new_tokens: LeastTokens | None = Field(
        default=None,
        description="Fewest tokens to generate before the end-of-sequence token. null: the model's"
        " own; 0 with allowed_targets.",
    )
    repetition_penalty: RepetitionPenalty | None = Field(
        default=None,
        description="Above 1: make tokens that already occurred, start tokens included, less"
        " probable. Their positive logits are divided by it, negative ones multiplied, before"
        " log_probs are computed. Beam search multiplies their log_probs instead, as Hugging Face"
        " does. null: the model's own.",
    )
    no_repeat_ngram_size: NgramSize | None = Field(
        default=None,
        description="Length in tokens of sequences that are never generated twice; start tokens and"
        " target_prefix count as generated. 0: no such rule. null: the model's own; 0 with"
        " allowed_targets.",
    )
    encoder_repetition_penalty: RepetitionPenalty | None = Field(
        default=None,
        description="Above 1: make the tokens of the source more probable; below 1, less. Their"
        " positive logits are multiplied by it, negative ones divided, before repetition_penalty;"
        " in beam search their log_probs, as Hugging Face does. Only for models with one vocabulary"
        " for sources and targets. null: the model's own.",
        examples=[1.2],
    )
    encoder_no_repeat_ngram_size: NgramSize | None = Field(
        default=None,
        description="Length in tokens of sequences of the source, with its special tokens, that are"
        " never generated. 0: no such rule. Only for models with one vocabulary for sources and"
        " targets. null: the model's own; 0 with allowed_targets.",
        examples=[3],
    )
    suppress_tokens: Suppressed = Field(
        default=[],
        description="Token ids that are never generated, and lists of up to 64 ids that are never"
        " generated in a row, in addition to those that the model itself suppresses. The last id of"
        " a list is banned behind the others; start tokens and target_prefix count as generated."
        " allowed_targets may contain those of the model.",
        examples=[[20, [8, 31]]],
    )
    allowed_targets: list[Unicode] | None = Field(
        default=None,
        min_length=1,
        max_length=10_000,
        fail_fast=True,
        examples=[["R EH1 D", "R IY1 D"]],
        description="Complete targets to choose from: the answer is one of them. Fewer targets than"
        " num_hypotheses give fewer hypotheses. With target_prefix, only those whose tokens begin"
        " with its tokens count. Cannot be combined with min_new_tokens, no_repeat_ngram_size,"
        " encoder_no_repeat_ngram_size, suppress_tokens, stop, required or glossary.",
    )
    target_prefix: TargetPrefix | None = Field(
        default=None,
        description="How every target must begin: a text or a list of token ids. It is part of"
        " `text`, but not of the generated tokens, their number, log_probs or score.",
    )
    stop: Stop = Field(
        default=[],
        description="Where to stop: a text, or a list of texts and token ids. The text or token"
        " stays in the answer. A text is searched in the generated text, without target_prefix, and"
        " may end inside a token; an id stands for a whole token (see /v1/tokenize with side"
        " target).",
    )
    required: Required = Field(
        default=[],
        examples=[["R IY1 D"]],
        description="Phrases that the target must contain, target_prefix included: of each item the"
        " text or, if it is a list, one of its texts. A phrase may be inside another one, and is"
        " followed by anything: Vertrag is also in Vertrags. A target ends only when it has all;"
        " one that max_new_tokens cuts before lists the others in `unmet`. Needs beam search: with"
        " a model whose own beam_size is smaller, 4 beams are used. Cannot be combined with"
        " allowed_targets or a temperature.",
    )
    glossary: GlossaryEntries = Field(
        default={},
        description="Words or phrases of sources, each with what the target must then contain: a"
        " text, or a list of texts of which one suffices. It is required, as by `required`, of each"
        " source (or sentence) that has the words. They are found as whole words; with a capital"
        " only as they are written, else also with capitals; and of overlapping ones the first and"
        " longest counts. A source without any is decoded as without a glossary.",
    )
