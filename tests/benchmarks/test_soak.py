"""A run of many short requests is measured, and growth is found."""

import pytest

from benchmarks.kit.serving import serving
from benchmarks.load.soak import WARM, Sample, is_complete, judge_growth, paragraph, soak
from service.settings.settings import DEFAULT_BUNDLE

MB = 1_000_000
FLAT = [Sample(100 * MB, 200 * MB, 0.005, 0.01, 900.0)] * 10


def test_a_short_run_fails_nowhere_and_is_described():
    with serving(DEFAULT_BUNDLE) as port:
        found = soak(port, 200)
    assert found["failed"] == 0
    assert len(found["samples"]) == 10
    assert all(50 * MB < sample["http"] < 1000 * MB for sample in found["samples"])
    assert "sent 200 short requests over 8 connections" in paragraph(found)


@pytest.mark.parametrize(
    ("changes", "grew", "drifted"),
    [
        ({}, False, False),
        ({"http": 103 * MB}, True, False),
        ({"engine": 205 * MB}, True, False),
        ({"http": 101 * MB, "p50": 0.0054}, False, False),
        ({"p50": 0.006}, False, True),
    ],
)
def test_growth_after_the_warm_up_is_found(changes, grew, drifted):
    later = [sample._replace(**changes) for sample in FLAT[5:]]
    found = judge_growth([*FLAT[:5], *later])
    assert (found["memory_grew"], found["latency_drifted"]) == (grew, drifted)


def test_growth_during_the_warm_up_is_none():
    found = judge_growth([FLAT[0]._replace(http=1)] * (WARM - 1) + FLAT[WARM - 1 :])
    assert not found["memory_grew"]


@pytest.mark.parametrize(
    ("received", "complete"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", True),
        (b"HTTP/1.1 200 OK\r\ncontent-len", False),
        (b"HTTP/1.1 200 OK\r\n\r\n4\r\na0\n\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\n\r\n4\r\na0\n\n\r\n0\r\n\r\n", True),
    ],
)
def test_the_end_of_an_answer_is_seen(received, complete):
    assert is_complete(bytearray(received)) is complete
