"""Attention without a model: what is sent, as arrays whose shapes agree, and back.

Axes: B sequences, T queries, S keys, D and E widths of queries and keys, V width of values.
"""

from itertools import chain
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag

from service.api.requests import Strict
from service.arrays import Feeds, FloatArray, IntArray
from service.errors import Invalid, NotAcceptable
from service.formats.picture import Picture
from service.formats.plots import draw_attention

MOST_HEATMAPS = 4


def depth_variant(value: Any) -> str | None:
    names = ["as numbers", "as vectors", "as sequences"]
    for name in names:
        if not isinstance(value, list) or not value:
            return None
        value = value[0]
        if not isinstance(value, list):
            return name
    return None


Finite = Annotated[float, Field(allow_inf_nan=False)]
Row = Annotated[list[Finite], Field(min_length=1, fail_fast=True)]
Rows = Annotated[list[Row], Field(min_length=1, fail_fast=True)]
Numbers = Annotated[
    Annotated[Row, Tag("as numbers")]
    | Annotated[Rows, Tag("as vectors")]
    | Annotated[list[Rows], Field(min_length=1, fail_fast=True), Tag("as sequences")],
    Discriminator(
        depth_variant,
        custom_error_type="numbers",
        custom_error_message="Input should be a list of numbers, of vectors, or of sequences of"
        " vectors, none of them empty",
    ),
]
Length = Annotated[int, Field(ge=0, le=1 << 31)]
Lengths = Annotated[
    Annotated[list[Length], Field(fail_fast=True), Tag("as numbers")]
    | Annotated[
        list[Annotated[list[Length], Field(min_length=1, fail_fast=True)]], Tag("as vectors")
    ],
    Discriminator(
        depth_variant,
        custom_error_type="lengths",
        custom_error_message="Input should be a list of integers, or of lists of integers",
    ),
]


class AdditiveWeights(Strict):
    query: Rows = Field(description="W_q, hidden x width of a query")
    key: Rows = Field(description="W_k, hidden x width of a key")
    score: Row = Field(description="w, hidden")


class AttendRequest(Strict):
    mechanism: Literal["average", "gaussian", "scaled_dot_product", "additive"] = Field(
        description="how a query scores a key: all the same; -|width (q - k)|^2 / 2;"
        " q . k / sqrt(d); w . tanh(W_q q + W_k k)"
    )
    queries: Numbers = Field(description="numbers, vectors, or sequences of vectors")
    keys: Numbers = Field(description="numbers, vectors, or sequences of vectors")
    values: Numbers = Field(description="one for each key")
    valid_lengths: Lengths | None = Field(
        default=None, description="how many keys are seen: one a sequence, or one a query"
    )
    causal: bool = Field(default=False, description="query i sees keys 0 to i")
    width: Finite | None = Field(default=None, description="of the Gaussian's inverse; 1 if absent")
    weights: AdditiveWeights | None = Field(default=None, description="of additive attention")
    truth: Row | None = Field(
        default=None,
        description="what numbers should come out: drawn beside the outputs",
    )


def feeds_of(body: AttendRequest) -> Feeds:
    """What the mechanism's graph takes: queries (B, T, D), keys (B, S, E), values (B, S, V),
    valid_lengths (B, T) and its parameters. Raises Invalid naming shapes that do not agree."""
    queries = array_of(body.queries, "/queries")
    keys = array_of(body.keys, "/keys")
    values = array_of(body.values, "/values")
    if not len(queries) == len(keys) == len(values):
        shapes = f"{queries.shape}, /keys {keys.shape} and /values {values.shape}"
        raise Invalid.at("/queries", f"have shape {shapes}; give as many sequences each")
    if keys.shape[1] != values.shape[1]:
        shapes = f"{values.shape} and /keys {keys.shape}"
        raise Invalid.at("/values", f"have shape {shapes}; give one for each key")
    feeds: Feeds = {"queries": queries, "keys": keys, "values": values}
    feeds["valid_lengths"] = lengths_of(body, len(queries), queries.shape[1], keys.shape[1])
    check_truth(body, queries.shape[1])
    return feeds | parameters_of(body, queries.shape[2], keys.shape[2])


def check_truth(body: AttendRequest, queries: int) -> None:
    if body.truth is None:
        return
    if not is_regression(body):
        raise Invalid.at("/truth", "is of regressions: queries, keys and values must be numbers")
    if len(rectangle(body.truth, np.float32, "/truth")) != queries:
        counts = f"{len(body.truth)} for {queries} queries"
        raise Invalid.at("/truth", f"has {counts}; give one for each")


def is_regression(body: AttendRequest) -> bool:
    """Numbers to numbers."""
    return not any(isinstance(each[0], list) for each in (body.queries, body.keys, body.values))


def array_of(numbers: Numbers, pointer: str) -> FloatArray:
    """Numbers are vectors of width 1, and vectors alone are one sequence -> (B, N, D)."""
    array = rectangle(numbers, np.float32, pointer)
    if array.ndim == 1:
        return array[None, :, None]
    return array if array.ndim == 3 else array[None]


def rectangle(numbers: Any, dtype: type[np.generic], pointer: str) -> NDArray[Any]:
    """Raises Invalid naming both lengths where lists differ, and numbers beyond float32."""
    check_lengths(numbers, pointer)
    with np.errstate(over="ignore"):
        array = np.array(numbers, dtype)
    if not np.isfinite(array).all():
        raise Invalid.at(pointer, "must hold only numbers that fit a float32")
    return array


