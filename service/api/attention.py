"""POST /v1/attention."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Body, Request, Response
from pydantic import BaseModel, Field

from service.api import examples
from service.api.answer_size import (
    SEND_LESS,
    SEND_LESS_OR_LOWER,
    check_attention,
    held_nbytes,
    measure,
)
from service.api.field_types import Sequences, Source
from service.api.requests import AttentionSelection, LanguageRequest, Searching
from service.api.responses import PROBLEMS, AttentionBlock, ModelResponse, describe_files
from service.api.serialize import write_attention
from service.api.steps import (
    TextField,
    count_texts,
    read_pairs,
    read_texts,
    respond,
    submit_and_wait,
    use_model,
)
from service.api.validation import options_size, read_search_options
from service.api.validation_attention import read_selection
from service.api.validation_languages import read_languages
from service.engine.messages import Entry
from service.engine.model import Model
from service.errors import Invalid
from service.formats.json import JSON, Document
from service.formats.writers import SINGLE_SOURCE, WRITERS
from service.http.budget import hold
from service.http.content import negotiate
from service.http.json_route import JsonRoute
from service.http.waiting import compute_reading
from service.search.options import SearchOptions
from service.tokenizer import Tokens

router = APIRouter(responses=PROBLEMS, route_class=JsonRoute)


class AttentionRequest(Searching):
    source: Source
    target: Sequences | None = Field(
        default=None,
        description="Targets to show the attention of, one for each source. An end-of-sequence"
        " token is added to texts; ids are used unchanged. null: decode the sources, with the"
        " search options of this request.",
    )
    attention: AttentionSelection = Field(
        default={},
        validate_default=True,
        description="Which attention weights to return. {} selects all cross-attention.",
    )


class AttentionResult(BaseModel):
    source: str = Field(description="The source as text.")
    target: str = Field(description="The target as text: the one given, or the one decoded.")
    attention: list[AttentionBlock] = Field(description="One block for each requested kind.")


class AttentionAnswer(ModelResponse):
    results: list[AttentionResult] = Field(description="One for each source, in their order.")


@router.post(
    "/v1/attention",
    response_model=AttentionAnswer,
    responses=describe_files(each for each in WRITERS if each != JSON),
    summary="Show attention weights",
    tags=["attention"],
)
async def attention(
    body: Annotated[AttentionRequest, Body(openapi_examples=examples.ATTENTION)],
    request: Request,
) -> Response:
    """Return the attention weights of every source with its target: the target that you send or, if
    you send none, the one that the model decodes.

    The Accept header selects the format:

    - application/json, the default.
    - application/npz (read by numpy.load) and application/safetensors: one array per kind, named
      `{result}.0.{kind}`, for example `0.0.cross`. `meta` is the JSON answer without `data`.
    - image/svg+xml and image/png: heatmaps, for a single source.
    - text/html: an interactive page in one file.
    """
    single = count_texts(body.source) == 1
    offered = [each for each in WRITERS if single or each not in SINGLE_SOURCE]
    what = "the answer is" if single else "answers for several sources are"
    media_type = negotiate(request, offered, what)
    model = use_model(request, body.model)
    selection = read_selection(body.attention, model)
    languages = read_languages(body, model, body.source)
    source = TextField("/source", body.source, languages.source)
    search, sources, targets = await read_body(request, model, body, source)
    nbytes = check_weights(request, model, body, search, sources, targets)
    await hold(request, held_nbytes(nbytes))
    target_ids = [target.ids for target in targets] if targets else [[] for _ in sources]
    entries = [
        Entry(np.array(source.ids), search, ids, selection, language=languages.target_ids)
        for source, ids in zip(sources, target_ids, strict=True)
    ]
    answers = await submit_and_wait(request, model, entries)

    def write() -> Document:
        return write_attention(model, entries, sources, targets, answers)

    return await respond(request, write, answers, media_type)


async def read_body(
    request: Request, model: Model, body: AttentionRequest, source: TextField
) -> tuple[SearchOptions | None, list[Tokens], list[Tokens] | None]:
    """Return the sources with either the search for their targets, or the targets that are given.

    Raise Invalid for search options beside given targets.
    """
    if body.target is None:
        search = await compute_reading(
            request, lambda: read_search_options(body, model), options_size(body)
        )
        return search, await read_texts(request, source), None
    search_fields = Searching.model_fields.keys() - LanguageRequest.model_fields.keys()
    if given := body.model_fields_set & search_fields:
        detail = "has no effect when target is given: omit it, or omit target to decode the sources"
        raise Invalid.at(f"/{min(given)}", detail)
    target = TextField("/target", body.target, model.target)
    sources, targets = await read_pairs(request, source, target)
    return None, sources, targets


def check_weights(
    request: Request,
    model: Model,
    body: AttentionRequest,
    search: SearchOptions | None,
    sources: Sequence[Tokens],
    targets: Sequence[Tokens] | None,
) -> int:
    """Return the bytes of the weights. Raise TooLarge if they could exceed the limit."""
    if search is None:
        target_lengths, prefix, advice = map(len, targets or []), 0, SEND_LESS
    else:
        target_lengths = [search.max_new_tokens] * len(sources)
        prefix, advice = len(search.target_prefix), SEND_LESS_OR_LOWER
    lengths = [
        measure(model, source, length, prefix)
        for source, length in zip(sources, target_lengths, strict=True)
    ]
    return check_attention(request, model, body.attention, lengths, advice)
