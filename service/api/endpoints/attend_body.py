"""The request of /v1/attend: its fields, its arrays and their shapes.

Axes: B sequences, T queries of D numbers, S keys of E numbers, S values of V numbers.
"""

from itertools import chain
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, Tag

from service.api.reading.field_types import Strict, by_form
from service.arrays import Feeds, FloatArray, IntArray
from service.errors import Invalid, NotAcceptable

MOST_HEATMAPS = 4


def depth_variant(value: Any) -> str | None:
    """Return the tag of lists nested one, two or three deep; None for empty or deeper ones."""
    names = ["as numbers", "as vectors", "as sequences"]
    for name in names:
        if not isinstance(value, list) or not value:
            return None
        value = value[0]
        if not isinstance(value, list):
            return name
    return None


Finite = Annotated[float, Field(allow_inf_nan=False)]
Vector = Annotated[list[Finite], Field(min_length=1, fail_fast=True)]
Vectors = Annotated[list[Vector], Field(min_length=1, fail_fast=True)]
Numbers = Annotated[
    Annotated[Vector, Tag("as numbers")]
    | Annotated[Vectors, Tag("as vectors")]
    | Annotated[list[Vectors], Field(min_length=1, fail_fast=True), Tag("as sequences")],
    by_form(
        depth_variant,
        "a list of numbers, of vectors, or of sequences of vectors, none of them empty",
    ),
]
Length = Annotated[int, Field(ge=0, le=1 << 31)]
ValidLengths = Annotated[
    Annotated[list[Length], Field(fail_fast=True), Tag("as numbers")]
    | Annotated[
        list[Annotated[list[Length], Field(min_length=1, fail_fast=True)]], Tag("as vectors")
    ],
    by_form(depth_variant, "a list of integers, or of lists of integers"),
]


class AdditiveWeights(Strict):
    query: Vectors = Field(
        examples=[[[0.5, 1.0]]],
        description="Matrix W_q, with shape (hidden, numbers in a query).",
    )
    key: Vectors = Field(
        examples=[[[0.5, 1.0]]], description="Matrix W_k, with shape (hidden, numbers in a key)."
    )
    score: Vector = Field(examples=[[1.0]], description="Vector w, with `hidden` numbers.")


class AttendRequest(Strict):
    mechanism: Literal["average", "gaussian", "scaled_dot_product", "additive"] = Field(
        description="How a query q scores a key k before the softmax. average: all keys alike;"
        " gaussian: -|width (q - k)|^2 / 2; scaled_dot_product: q . k / sqrt(d), where d is the"
        " length of q; additive: w . tanh(W_q q + W_k k)."
    )
    queries: Numbers = Field(
        description="The queries: a list of numbers, of vectors, or of sequences of vectors."
    )
    keys: Numbers = Field(
        description="The keys: a list of numbers, of vectors, or of sequences of vectors."
    )
    values: Numbers = Field(
        description="The values, one for each key: a list of numbers, of vectors, or of sequences"
        " of vectors."
    )
    valid_lengths: ValidLengths | None = Field(
        default=None,
        description="How many of the first keys may be attended to: one number per sequence, or a"
        " list per sequence with one number per query. null: all keys.",
    )
    causal: bool = Field(
        default=False, description="Let query i attend only to keys 0 to i, as in a decoder."
    )
    width: Finite | None = Field(
        default=None,
        description="For gaussian: the factor of the distance; a larger one narrows the kernel."
        " null: 1.",
    )
    weights: AdditiveWeights | None = Field(
        default=None, description="For additive, which requires them: the learned parameters."
    )
    truth: Vector | None = Field(
        default=None,
        examples=[[0.5, 1.0]],
        description="For queries, keys and values that are numbers: the expected output of each"
        " query, drawn with the outputs in a picture.",
    )


def feeds_of(body: AttendRequest) -> Feeds:
    """Return the inputs of the mechanism's graph: queries (B, T, D), keys (B, S, E), values
    (B, S, V), valid_lengths (B, T) and the parameters of the mechanism.

    Raise Invalid, naming the shapes, if they do not agree.
    """
    queries = array_of(body.queries, "/queries")
    keys = array_of(body.keys, "/keys")
    values = array_of(body.values, "/values")
    if not len(queries) == len(keys) == len(values):
        counts = f"{len(queries)} sequences, /keys {len(keys)} and /values {len(values)}"
        raise Invalid.at("/queries", f"hold {counts}: give the same number in each")
    if keys.shape[1] != values.shape[1]:
        shapes = f"{values.shape} and /keys {keys.shape}"
        raise Invalid.at("/values", f"have shape {shapes}: give one value for each key")
    check_truth(body, queries.shape[1])
    return {
        "queries": queries,
        "keys": keys,
        "values": values,
        "valid_lengths": valid_lengths_of(body, len(queries), queries.shape[1], keys.shape[1]),
        **parameters_of(body, queries.shape[2], keys.shape[2]),
    }


def check_truth(body: AttendRequest, queries: int) -> None:
    if body.truth is None:
        return
    if not is_regression(body):
        detail = (
            "has an effect only on a regression: send numbers as queries, keys and values, or"
            " omit truth"
        )
        raise Invalid.at("/truth", detail)
    if len(array_from(body.truth, np.float32, "/truth")) != queries:
        detail = f"has {len(body.truth)} numbers for {queries} queries: give one for each"
        raise Invalid.at("/truth", detail)


