"""A refusal names the faults of all options, sources and targets, ten at most."""

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


EVERY_FIELD = {
    "source_language": "en",
    "source": ["a", "7", "b", ""],
    "num_hypotheses": 2,
    "top_k": 5,
    "seed": 1,
    "max_new_tokens": 65,
    "target_prefix": "QQ",
    "stop": [5, 99],
    "suppress_tokens": [98],
    "attention": {"layers": [7], "heads": [0, 9], "threshold": 0.5},
}


def test_faults_of_every_field_are_named_at_once(post):
    """The ten are the first of those that the same fields have one at a time."""
    alone = [refuse(post, **{"source": "a", name: EVERY_FIELD[name]})[2] for name in EVERY_FIELD]
    each = {pointer for pointers in alone for pointer in pointers}
    assert len(each) == 13
    status, problem = post("/v1/decode", **EVERY_FIELD)
    assert status == 422
    assert problem["detail"].startswith("13 faults, the first 10: /")
    first = {fault["pointer"] for fault in problem["errors"]}
    some = {name: value for name, value in EVERY_FIELD.items() if f"/{name}" not in first}
    second = refuse(post, **{"source": "a", **some})[2]
    assert len(first) == 10
    assert first | {*second} == each


@pytest.mark.parametrize(
    ("source", "total", "place"),
    [
        ([""] * 12, "the first 10 faults", "/source/9"),
        (["a", *[""] * 200], "the first 10 faults", "/source/10"),
        (["a", *[5] * 300], "300 faults, the first 10", "/source/10"),
        ([[], *["a"] * 30], "31 faults, the first 10", "/source/9"),
        ([[99] * 8, [98] * 8], "16 faults, the first 10", "/source/1/1"),
    ],
)
def test_faults_that_are_not_named_are_counted_where_that_is_not_work(post, source, total, place):
    """Texts are tokenized to find them: after ten faults no more are."""
    status, problem = post("/v1/decode", source=source)
    assert (status, len(problem["errors"])) == (422, 10)
    assert problem["detail"].startswith(f"{total}: /source/")
    assert problem["errors"][-1]["pointer"] == place


def test_an_allowed_target_is_not_blamed_for_a_bad_prefix_or_limit(post):
    body = {"allowed_targets": ["EY1 B IY1", "QQ"], "max_new_tokens": 1, "target_prefix": "QQ"}
    found = refuse(post, source="a", **body)
    assert found == (422, "invalid", ["/target_prefix", "/allowed_targets/1"])


def test_search_options_with_a_target_are_all_named(post):
    found = refuse(post, "/v1/attention", source="7", target="D", top_k=1, beam_size=2)
    assert found == (422, "invalid", ["/beam_size", "/top_k", "/source"])
