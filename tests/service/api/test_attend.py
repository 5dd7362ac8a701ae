"""/v1/attend, compared with NumPy query by query."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.api.endpoints.attend import EXAMPLES, fewer_queries
from service.api.endpoints.attend_body import attended_nbytes
from tests.service.api.bodies import GOOD, K, Q
from tests.waiting import wait_until

MECHANISMS = ["average", "gaussian", "scaled_dot_product", "additive"]


def numpy_attend(mechanism, queries, keys, values, lengths, parameters):
    """(T, D), (S, E), (S, V), (T,) -> outputs, weights; weights are 0 where no key is valid."""
    weights = np.zeros((len(queries), len(keys)))
    for t, (query, length) in enumerate(zip(queries, lengths, strict=True)):
        scores = np.array(
            [
                {
                    "average": lambda q, k: 0.0,
                    "gaussian": lambda q, k: (
                        -(np.linalg.norm(parameters["width"] * (q - k)) ** 2) / 2
                    ),
                    "scaled_dot_product": lambda q, k: q @ k / np.sqrt(len(q)),
                    "additive": lambda q, k: (
                        parameters["score"]
                        @ np.tanh(parameters["query"] @ q + parameters["key"] @ k)
                    ),
                }[mechanism](query, key)
                for key in keys[:length]
            ]
        )
        if length:
            exponentials = np.exp(scores - scores.max())
            weights[t, :length] = exponentials / exponentials.sum()
    return weights @ values, weights


def attend(client, **body):
    answer = client.post("/v1/attend", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@settings(max_examples=60, deadline=None)
@given(
    mechanism=st.sampled_from(MECHANISMS),
    sizes=st.tuples(*[st.integers(1, 5)] * 6),
    lengths=st.sampled_from(["none", "sequence", "query"]),
    causal=st.booleans(),
    scale=st.sampled_from([1.0, 1e3]),  # float32 rounds scores near 10,000 to 0.001
    seed=st.integers(0, 999),
)
def test_every_mechanism_equals_numpy(client, mechanism, sizes, lengths, causal, scale, seed):
    b, t, s, d, e, v = sizes
    e = e if mechanism in ("average", "additive") else d
    random = np.random.default_rng(seed)
    queries, keys, values = (
        random.standard_normal(shape).astype(np.float32)
        for shape in ((b, t, d), (b, s, e), (b, s, v))
    )
    if mechanism == "gaussian":
        scale = scale**0.5  # its scores grow with the square
    queries = queries * np.float32(scale)
    body = {"mechanism": mechanism, "causal": causal}
    body |= {"queries": queries.tolist(), "keys": keys.tolist(), "values": values.tolist()}
    valid = np.full((b, t), s)
    if lengths == "sequence":
        given_lengths = random.integers(0, s + 1, b)
        valid, body["valid_lengths"] = given_lengths[:, None].repeat(t, 1), given_lengths.tolist()
    if lengths == "query":
        valid = random.integers(0, s + 1, (b, t))
        body["valid_lengths"] = valid.tolist()
    if causal:
        valid = np.minimum(valid, np.arange(1, t + 1))
    parameters = {"width": 0.7}
    if mechanism == "gaussian":
        body["width"] = 0.7
    if mechanism == "additive":
        shapes = {"query": (3, d), "key": (3, e), "score": (3,)}
        parameters = {
            name: random.standard_normal(shape).round(3) for name, shape in shapes.items()
        }
        body["weights"] = {name: value.tolist() for name, value in parameters.items()}
    answer = attend(client, **body)
    assert answer["shape"] == [b, t, s]
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if scale == 1 else {"rtol": 1e-2, "atol": 1e-2}
    for i in range(b):
        expected = numpy_attend(
            mechanism, *(x[i].astype(float) for x in (queries, keys, values)), valid[i], parameters
        )
        np.testing.assert_allclose(answer["outputs"][i], expected[0], **tolerance)
        np.testing.assert_allclose(answer["weights"][i], expected[1], **tolerance)
        hidden = np.arange(s) >= valid[i][:, None]
        assert (np.array(answer["weights"][i])[hidden] == 0).all()


def test_the_answer_is_nested_as_deep_as_the_request(client):
    one = attend(client, mechanism="average", queries=[1, 2], keys=[1, 2, 3], values=[3, 6, 9])
    assert one == {"outputs": [6, 6], "weights": [[pytest.approx(1 / 3)] * 3] * 2, "shape": [2, 3]}
    vectors = attend(client, mechanism="average", queries=[[1]], keys=[[1], [2]], values=[[3], [5]])
    assert vectors == {"outputs": [[4]], "weights": [[0.5, 0.5]], "shape": [1, 2]}


ADDITIVE1 = {"query": [[1.0]], "key": [[1.0]], "score": [1.0]}
NUMBERS = {"queries": [1.0], "keys": [1.0, 2.0]}
ADDITIVE = {"query": [[1.0, 1.0]], "key": [[1.0, 1.0]], "score": [1.0]}


@pytest.mark.parametrize(
    ("changes", "pointer", "said"),
    [
        ({"queries": [1.0]}, "/keys", "have 2 numbers each and /queries 1, which scaled_dot_prod"),
        ({"values": [1.0]}, "/values", "have shape (1, 1, 1) and /keys (1, 2, 2): give one"),
        ({"queries": [Q, Q]}, "/queries", "hold 2 sequences, /keys 1 and /values 1: give"),
        ({"queries": [[1.0, 2.0], [3.0]]}, "/queries/1", "length 1 but /queries/0 has length 2"),
        ({"queries": [Q, [*Q, *Q]]}, "/queries/1", "has length 2 but /queries/0 has length 1"),
        ({"queries": [K, [[1.0, 2.0], [3.0]]]}, "/queries/1/1", "length 1 but /queries/0/0 has"),
        ({"queries": []}, "/queries", "none of them empty"),
        ({"queries": [[]]}, "/queries", "none of them empty"),
        ({"queries": "a"}, "/queries", "list of numbers"),
        ({"queries": [[1e39, 1.0]]}, "/queries", "fit a float32"),
        ({"queries": [["a", 1.0]]}, "/queries/0/0", "must be a number"),
        ({"valid_lengths": [1, 2]}, "/valid_lengths", "(2,): give one number per sequence, shape"),
        ({"valid_lengths": [3]}, "/valid_lengths", "holds 3 but there are 2 keys: give 0 to 2"),
        ({"valid_lengths": [[1], [1, 2]]}, "/valid_lengths/1", "lists of equal lengths"),
        ({"valid_lengths": [-1]}, "/valid_lengths/0", "must be at least 0"),
        ({"valid_lengths": [10**30]}, "/valid_lengths/0", "must be at most"),
        ({"valid_lengths": [[]]}, "/valid_lengths", "lists of integers"),
        ({"truth": [1.0]}, "/truth", "only on a regression"),
        ({**NUMBERS, "truth": [1.0, 2.0]}, "/truth", "has 2 numbers for 1 queries"),
        ({"width": 1.0}, "/width", "set mechanism to gaussian"),
        ({"weights": ADDITIVE}, "/weights", "set mechanism to additive"),
        ({"mechanism": "additive"}, "/weights", "key (H, "),
        (
            {"mechanism": "additive", "weights": {**ADDITIVE, "score": [1.0, 1.0]}},
            "/weights",
            "have shapes query (1, 2), key (1, 2) and score (2,): with this score give",
        ),
        ({"mechanism": "dot"}, "/mechanism", "be 'average', 'gaussian'"),
        ({"temperature": 1}, "/temperature", "the fields are mechanism, queries"),
    ],
)
def test_shapes_that_do_not_agree_are_both_named(client, changes, pointer, said):
    answer = client.post("/v1/attend", json={**GOOD, **changes})
    document = answer.json()
    assert answer.status_code == 422
    assert document["errors"][0]["pointer"] == pointer
    assert said in document["detail"]


def test_an_answer_over_the_limit_is_refused_before_it_is_computed(client):
    many = [0.0] * 6000
    body = {"mechanism": "average", "queries": many, "keys": many, "values": many}
    answer = client.post("/v1/attend", json=body)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    allowed = int(re.search(r"send at most (\d+) queries a sequence", answer.json()["detail"])[1])
    each = 4 * (6000 + 1)  # bytes of a query's weights and output
    assert allowed * each <= 128 << 20 < (allowed + 1) * each


def test_what_would_fit_counts_the_queries_of_each_sequence():
    feeds = {"queries": np.zeros((10, 600, 3))}
    assert fewer_queries(feeds, nbytes=6000, limit=5999).startswith("send at most 599 queries a")
    assert fewer_queries(feeds, nbytes=6000, limit=9) == "send fewer keys or sequences"


def test_only_mechanisms_that_combine_vectors_in_pairs_need_memory_for_them():
    feeds = {"queries": np.zeros((1, 10, 100)), "values": np.zeros((1, 20, 3))}
    weights, outputs = 4 * 10 * 20, 4 * 10 * 3
    for mechanism in ("average", "scaled_dot_product"):
        assert attended_nbytes(mechanism, feeds) == weights + outputs
    assert attended_nbytes("gaussian", feeds) == 101 * weights + outputs
    feeds["score_weight"] = np.zeros(7)
    assert attended_nbytes("additive", feeds) == 8 * weights + outputs


@pytest.fixture
def one_core(client, monkeypatch):
    """The limiter of work that takes a core, which has one."""
    limiter = client.app.state.service.cores
    monkeypatch.setattr(limiter, "total_tokens", 1)
    return limiter


def test_the_number_of_running_and_waiting_requests_is_limited(client, one_core, monkeypatch):
    """One core and one place to wait: two of four simultaneous requests are refused, none lost."""
    monkeypatch.setattr("service.api.reading.call.MOST_WAITING", 1)
    mechanisms, free = client.app.state.service.mechanisms, threading.Event()
    running = []

    def attend(*arguments):
        running.append(arguments)
        free.wait(60)
        return type(mechanisms).attend(mechanisms, *arguments)

    monkeypatch.setattr(mechanisms, "attend", attend, raising=False)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, "/v1/attend", json=GOOD)
        wait_until(lambda: len(running) == 1)
        second = pool.submit(client.post, "/v1/attend", json=GOOD)
        wait_until(lambda: client.portal.call(one_core.statistics).tasks_waiting == 1)
        refused = [client.post("/v1/attend", json=GOOD) for _ in range(2)]
        assert [(r.status_code, r.headers["retry-after"]) for r in refused] == [(429, "1")] * 2
        assert len(running) == 1
        free.set()
        assert [first.result().status_code, second.result().status_code] == [200, 200]


def test_waiting_too_long_for_a_core_is_a_timeout(client, one_core):
    client.portal.call(one_core.acquire_on_behalf_of_nowait, "somebody")
    answer = client.post("/v1/attend", json=GOOD, headers={"X-Request-Timeout": "0.2"})
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")
    client.portal.call(one_core.release_on_behalf_of, "somebody")
    assert client.post("/v1/attend", json=GOOD).status_code == 200


@pytest.mark.parametrize(
    "changes",
    [
        {"queries": [1e30]},
        {"queries": [1e30], "valid_lengths": [1]},
        {"queries": [1e20, 1.0], "causal": True},
        {"queries": [1.0], "width": 1e39},
        {"queries": [1.0], "truth": [1e300]},
        {"mechanism": "additive", "queries": [1.0], "weights": {**ADDITIVE1, "query": [[1e39]]}},
    ],
)
def test_scores_that_overflow_are_refused_and_never_answered_with_null(client, changes):
    body = {"mechanism": "gaussian", "keys": [1.0, 2.0], "values": [1.0, 2.0], **changes}
    answer = client.post("/v1/attend", json=body)
    assert answer.status_code == 422
    assert "float32" in answer.json()["detail"]


def test_the_documented_regressions_differ_from_one_another(client):
    names = ["average", "gaussian", "learned", "scaled_dot_product", "additive"]
    outputs = [attend(client, **EXAMPLES[name]["value"])["outputs"] for name in names]
    for i, one in enumerate(outputs):
        assert all(np.abs(np.subtract(one, other)).max() > 0.01 for other in outputs[:i])
