"""POST /v1/attend"""

import time
from typing import Annotated

from fastapi import APIRouter, Body, Request, Response

from service.api import examples, responses
from service.api.answer_size import check_size
from service.api.attend_arrays import (
    AttendRequest,
    check_finite,
    check_heatmaps,
    feeds_of,
    nbytes,
    picture_of,
    write_attended,
)
from service.formats.json import JSON, Pieces, to_json_pieces
from service.formats.png import to_png
from service.formats.svg import to_svg
from service.http.content import negotiate, send
from service.http.waiting import compute_limited

ATTENDED = {"image/svg+xml": to_svg, "image/png": to_png}


router = APIRouter(responses=responses.PROBLEMS)


@router.post(
    "/v1/attend",
    response_model=responses.AttendAnswer,
    responses={200: {"content": {form: {} for form in ATTENDED}}},
    summary="Attend without a model",
    tags=["attention"],
)
async def attend(
    body: Annotated[AttendRequest, Body(openapi_examples=examples.ATTEND)],
    request: Request,
) -> Response:
    """Attention itself: outputs and weights of queries over keys and values that you give, as JSON
    or, by the Accept header, as a picture."""
    form = negotiate(request, [JSON, *ATTENDED])
    seconds: dict[str, float] = {}

    def work() -> Pieces:
        feeds = feeds_of(body)
        if form in ATTENDED:
            check_heatmaps(len(feeds["queries"]))
        check_size(request, nbytes(body.mechanism, feeds), "")
        started = time.monotonic()
        attended = request.app.state.mechanisms.attend(body.mechanism, feeds)
        ended = time.monotonic()
        check_finite(feeds["valid_lengths"], *attended)
        if form in ATTENDED:
            pieces: Pieces = [ATTENDED[form](picture_of(body, *attended))]
        else:
            pieces = to_json_pieces(write_attended(body, *attended))
        seconds.update(attention=ended - started, serialize=time.monotonic() - ended)
        return pieces

    return send(request, await compute_limited(request, work), seconds, form)