def is_regression(body: AttendRequest) -> bool:
    """Return whether queries, keys and values are numbers rather than vectors."""
    return not any(isinstance(each[0], list) for each in (body.queries, body.keys, body.values))


def array_of(numbers: Numbers, pointer: str) -> FloatArray:
    """Return numbers, vectors or sequences of vectors as an array (B, N, D).

    Numbers have D = 1; numbers and vectors have B = 1.
    """
    array = array_from(numbers, np.float32, pointer)
    if array.ndim == 1:
        return array[None, :, None]
    return array if array.ndim == 3 else array[None]


def array_from(lists: Any, dtype: type[np.generic], pointer: str) -> NDArray[Any]:
    """Return nested lists as an array. Raise Invalid for lists of different lengths, and for
    numbers too large for float32."""
    check_equal_lengths(lists, pointer)
    with np.errstate(over="ignore"):
        array = np.array(lists, dtype)
    if not np.isfinite(array).all():
        raise Invalid.at(pointer, "must hold only numbers that fit a float32")
    return array


def check_equal_lengths(lists: Any, pointer: str) -> None:
    """Raise Invalid naming the first list that is not as long as the first of its level."""
    shape = [len(lists)]
    while isinstance(lists[0], list):
        for i, each in enumerate(lists):
            if len(each) != len(lists[0]):
                place = "".join(f"/{axis}" for axis in np.unravel_index(i, shape))
                first = pointer + "/0" * len(shape)
                lengths = f"has length {len(each)} but {first} has length {len(lists[0])}"
                raise Invalid.at(pointer + place, f"{lengths}: give lists of equal lengths")
        shape.append(len(lists[0]))
        lists = list(chain.from_iterable(lists))


def valid_lengths_of(body: AttendRequest, sequences: int, queries: int, keys: int) -> IntArray:
    """Return how many keys each query may attend to, (B, T)."""
    lengths = np.full((sequences, queries), keys)
    if body.valid_lengths is not None:
        given = array_from(body.valid_lengths, np.int64, "/valid_lengths")
        if given.shape not in ((sequences,), (sequences, queries)):
            raise Invalid.at(
                "/valid_lengths",
                f"has shape {given.shape}: give one number per sequence, shape ({sequences},), or"
                f" one per query, shape ({sequences}, {queries})",
            )
        if given.max() > keys:
            detail = f"holds {given.max()} but there are {keys} keys: give 0 to {keys}"
            raise Invalid.at("/valid_lengths", detail)
        lengths[:] = given if given.ndim == 2 else given[:, None]
    return np.minimum(lengths, np.arange(1, queries + 1)) if body.causal else lengths


def parameters_of(body: AttendRequest, query_size: int, key_size: int) -> Feeds:
    """Return the parameters of the mechanism; empty if it has none.

    Raise Invalid for parameters of another mechanism, and for vectors it cannot compare.
    """
    if body.width is not None and body.mechanism != "gaussian":
        detail = f"has no effect on {body.mechanism}: omit it, or set mechanism to gaussian"
        raise Invalid.at("/width", detail)
    if body.weights is not None and body.mechanism != "additive":
        detail = f"have no effect on {body.mechanism}: omit them, or set mechanism to additive"
        raise Invalid.at("/weights", detail)
    if body.mechanism in ("gaussian", "scaled_dot_product") and query_size != key_size:
        raise Invalid.at(
            "/keys",
            f"have {key_size} numbers each and /queries {query_size}, which {body.mechanism} cannot"
            " compare: give as many in both, or set mechanism to additive",
        )
    if body.mechanism == "gaussian":
        width = 1.0 if body.width is None else body.width
        return {"width": array_from([width], np.float32, "/width")}
    if body.mechanism == "additive":
        return additive_parameters(body.weights, query_size, key_size)
    return {}


def additive_parameters(weights: AdditiveWeights | None, query_size: int, key_size: int) -> Feeds:
    if weights is None:
        detail = (
            "are required, because additive attention has no default ones: give query"
            f" (H, {query_size}), key (H, {key_size}) and score (H), for any H"
        )
        raise Invalid.at("/weights", detail)
    query = array_from(weights.query, np.float32, "/weights/query")
    key = array_from(weights.key, np.float32, "/weights/key")
    score = array_from(weights.score, np.float32, "/weights/score")
    hidden = len(score)
    if (query.shape, key.shape) != ((hidden, query_size), (hidden, key_size)):
        raise Invalid.at(
            "/weights",
            f"have shapes query {query.shape}, key {key.shape} and score {score.shape}: with this"
            f" score give query ({hidden}, {query_size}) and key ({hidden}, {key_size})",
        )
    return {"query_weight": query, "key_weight": key, "score_weight": score}


def attended_nbytes(mechanism: str, feeds: Feeds) -> int:
    """Bytes of the largest arrays that are computed: the weights, the outputs and, for mechanisms
    that compute a vector for each query and key, these vectors."""
    sequences, queries, query_size = feeds["queries"].shape
    keys, value_size = feeds["values"].shape[1:]
    vector_size = 0
    if mechanism == "gaussian":
        vector_size = query_size
    elif mechanism == "additive":
        vector_size = len(feeds["score_weight"])
    return 4 * sequences * queries * (keys * (vector_size + 1) + value_size)


def check_heatmaps(sequences: int) -> None:
    """Raise NotAcceptable for more sequences than a picture can show."""
    if sequences > MOST_HEATMAPS:
        raise NotAcceptable(
            f"a picture can show {MOST_HEATMAPS} sequences but there are {sequences}: send fewer,"
            " or accept application/json"
        )
