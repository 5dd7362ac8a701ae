"""Write the results of /v1/attend. Axes: B sequences, T queries, S keys."""

from typing import Any

import numpy as np

from service.api.reading.attend import AttendRequest, is_regression
from service.arrays import FloatArray, IntArray
from service.errors import Invalid
from service.formats.picture import Picture
from service.formats.plots import draw_attention


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