def check_lengths(lists: Any, pointer: str) -> None:
    while isinstance(lists[0], list):
        for i, each in enumerate(lists):
            if len(each) != len(lists[0]):
                lengths = f"has length {len(each)} where the first has {len(lists[0])}"
                raise Invalid.at(f"{pointer}/{i}", f"{lengths}; give lists of equal lengths")
        lists = list(chain.from_iterable(lists))


def lengths_of(body: AttendRequest, sequences: int, queries: int, keys: int) -> IntArray:
    """How many keys each query sees, (B, T)."""
    lengths = np.full((sequences, queries), keys)
    if body.valid_lengths is not None:
        given = rectangle(body.valid_lengths, np.int64, "/valid_lengths")
        if given.shape not in ((sequences,), (sequences, queries)):
            raise Invalid.at(
                "/valid_lengths",
                f"has shape {given.shape}; give one a sequence, ({sequences},), or one a query,"
                f" ({sequences}, {queries})",
            )
        if given.max() > keys:
            raise Invalid.at("/valid_lengths", f"holds {given.max()}, but there are {keys} keys")
        lengths[:] = given if given.ndim == 2 else given[:, None]
    return np.minimum(lengths, np.arange(1, queries + 1)) if body.causal else lengths


def parameters_of(body: AttendRequest, query_width: int, key_width: int) -> Feeds:
    """What the mechanism has besides queries, keys and values; nothing it has not."""
    if body.width is not None and body.mechanism != "gaussian":
        raise Invalid.at("/width", f"means nothing to {body.mechanism}: only gaussian has one")
    if body.weights is not None and body.mechanism != "additive":
        raise Invalid.at("/weights", f"mean nothing to {body.mechanism}: only additive has some")
    if body.mechanism in ("gaussian", "scaled_dot_product") and query_width != key_width:
        widths = f"queries of width {query_width} and keys of width {key_width}"
        raise Invalid.at("/keys", f"{body.mechanism} cannot compare {widths}; additive can")
    if body.mechanism == "gaussian":
        width = 1.0 if body.width is None else body.width
        return {"width": rectangle([width], np.float32, "/width")}
    if body.mechanism != "additive":
        return {}
    if body.weights is None:
        raise Invalid.at("/weights", "is required: additive attention has no sensible default")
    query = rectangle(body.weights.query, np.float32, "/weights/query")
    key = rectangle(body.weights.key, np.float32, "/weights/key")
    score = rectangle(body.weights.score, np.float32, "/weights/score")
    hidden = len(score)
    if (query.shape, key.shape) != ((hidden, query_width), (hidden, key_width)):
        raise Invalid.at(
            "/weights",
            f"has query {query.shape}, key {key.shape} and score {score.shape}; with this score"
            f" the others must be ({hidden}, {query_width}) and ({hidden}, {key_width})",
        )
    return {"query_weight": query, "key_weight": key, "score_weight": score}


def nbytes(mechanism: str, feeds: Feeds) -> int:
    """Of the largest arrays an answer takes: the weights, the outputs and, where the mechanism
    compares vectors in every pair, the differences or sums of all queries and keys."""
    sequences, queries, width = feeds["queries"].shape
    keys, value_width = feeds["values"].shape[1:]
    if mechanism == "additive":
        width = len(feeds["score_weight"])
    vectors = width if mechanism in ("additive", "gaussian") else 0
    return 4 * sequences * queries * (keys * (vectors + 1) + value_width)


def check_finite(lengths: IntArray, outputs: FloatArray, weights: FloatArray) -> None:
    """Raises Invalid where scores or outputs left the range of a float32: then they are not finite,
    or a query that sees keys has weights that do not sum to 1."""
    sums = np.abs(weights.sum(-1) - (lengths > 0)) < 0.01
    if not (np.isfinite(outputs).all() and np.isfinite(weights).all() and sums.all()):
        raise Invalid("scores or outputs exceed what a float32 holds; send smaller numbers")


def check_heatmaps(sequences: int) -> None:
    """Raises NotAcceptable for more sequences than a picture takes."""
    if sequences > MOST_HEATMAPS:
        raise NotAcceptable(
            f"a picture takes {MOST_HEATMAPS} sequences, there are {sequences}:"
            " application/json takes more"
        )


def picture_of(body: AttendRequest, outputs: FloatArray, weights: FloatArray) -> Picture:
    """A heatmap a sequence; of a regression also the line plot."""
    nothing = np.zeros((2, 0))
    if not is_regression(body):
        return draw_attention(weights, nothing, nothing, nothing)
    order = np.argsort(body.queries)
    prediction = np.array([body.queries, outputs.ravel()])[:, order]
    truth = nothing if body.truth is None else np.array([body.queries, body.truth])[:, order]
    return draw_attention(weights, np.array([body.keys, body.values]), prediction, truth)


def write_attended(body: AttendRequest, outputs: FloatArray, weights: FloatArray) -> dict[str, Any]:
    """As deep as they were asked: numbers for numbers, one sequence for one sequence."""
    if not isinstance(body.values[0], list):
        outputs = outputs[..., 0]
    if not isinstance(body.queries[0], list) or not isinstance(body.queries[0][0], list):
        outputs, weights = outputs[0], weights[0]
    arrays = {"outputs": np.ascontiguousarray(outputs), "weights": np.ascontiguousarray(weights)}
    return {**arrays, "shape": list(weights.shape)}
