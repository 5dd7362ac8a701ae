"""A refusal names the faults of all sources and targets, ten at most."""

import pytest

TOO_LONG = "a" * 65


def refuse(post, path="/v1/decode", **body):
    status, problem = post(path, **body)
    return status, problem["code"], [fault["pointer"] for fault in problem["errors"]]


@pytest.mark.parametrize(
    ("source", "status", "code", "places"),
    [
        (["a", "7", "b", "8"], 422, "invalid", [1, 3]),
        (["a", TOO_LONG, "b", TOO_LONG], 413, "too_large", [1, 3]),
        (["a", TOO_LONG, "b", "8"], 422, "invalid", [1, 3]),
        (["7", TOO_LONG], 422, "invalid", [0, 1]),
        (["a", "7"], 422, "invalid", [1]),
        (["a", TOO_LONG], 413, "too_large", [1]),
        ([""] * 12, 422, "invalid", range(10)),
    ],
)
def test_every_bad_source_is_named(post, source, status, code, places):
    """It is a question of size only if every fault is one: else shortening would not help."""
    expected = (status, code, [f"/source/{i}" for i in places])
    assert refuse(post, source=source) == expected


@pytest.mark.parametrize("path", ["/v1/score", "/v1/attention"])
def test_bad_sources_and_bad_targets_are_named_together(post, path):
    found = refuse(post, path, source=["7", "a", "8"], target=["D", "QQ", "D"])
    assert found == (422, "invalid", ["/source/0", "/source/2", "/target/1"])


def test_ids_are_counted_one_by_one(post):
    source = [[5, 99, 98], [5], [97, *range(100, 120)]]
    status, code, pointers = refuse(post, source=source)
    places = ["0/1", "0/2", "2/0", *(f"2/{i}" for i in range(1, 8))]
    assert (status, code, pointers) == (422, "invalid", [f"/source/{place}" for place in places])


def test_each_fault_says_what_is_wrong_with_its_own_text(post):
    _, problem = post("/v1/tokenize", text=["a7", "", TOO_LONG])
    said = [fault["detail"] for fault in problem["errors"]]
    for part, detail in zip(["'7' at 1", "nothing to read", "65 tokens"], said, strict=True):
        assert part in detail
        assert part in problem["detail"]
