"""Hostile, broken and odd requests are answered as benchmarks.fuzz demands."""

import pytest

from benchmarks.fuzz.__main__ import Reply, fuzz, judge
from benchmarks.fuzz.cases import Case, case_of
from benchmarks.kit.serving import serving
from service.settings.settings import DEFAULT_BUNDLE

PROBLEM = {"content-type": "application/problem+json"}
JSON = {"content-type": "application/json"}
CASE = Case("valid", b"POST /v1/decode HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize("cases", [600, pytest.param(2000, marks=pytest.mark.long)])
def test_nothing_is_wrong_with_very_many_requests(cases):
    with serving(DEFAULT_BUNDLE) as port:
        found = fuzz(port, seed=0, cases=cases)
    assert found.wrong == []
    assert found.kinds.total() == cases
    assert len(found.kinds) >= 15
    assert found.statuses[200] > cases / 4


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (Reply(200, JSON, b'{"a": 1}'), ""),
        (Reply(200, JSON, b'{"a": NaN}'), "malformed application/json"),
        (Reply(200, {"content-type": "image/svg+xml"}, b"<svg>\x00</svg>"), "malformed image/svg"),
        (Reply(200, {"content-type": "image/png"}, b"\x89PNG"), "malformed image/png"),
        (Reply(200, {"content-type": "application/npz"}, b"PK"), "malformed application/npz"),
        (Reply(200, {"content-type": "text/event-stream"}, b"event: token\ndata: 1\n\n"), "malf"),
        (Reply(500, PROBLEM, b"{}"), "status 500"),
        (Reply(422, PROBLEM, b"{}"), "an invalid problem document"),
        (Reply(422, PROBLEM, b" " * 5000), "a problem document of 5000 bytes"),
        (Reply(422, JSON, b"{}"), "a refusal of type 'application/json'"),
        (Reply(429, PROBLEM, b"{}"), "429 without Retry-After"),
    ],
)
def test_a_wrong_answer_is_found(answer, wrong):
    found = judge(CASE, answer)
    assert found.startswith(wrong)
    assert bool(found) == bool(wrong)


def test_a_case_is_always_the_same():
    assert [case_of(1, number) for number in range(300)] == [
        case_of(1, number) for number in range(300)
    ]
