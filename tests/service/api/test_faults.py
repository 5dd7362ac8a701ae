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


@pytest.mark.parametrize(
    ("source", "target", "counts"),
    [(["a", "b"], ["D"], "1 target for 2 sources"), ("a", ["D", "D"], "2 targets for 1 source")],
)
def test_more_or_fewer_targets_than_sources_are_counted(post, source, target, counts):
    status, problem = post("/v1/score", source=source, target=target)
    assert status == 422
    assert problem["detail"] == f"/target holds {counts}: give one for each source"


def test_ids_are_counted_one_by_one(post):
    source = [[5, 99, 98], [5], [97, *range(100, 120)]]
    status, code, pointers = refuse(post, source=source)
    places = ["0/1", "0/2", "2/0", *(f"2/{i}" for i in range(1, 8))]
    assert (status, code, pointers) == (422, "invalid", [f"/source/{place}" for place in places])


def test_each_fault_says_what_is_wrong_with_its_own_text(post):
    _, problem = post("/v1/tokenize", text=["a7", "", TOO_LONG])
    said = [fault["detail"] for fault in problem["errors"]]
    for part, detail in zip(["'7' at offset 1", "holds no token", "65 tokens"], said, strict=True):
        assert part in detail
        assert part in problem["detail"]


@pytest.mark.parametrize("token_ids", [[1, 2], 5, "heed", [None]])
def test_ids_outside_lists_are_refused_with_an_example(post, token_ids):
    status, problem = post("/v1/detokenize", token_ids=token_ids)
    example = "must be a list of lists of ids, such as [[5, 6], [7]]"
    assert (status, problem["detail"]) == (422, f"/token_ids {example}")
    assert post("/v1/detokenize", token_ids=[[5, 6], [7]])[0] == 200
    assert post("/v1/detokenize", token_ids=[[5], 6])[1]["detail"] == "/token_ids/1 must be a list"


def test_detokenize_needs_at_least_one_list(post):
    assert post("/v1/detokenize", token_ids=[])[1]["detail"] == (
        "/token_ids must have 1 or more items"
    )
