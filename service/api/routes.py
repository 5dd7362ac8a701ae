"""The paths of POST /v1/decode, /v1/score, /v1/attention and /v1/attribution.

The files of these endpoints do without FastAPI, since commands answer by them: it takes longer to
import than `heed decode` takes to decode a word.
"""

from typing import Any

from fastapi import APIRouter

from service.api.answering.attributed import AttributionAnswer
from service.api.answering.decode_answer import EVENT_SCHEMA, DecodeAnswer
from service.api.answering.examples import Examples
from service.api.answering.responses import PROBLEMS, describe_files
from service.api.answering.stream import EVENT_STREAM
from service.api.endpoints import attention, attribution, decode, score
from service.api.reading.json_route import JsonRoute
from service.formats.json import JSON
from service.formats.writers import WRITERS

router = APIRouter(responses=PROBLEMS, route_class=JsonRoute)


def show(examples: Examples) -> dict[str, Any]:
    """Return what an OpenAPI document says of a body with these examples."""
    return {"requestBody": {"content": {JSON: {"examples": examples}}}}


router.post(
    "/v1/decode",
    response_model=DecodeAnswer,
    responses={200: {"content": {EVENT_STREAM: {"schema": EVENT_SCHEMA}}}},
    summary="Decode sources into targets",
    tags=["models"],
    openapi_extra=show(decode.EXAMPLES),
)(decode.decode)
router.post(
    "/v1/score",
    response_model=score.ScoreAnswer,
    summary="Score targets",
    tags=["models"],
    openapi_extra=show(score.EXAMPLES),
)(score.score)
router.post(
    "/v1/attention",
    response_model=attention.AttentionAnswer,
    responses=describe_files(each for each in WRITERS if each != JSON),
    summary="Show attention weights",
    tags=["attention"],
    openapi_extra=show(attention.EXAMPLES),
)(attention.attention)
router.post(
    "/v1/attribution",
    response_model=AttributionAnswer,
    responses=describe_files(each for each in attribution.FORMATS if each != JSON),
    summary="Show what a target depends on",
    tags=["attention"],
    openapi_extra=show(attribution.EXAMPLES),
)(attribution.attribution)
