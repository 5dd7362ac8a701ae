"""The answer of /v1/attribution, and its writer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from service.api.answering import responses
from service.arrays import FloatArray
from service.formats.json import Document
from service.occlusion import Pair, first_difference, leads, losses, source_shares
from service.serving.model import Model
from service.text.tokenizer import Token
from service.wire import Answer

WHOLE = "whole target"


class SourceWord(responses.Word):
    tokens: list[int] = Field(description="Its tokens in the source, counted from 0.")


class Row(BaseModel):
    text: str = Field(description="What the lead is of.")


class AttributionBlock(BaseModel):
    kind: Literal["target", "contrast"] = Field(
        description="target: the log-prob that each generated token loses. contrast: how much of"
        " its lead over the foil the target loses, in two rows: for the first token that differs,"
        " and for the whole target."
    )
    axes: list[str] = Field(description="Names of the axes of `data`.")
    shape: list[int] = Field(description="Shape of `data`.")
    rows: list[responses.Token] | list[Row] = Field(description="What loses.")
    columns: list[responses.Token] | list[SourceWord] = Field(
        description="The tokens or words of the source, each of which is replaced in turn."
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
    source_share: list[float] = Field(
        description="How much each of these tokens depends on the source, from 0 to 1: the part of"
        " its probability that it loses if all tokens of the source are replaced."
    )
    contrast: Foil | None = Field(default=None, description="The foil. Absent unless given.")
    attribution: list[AttributionBlock] = Field(
        description="A block of the kind target and, with a foil, one of the kind contrast."
    )


class Replacement(BaseModel):
    token: str = Field(description="The token as written in the vocabulary of sources.")
    id: int = Field(description="Its id in the vocabulary.")


class AttributionAnswer(responses.ModelResponse):
    replacement: Replacement = Field(description="The token that replaces others.")
    results: list[AttributionResult | responses.FailedResult] = Field(
        description="One for each source, in their order."
    )


@dataclass(frozen=True, slots=True)
class Label:
    """The label of a row that is not a token."""

    text: str


def write_attribution(
    model: Model,
    replacement: int,
    decimals: int | None,
    answered: Sequence[tuple[Pair, Sequence[Answer]]],
) -> Document:
    """Return the answer, given each pair with the answers to all its rows."""
    token = {"token": model.source.name(replacement), "id": replacement}
    results = [
        write_result(pair, log_probs_of(pair, answers), decimals) for pair, answers in answered
    ]
    return {"model": model.name, "replacement": token, "results": results}


def log_probs_of(pair: Pair, answers: Sequence[Answer]) -> list[FloatArray]:
    """Return the log-probs of the target, and of the foil if any, in all rows: (N + 2, T) each."""
    scored = [each.log_probs for each in answers if each.log_probs is not None]
    return [
        np.stack(scored[start : start + pair.rows]) for start in range(0, len(scored), pair.rows)
    ]


def write_result(pair: Pair, log_probs: Sequence[FloatArray], decimals: int | None) -> Document:
    generated = log_probs[0][:, pair.prefix :]
    result: dict[str, Any] = {
        "source": pair.source.text,
        "target": pair.target.text,
        "log_probs": generated[0],
        "source_share": source_shares(generated),
    }
    rows = pair.target.tokens[pair.prefix :]
    blocks = [write_block(pair, "target", rows, losses(generated), decimals)]
    if pair.foil:
        first = first_difference(pair.target.ids, pair.foil.ids)
        lead = leads(log_probs[0], log_probs[1], first)
        result["contrast"] = {
            "target": pair.foil.text,
            "log_probs": log_probs[1][0],
            "first": first,
            "lead": lead[:, 0].tolist(),
        }
        block = write_block(pair, "contrast", labels(pair, first), losses(lead.T), decimals)
        blocks.append(block)
    return {**result, "attribution": blocks}


def labels(pair: Pair, first: int | None) -> list[Label]:
    """Return the label of the first tokens that differ, such as "EH1, not IY1", and WHOLE."""
    if first is None:
        return [Label("no token differs"), Label(WHOLE)]
    names = [each.tokens[first].text if first < len(each) else "nothing" for each in pair.targets]
    return [Label(", not ".join(names)), Label(WHOLE)]


def write_block(
    pair: Pair,
    kind: Literal["target", "contrast"],
    rows: Sequence[Token] | Sequence[Label],
    data: FloatArray,
    decimals: int | None,
) -> Document:
    return {
        "kind": kind,
        "axes": [kind, "source"],
        "shape": list(data.shape),
        "rows": rows,
        "columns": pair.parts.labels,
        "data": np.ascontiguousarray(data if decimals is None else data.round(decimals) + 0.0),
    }
