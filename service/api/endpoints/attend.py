"""POST /v1/attend: attention over given numbers, without a model.

Axes: B sequences, T queries, S keys.
"""

import time
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Body, Response
from pydantic import BaseModel, Field

from service.api.answering.examples import Examples
from service.api.answering.respond import send
from service.api.answering.responses import PROBLEMS, Matrix, describe_files
from service.api.endpoints.attend_body import (
    AttendRequest,
    attended_nbytes,
    check_heatmaps,
    feeds_of,
    is_regression,
)
from service.api.reading.answer_size import check_answer_size, held_nbytes
from service.api.reading.call import Call
from service.api.reading.json_route import JsonRoute
from service.arrays import Feeds, FloatArray, IntArray
from service.errors import Invalid
from service.formats.json import JSON, Piece, to_json_line
from service.formats.picture import Picture
from service.formats.plots import draw_attention
from service.formats.png import to_png
from service.formats.svg import to_svg
from service.http.middleware.answers import negotiate

PICTURES = {"image/svg+xml": to_svg, "image/png": to_png}

router = APIRouter(responses=PROBLEMS, route_class=JsonRoute)


def regression_points() -> tuple[list[float], list[float]]:
    """Return 50 noisy points of y = 2 sin x + x^0.8 on [0, 5), for regressions by attention."""
    random = np.random.default_rng(0)
    x = np.sort(random.uniform(0, 5, 50)).round(2)
    y = (2 * np.sin(x) + x**0.8 + random.normal(0, 0.5, 50)).round(2)
    return x.tolist(), y.tolist()


X, Y = regression_points()
QUERIES = np.arange(0, 5, 0.1).round(1)
TRUTH = (2 * np.sin(QUERIES) + QUERIES**0.8).round(2)
REGRESSION = {"queries": QUERIES.tolist(), "keys": X, "values": Y, "truth": TRUTH.tolist()}
LEARNED_WIDTH = 2.75  # after five epochs; tests/model/export/test_mechanisms.py learns it

EXAMPLES: Examples = {
    "average": {
        "summary": "Regression of 50 points: their mean",
        "value": {"mechanism": "average", **REGRESSION},
    },
    "gaussian": {
        "summary": "Regression of 50 points: Gaussian kernel (Nadaraya-Watson)",
        "value": {"mechanism": "gaussian", **REGRESSION},
    },
    "learned": {
        "summary": "Regression of 50 points: Gaussian kernel, width learned in five epochs",
        "value": {"mechanism": "gaussian", "width": LEARNED_WIDTH, **REGRESSION},
    },
    "scaled_dot_product": {
        "summary": "Regression of 50 points: scaled dot products",
        "value": {"mechanism": "scaled_dot_product", **REGRESSION},
    },
    "additive": {
        "summary": "Regression of 50 points: additive attention, 2 hidden units",
        "value": {
            "mechanism": "additive",
            "weights": {"query": [[1.0], [-1.0]], "key": [[-1.0], [1.0]], "score": [-2.0, -1.0]},
            **REGRESSION,
        },
    },
    "masked": {
        "summary": "Two sequences, which see their first 2 and first 3 keys",
        "value": {
            "mechanism": "scaled_dot_product",
            "queries": [[[1.0, 0.0]], [[0.0, 1.0]]],
            "keys": [[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]]] * 2,
            "values": [[[1.0], [2.0], [3.0], [4.0]]] * 2,
            "valid_lengths": [2, 3],
        },
    },
}


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
    body: Annotated[AttendRequest, Body(openapi_examples=EXAMPLES)], call: Call
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

    def work() -> list[Piece]:
        return compute_answer(body, feeds, call, media_type)

    return send(call, await call.compute_limited(work), media_type)


def fewer_queries(feeds: Feeds, nbytes: int, limit: int) -> str:
    """Return what would fit instead of arrays of `nbytes`."""
    queries = feeds["queries"].shape[1] * limit // nbytes
    fewer = "fewer keys or sequences"
    return f"send at most {queries} queries a sequence, or {fewer}" if queries else f"send {fewer}"


def compute_answer(body: AttendRequest, feeds: Feeds, call: Call, media_type: str) -> list[Piece]:
    """Return the answer in this media type, and record how long each stage took."""
    started = time.monotonic()
    outputs, weights = call.service.mechanisms.attend(body.mechanism, feeds)
    call.end_stage("attention", started)
    started = time.monotonic()
    check_finite(feeds["valid_lengths"], outputs, weights)
    if media_type in PICTURES:
        pieces: list[Piece] = [PICTURES[media_type](picture_of(body, outputs, weights))]
    else:
        pieces = [*to_json_line(write_attended(body, outputs, weights))]
    call.end_stage("serialize", started)
    return pieces


def check_finite(lengths: IntArray, outputs: FloatArray, weights: FloatArray) -> None:
    """Raise Invalid if scores or outputs left the range of float32.

    The signs are numbers that are not finite, and weights that do not sum to 1 although their query
    has keys.
    """
    sums = np.abs(weights.sum(-1) - (lengths > 0)) < 0.01
    if not (np.isfinite(outputs).all() and np.isfinite(weights).all() and sums.all()):
        raise Invalid("scores or outputs exceed the range of a float32: send smaller numbers")


def picture_of(body: AttendRequest, outputs: FloatArray, weights: FloatArray) -> Picture:
    """Return a heatmap for each sequence; for a regression also a plot of points and lines."""
    nothing = np.zeros((2, 0))
    if not is_regression(body):
        return draw_attention(weights, nothing, nothing, nothing)
    order = np.argsort(body.queries)
    prediction = np.array([body.queries, outputs.ravel()])[:, order]
    truth = nothing if body.truth is None else np.array([body.queries, body.truth])[:, order]
    return draw_attention(weights, np.array([body.keys, body.values]), prediction, truth)


def write_attended(body: AttendRequest, outputs: FloatArray, weights: FloatArray) -> dict[str, Any]:
    """Return the answer, nested like the request.

    Outputs are numbers if the values are, and there is no axis of sequences if the request has
    none.
    """
    if not isinstance(body.values[0], list):
        outputs = outputs[..., 0]
    if not isinstance(body.queries[0], list) or not isinstance(body.queries[0][0], list):
        outputs, weights = outputs[0], weights[0]
    arrays = {"outputs": np.ascontiguousarray(outputs), "weights": np.ascontiguousarray(weights)}
    return {**arrays, "shape": list(weights.shape)}
