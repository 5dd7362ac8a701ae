"""The answer of /v1/attribution, and its writer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from service.api.answering import responses
from service.arrays import FloatArray
from service.attention import AttentionKind
from service.formats.json import Document
from service.occlusion import Of, Pair, first_difference, head_losses, leads, losses, source_shares
from service.serving.model import Model
from service.text.tokens import Token
from service.text.words import WordSpan
from service.wire import Answer

BlockKind = Literal["target", "contrast"] | AttentionKind
HEADS = ["layer", "head"]
WHOLE_TARGET = "whole target"


class SourceWord(responses.Word):
    tokens: list[int] = Field(description="Its tokens in the source, counted from 0.")


class Row(BaseModel):
    text: str = Field(description="What the lead is of; or the number of a layer or head.")


class AttributionBlock(BaseModel):
    kind: BlockKind = Field(
        description="target: the log-prob that each generated token loses. contrast: how much of"
        " its lead over the foil the target loses, in two rows: for the first token that differs,"
        " and for the whole target. encoder, decoder, cross: the log-prob that the whole target"
        " loses without each head of this attention."
    )
    axes: list[str] = Field(description="Names of the axes of `data`.")
    shape: list[int] = Field(description="Shape of `data`.")
    rows: list[responses.Token] | list[Row] = Field(description="What loses; of heads: layers.")
    columns: list[responses.Token] | list[SourceWord] | list[Row] = Field(
        description="The tokens or words of the source, each of which is replaced in turn; or the"
        " heads of a layer, each of which is switched off."
    )
    data: responses.Matrix = Field(
        description="What is lost, as a difference of natural logarithms. Negative numbers: the"
        " replacement makes it more probable."
    )


class Foil(BaseModel):
    target: str = Field(description="The foil as text.")
    log_probs: list[float] = Field(
        description="Natural logarithm of the probability of each of its tokens."
    )
    first: int | None = Field(
        description="Index of the first token in which target and foil differ, counted from the"
        " beginning of both, with target_prefix; null if they are the same."
    )
    lead: list[float] = Field(
        description="Log-prob of the target minus that of the foil: of the token at `first`, and of"
        " the whole target."
    )


class AttributionResult(BaseModel):
    source: str = Field(description="The source as text.")
    target: str = Field(description="The target as text: the one given, or the one decoded.")
    log_probs: list[float] = Field(
        description="Natural logarithm of the probability of each generated or given token."
    )
    source_share: list[float] | None = Field(
        default=None,
        description="How much each of these tokens depends on the source, from 0 to 1: the part of"
        " its probability that it loses if all tokens of the source are replaced. Absent with of"
        " heads.",
    )
    contrast: Foil | None = Field(default=None, description="The foil. Absent unless given.")
    attribution: list[AttributionBlock] = Field(
        description="A block of the kind target and, with a foil, one of the kind contrast; with"
        " of heads, one for each kind of attention."
    )


class Replacement(BaseModel):
    token: str = Field(description="The token as written in the vocabulary of sources.")
    id: int = Field(description="Its id in the vocabulary.")


class AttributionAnswer(responses.ModelResponse):
    replacement: Replacement | None = Field(
        default=None, description="The token that replaces others. Absent with of heads."
    )
    results: list[AttributionResult | responses.FailedResult] = Field(
        description="One for each source, in their order."
    )


@dataclass(frozen=True, slots=True)
class RowLabel:
    """The label of a row that is not a token."""

    text: str


def write_attribution(
    model: Model, of: Of, decimals: int | None, answered: Sequence[tuple[Pair, Sequence[Answer]]]
) -> Document:
    """Return the answer, given each pair with the answers to all its rows."""
    results = [
        write_attributed(pair, log_probs_of(pair, answers), decimals) for pair, answers in answered
    ]
    if of == "heads":
        return {"model": model.name, "results": results}
    token = {"token": model.source.name(model.replacement), "id": model.replacement}
    return {"model": model.name, "replacement": token, "results": results}


def log_probs_of(pair: Pair, answers: Sequence[Answer]) -> list[FloatArray]:
    """Return the log-probs of the target, and of the foil if any, in all rows: (N + 2, T) each."""
    scored = [each.log_probs for each in answers if each.log_probs is not None]
    return [
        np.stack(scored[start : start + pair.rows]) for start in range(0, len(scored), pair.rows)
    ]


def write_attributed(pair: Pair, log_probs: Sequence[FloatArray], decimals: int | None) -> Document:
    generated = log_probs[0][:, pair.prefix :]
    result: dict[str, Any] = {
        "source": pair.source.text,
        "target": pair.target.text,
        "log_probs": generated[0],
    }
    if pair.heads:
        lost = head_losses(generated, pair.heads)
        blocks = [write_heads(kind, data, decimals) for kind, data in lost.items()]
        return {**result, "attribution": blocks}
    result["source_share"] = source_shares(generated)
    rows = pair.target.tokens[pair.prefix :]
    columns = pair.parts.labels
    axes = ["target", "source"]
    blocks = [write_block("target", axes, rows, columns, losses(generated), decimals)]
    if pair.foil:
        first = first_difference(pair.target.ids, pair.foil.ids)
        lead = leads(log_probs[0], log_probs[1], first)
        result["contrast"] = {
            "target": pair.foil.text,
            "log_probs": log_probs[1][0],
            "first": first,
            "lead": lead[:, 0].tolist(),
        }
        axes, lost = ["contrast", "source"], losses(lead.T)
        blocks.append(
            write_block("contrast", axes, label_contrast(pair, first), columns, lost, decimals)
        )
    return {**result, "attribution": blocks}


def label_contrast(pair: Pair, first: int | None) -> list[RowLabel]:
    """Return the labels of the first tokens that differ, as "EH1, not IY1", and of the whole."""
    if first is None:
        return [RowLabel("no token differs"), RowLabel(WHOLE_TARGET)]
    names = [each.tokens[first].text if first < len(each) else "nothing" for each in pair.targets]
    return [RowLabel(", not ".join(names)), RowLabel(WHOLE_TARGET)]


def write_heads(kind: AttentionKind, data: FloatArray, decimals: int | None) -> Document:
    layers, heads = (
        [RowLabel(f"{name} {i}") for i in range(size)]
        for name, size in zip(HEADS, data.shape, strict=True)
    )
    return write_block(kind, HEADS, layers, heads, data, decimals)


def write_block(
    kind: BlockKind,
    axes: Sequence[str],
    rows: Sequence[Token] | Sequence[RowLabel],
    columns: Sequence[Token | WordSpan] | Sequence[RowLabel],
    data: FloatArray,
    decimals: int | None,
) -> Document:
    return {
        "kind": kind,
        "axes": axes,
        "shape": list(data.shape),
        "rows": rows,
        "columns": columns,
        "data": np.ascontiguousarray(data if decimals is None else data.round(decimals) + 0.0),
    }
