"""With `partial`, good sources are answered as if sent alone, and bad ones as they are refused."""

import asyncio
import json
import random

import pytest

from service.errors import PassFailed
from tests.documentation import events_of

GOOD = ["heed", "a", "read"]
BAD = ["", "b7", "a" * 65, "\ud83d"]
SOURCES = ["heed", "", "a", "b7", "a" * 65, "read", "\ud83d", "heed.\n\ud800", "\ud800\nheed"]
BODIES = {
    "/v1/decode": {"attention": {"layers": [0], "heads": [0]}},
    "/v1/encode": {"pooling": "mean"},
    "/v1/attention": {"attention": {"layers": [0], "heads": [0]}},
    "/v1/attribution": {},
}
SPLIT = {"split": "sentences"}
ENDPOINTS = [*BODIES.items(), ("/v1/decode", SPLIT)]


def close(found, alone):
    """Whether two results are the same, but for the rounding of another batch."""
    if isinstance(alone, dict):
        return found.keys() == alone.keys() and all(close(found[k], alone[k]) for k in alone)
    if isinstance(alone, list):
        return len(found) == len(alone) and all(map(close, found, alone))
    return found == (pytest.approx(alone, abs=1e-4) if isinstance(alone, float) else alone)


def without_places(problem):
    """What a problem says, without its request and its places."""
    told = {key: problem[key] for key in ("status", "code", "title", "instance")}
    return told, [fault["detail"] for fault in problem["errors"]]


def send(client, path, **body):
    """Send the JSON as ASCII, which can hold half a surrogate pair."""
    content = json.dumps({"model": "g2p-en", **body})
    return client.post(path, content=content, headers={"content-type": "application/json"})


