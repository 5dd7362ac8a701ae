"""POST /v1/attend: attention over given numbers, without a model."""

import time
from typing import Annotated

from fastapi import APIRouter, Body, Response
from pydantic import BaseModel, Field

from service.api.answering import examples
from service.api.answering.attended import check_finite, picture_of, write_attended
from service.api.answering.responses import PROBLEMS, Matrix, describe_files
from service.api.answering.steps import send
from service.api.reading.answer_size import check_answer_size, held_nbytes
from service.api.reading.attend import (
    AttendRequest,
    attended_nbytes,
    check_heatmaps,
    feeds_of,
)
from service.api.reading.call import Call
from service.api.reading.json_route import JsonRoute
from service.arrays import Feeds
from service.formats.json import JSON, Pieces, to_json_pieces
from service.formats.png import to_png
from service.formats.svg import to_svg
from service.http.middleware.answers import negotiate

PICTURES = {"image/svg+xml": to_svg, "image/png": to_png}

router = APIRouter(responses=PROBLEMS, route_class=JsonRoute)


class AttendAnswer(BaseModel):
    outputs: list[float] | Matrix | list[Matrix] = Field(
        description="For each query the mean of the values, weighted by its attention. Nested like"
        " the values: numbers for numbers, vectors for vectors."
    )
    weights: Matrix | list[Matrix] = Field(
        description="For each query its attention to each key; the weights of a query sum to 1, or"
        " are 0 if it may attend to no key."
    )
    shape: list[int] = Field(description="Shape of `weights`: [sequences,] queries, keys.")


@router.post(
    "/v1/attend",
    response_model=AttendAnswer,
    responses=describe_files(PICTURES),
    summary="Compute attention without a model",
    tags=["attention"],
)
async def attend(
    body: Annotated[AttendRequest, Body(openapi_examples=examples.ATTEND)],
    call: Call,
) -> Response:
    """Compute attention itself: the outputs and the attention weights of the queries over the keys
    and values that you send.

    The answer is JSON or, if the Accept header asks for image/svg+xml or image/png, a picture: a
    heatmap of the weights and, for a regression (numbers, not vectors), a plot of the points and
    the predicted line.
    """
    media_type = negotiate(call, [JSON, *PICTURES])

    feeds = await call.compute_limited(lambda: feeds_of(body))
    if media_type in PICTURES:
        check_heatmaps(len(feeds["queries"]))
    nbytes = attended_nbytes(body.mechanism, feeds)
    limit = call.settings.max_answer_bytes
    check_answer_size(limit, nbytes, fewer_queries(feeds, nbytes, limit))
    await call.hold(held_nbytes(nbytes))

    def work() -> Pieces:
        return compute_answer(body, feeds, call, media_type)

    return send(call, await call.compute_limited(work), media_type)


def fewer_queries(feeds: Feeds, nbytes: int, limit: int) -> str:
    """Return what would fit instead of arrays of `nbytes`."""
    queries = feeds["queries"].shape[1] * limit // nbytes
    fewer = "fewer keys or sequences"
    return f"send at most {queries} queries a sequence, or {fewer}" if queries else f"send {fewer}"


def compute_answer(body: AttendRequest, feeds: Feeds, call: Call, media_type: str) -> Pieces:
    """Return the answer in this media type, and record how long each stage took."""
    record, started = call.record, time.monotonic()
    outputs, weights = call.service.mechanisms.attend(body.mechanism, feeds)
    record.end_stage("attention", started)
    started = time.monotonic()
    check_finite(feeds["valid_lengths"], outputs, weights)
    if media_type in PICTURES:
        pieces: Pieces = [PICTURES[media_type](picture_of(body, outputs, weights))]
    else:
        pieces = to_json_pieces(write_attended(body, outputs, weights))
    record.end_stage("serialize", started)
    return pieces
