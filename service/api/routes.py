"""The routes of POST /v1/decode, /v1/score, /v1/attention and /v1/attribution.

They are apart from what these endpoints do, which commands do as well: FastAPI takes longer to
import than `heed decode` takes to decode a word.
"""

from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Body, Response

from service.api.answering.attributed import AttributionAnswer
from service.api.answering.decode_answer import EVENT_SCHEMA, DecodeAnswer
from service.api.answering.respond import respond
from service.api.answering.responses import PROBLEMS, describe_files
from service.api.answering.stream import EVENT_STREAM, Stream
from service.api.endpoints.attention import EXAMPLES as ATTENTION_EXAMPLES
from service.api.endpoints.attention import (
    AttentionAnswer,
    AttentionRequest,
    run_attention,
)
from service.api.endpoints.attribution import EXAMPLES as ATTRIBUTION_EXAMPLES
from service.api.endpoints.attribution import FORMATS, AttributionRequest, run_attribution
from service.api.endpoints.decode import EXAMPLES as DECODE_EXAMPLES
from service.api.endpoints.decode import DecodeRequest, prepare, run_decode
from service.api.endpoints.score import EXAMPLES as SCORE_EXAMPLES
from service.api.endpoints.score import ScoreAnswer, ScoreRequest, run_score
from service.api.reading.call import Call
from service.api.reading.json_route import JsonRoute
from service.api.reading.texts import count_texts
from service.formats.json import JSON
from service.formats.writers import SINGLE_SOURCE, WRITERS
from service.http.middleware.answers import negotiate

router = APIRouter(responses=PROBLEMS, route_class=JsonRoute)


@router.post(
    "/v1/decode",
    response_model=DecodeAnswer,
    responses={200: {"content": {EVENT_STREAM: {"schema": EVENT_SCHEMA}}}},
    summary="Decode sources into targets",
    tags=["models"],
)
async def decode(
    body: Annotated[DecodeRequest, Body(openapi_examples=DECODE_EXAMPLES)],
    call: Call,
) -> Response:
    """Generate a target for every source, by greedy search, beam search or sampling, and optionally
    return the attention weights of each target.

    With `stream`, the answer is a stream of server-sent events, whose data is JSON:

    - `token`, for greedy search and sampling: a StreamedToken. The texts of a hypothesis, joined,
      are its whole text.
    - `beam`, for beam search: a StreamedBeam, which replaces the one before.
    - `done`, at the end: the complete answer, as without `stream`.
    - `error`, at the end if something failed: a problem document.

    With `partial`, `done` holds the problems of the sources that failed.

    Comments are sent now and then to keep the connection open.
    """
    negotiate(call, [EVENT_STREAM, JSON] if body.stream else [JSON])
    if body.stream:
        return await Stream(call, *await prepare(body, call)).respond()
    return await respond(call, await run_decode(body, call))


@router.post(
    "/v1/score",
    response_model=ScoreAnswer,
    summary="Score targets",
    tags=["models"],
)
async def score(
    body: Annotated[ScoreRequest, Body(openapi_examples=SCORE_EXAMPLES)],
    call: Call,
) -> Response:
    """Return how probable each target is for its source: the log-probability of every token, given
    the source and the tokens before it."""
    negotiate(call, [JSON])
    return await respond(call, await run_score(body, call))


@router.post(
    "/v1/attention",
    response_model=AttentionAnswer,
    responses=describe_files(each for each in WRITERS if each != JSON),
    summary="Show attention weights",
    tags=["attention"],
)
async def attention(
    body: Annotated[AttentionRequest, Body(openapi_examples=ATTENTION_EXAMPLES)],
    call: Call,
) -> Response:
    """Return the attention weights of every source with its target: the target that you send or, if
    you send none, the one that the model decodes.

    The Accept header selects the format:

    - application/json, the default.
    - application/npz (read by numpy.load) and application/safetensors: one array per kind, named
      `{result}.0.{kind}`, for example `0.0.cross`. `meta` is the JSON answer without `data`.
    - image/svg+xml and image/png: heatmaps, for a single source.
    - text/html: an interactive page in one file.

    With `partial` the answer is always JSON.
    """
    media_type = negotiate_format(call, count_texts(body.source), body.partial)
    return await respond(call, await run_attention(body, call), media_type)


@router.post(
    "/v1/attribution",
    response_model=AttributionAnswer,
    responses=describe_files(each for each in FORMATS if each != JSON),
    summary="Show what a target depends on",
    tags=["attention"],
)
async def attribution(
    body: Annotated[AttributionRequest, Body(openapi_examples=ATTRIBUTION_EXAMPLES)],
    call: Call,
) -> Response:
    """Replace each token or word of the source in turn by the unknown token, and return how much
    log-prob each token of the target loses (occlusion). The target is the one that you send or, if
    you send none, the one that the model decodes.

    With `of` heads, switch off each attention head instead.

    The source share says how much of a token's probability depends on the source at all. Near 0 the
    model speaks without reading, as when it hallucinates.

    The Accept header selects the format:

    - application/json, the default.
    - application/npz (read by numpy.load) and application/safetensors: an array for each block,
      `{result}.0.target` and `{result}.0.contrast`; with `of` heads `{result}.0.encoder`,
      `{result}.0.decoder` and `{result}.0.cross`. `meta` is the JSON answer without `data`.
    - image/svg+xml and image/png: heatmaps, for a single source.

    With `partial` the answer is always JSON.
    """
    media_type = negotiate_format(call, count_texts(body.source), body.partial, FORMATS)
    return await respond(call, await run_attribution(body, call), media_type)


def negotiate_format(
    call: Call, sources: int, partial: bool, formats: Iterable[str] = WRITERS
) -> str:
    """Return the media type of the answer. Only JSON can hold problems, and pictures one source."""
    if partial:
        return negotiate(call, [JSON], "with partial the answer is")
    single = sources == 1
    offered = [each for each in formats if single or each not in SINGLE_SOURCE]
    what = "the answer is" if single else "answers for several sources are"
    return negotiate(call, offered, what)