def results_of(client, path, source, **body):
    answer = send(client, path, source=source, partial=True, **body)
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        return events_of(answer.text)[-1][1]["results"], answer
    return answer.json()["results"], answer


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_each_source_is_answered_as_if_it_were_sent_alone(client, path, body):
    results, answer = results_of(client, path, SOURCES, **body)
    assert len(results) == len(SOURCES)
    for i, (source, result) in enumerate(zip(SOURCES, results, strict=True)):
        alone = send(client, path, source=source, **body)
        assert alone.is_success is (source in GOOD or (body == SPLIT and not source))
        if alone.is_success:
            assert close(result, alone.json()["results"][0])
        else:
            assert result.keys() == {"problem"}
            assert without_places(result["problem"]) == without_places(alone.json())
            assert {fault["pointer"] for fault in result["problem"]["errors"]} == {f"/source/{i}"}
            assert result["problem"]["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_permuted_sources_have_permuted_results(client, path, body):
    results, _ = results_of(client, path, SOURCES, **body)
    order = random.Random(0).sample(range(len(SOURCES)), len(SOURCES))
    permuted, _ = results_of(client, path, [SOURCES[i] for i in order], **body)
    for i, result in zip(order, permuted, strict=True):
        if "problem" in result:
            assert without_places(result["problem"]) == without_places(results[i]["problem"])
        else:
            assert close(result, results[i])


def test_usage_counts_the_good_sources(client, post):
    _, answer = results_of(client, "/v1/decode", SOURCES)
    assert answer.json()["usage"] == post("/v1/decode", source=GOOD)[1]["usage"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("source", [BAD, "b7", [[99], [5, 99, 98]]])
def test_an_answer_may_hold_nothing_but_problems(client, path, source):
    results, answer = results_of(client, path, source)
    assert [result["problem"]["status"] for result in results] == (
        [422, 422, 413, 422] if source == BAD else [422] * (1 if source == "b7" else 2)
    )
    usage = answer.json().get("usage", {"source_tokens": 0, "target_tokens": 0})
    assert usage == {"source_tokens": 0, "target_tokens": 0}


def test_a_pair_fails_with_its_source_or_its_target(client, post):
    sources, targets = ["7", "a", "heed", "8"], ["EY1", "EY1", "QQ", "QQ"]
    results, _ = results_of(client, "/v1/attention", sources, target=targets)
    pointers = [
        [fault["pointer"] for fault in result["problem"]["errors"]] if "problem" in result else []
        for result in results
    ]
    assert pointers == [["/source/0"], [], ["/target/2"], ["/source/3", "/target/3"]]
    alone = post("/v1/attention", source="a", target="EY1")[1]["results"][0]
    assert close(results[1], alone)


def test_a_document_fails_with_any_of_its_sentences(client):
    results, _ = results_of(client, "/v1/decode", ["a\nb7\n8c", "heed\nread"], **SPLIT)
    places = [fault["pointer"] for fault in results[0]["problem"]["errors"]]
    assert places == ["/source/0", "/source/0"]
    assert results[1]["hypotheses"][0]["text"] == "HH IY1 D\nR IY1 D"


@pytest.mark.parametrize("beam_size", [1, 2])
def test_a_stream_ends_with_the_answer_that_would_be_sent_without(client, beam_size):
    whole = results_of(client, "/v1/decode", SOURCES, beam_size=beam_size)[0]
    body = {"source": SOURCES, "partial": True, "beam_size": beam_size, "stream": True}
    events = events_of(send(client, "/v1/decode", **body).text)
    assert {data["result"] for name, data in events if name != "done"} == {0, 2, 5}
    name, done = events[-1]
    assert name == "done"
    for found, expected in zip(done["results"], whole, strict=True):
        assert found.keys() == expected.keys()
        if "problem" not in found:
            assert close(found, expected)


@pytest.fixture
def fail(client, monkeypatch):
    """Let the passes of some entries fail: (their places) -> None."""
    engine = client.app.state.service.registry.served["g2p-en"].engine
    submit = engine.submit

    def change(*places):
        def submit_and_fail(*order):
            futures = submit(*order)
            for place in places:
                futures[place].cancel()
                futures[place] = asyncio.get_running_loop().create_future()
                futures[place].set_exception(PassFailed("NaN"))
            return futures

        monkeypatch.setattr(engine, "submit", submit_and_fail)

    return change


@pytest.mark.parametrize(("path", "body"), [*ENDPOINTS, ("/v1/decode", {"stream": True})])
def test_a_pass_that_fails_is_a_problem_at_the_place_of_its_source(client, fail, path, body):
    whole, _ = results_of(client, path, SOURCES, **body)
    fail(1)  # the second good one; the second row of the first one, if rows follow
    failed = {0, 2} if path == "/v1/attribution" else {2}
    results, _ = results_of(client, path, SOURCES, **body)
    for i in failed:
        assert results[i]["problem"]["code"] == "pass_failed"
        assert (results[i]["problem"]["status"], results[i]["problem"]["errors"]) == (500, [])
    others = [i for i in range(len(SOURCES)) if i not in failed]
    assert all(results[i].keys() == whole[i].keys() for i in others)
    assert all(close(results[i], whole[i]) for i in {0, 5} - failed)


def test_a_pass_that_fails_refuses_a_request_that_is_not_partial(post, fail):
    fail(1)
    assert post("/v1/decode", source=GOOD)[0] == 500


@pytest.mark.parametrize("accept", ["application/npz", "text/html", "image/svg+xml"])
def test_problems_come_as_json_only(client, accept):
    body = {"model": "g2p-en", "source": "a", "partial": True}
    refused = client.post("/v1/attention", json=body, headers={"accept": accept})
    assert refused.status_code == 406
    assert refused.json()["detail"] == (
        "with partial the answer is available as application/json; accept one of these"
    )


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        ({"beam_size": 2, "num_hypotheses": 3}, 422, "/num_hypotheses"),
        ({"source": ["a"] * 257}, 413, "/source"),
        ({"source": ["a", 5]}, 422, "/source/1"),
        ({"source": ["a\na"] * 129, **SPLIT}, 413, "/source"),
    ],
)
def test_what_is_wrong_with_the_request_refuses_it(post, body, status, pointer):
    found, problem = post("/v1/decode", **{"source": SOURCES[:4], "partial": True, **body})
    assert found == status
    assert [fault["pointer"] for fault in problem["errors"]] == [pointer]
