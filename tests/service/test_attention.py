"""What is selected of attention, and reduced, against NumPy over all of it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.attention import Selection, align
from service.text.tokens import Token

WORDS = (Path(__file__).parent.parent / "words.txt").read_text().split()
KINDS = ["encoder", "decoder", "cross"]
WORD, TARGET = "transformer", "T R AE0 N S F AO1 R M ER0"


def blocks(post, path="/v1/attention", source=WORD, target=TARGET, **attention):
    status, document = post(path, source=source, target=target, attention=attention)
    assert status == 200, document
    (result,) = document["results"]
    return {block["kind"]: block for block in result["attention"]}


@pytest.fixture(scope="module")
def everything(post):
    return blocks(post, kinds=KINDS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduce_layers", ["none", "mean", "max"])
@pytest.mark.parametrize("reduce_heads", ["none", "mean", "max"])
def test_heads_are_reduced_and_then_layers(post, everything, kind, reduce_heads, reduce_layers):
    reductions = {"reduce_heads": reduce_heads, "reduce_layers": reduce_layers}
    block = blocks(post, kinds=[kind], layers=[2, 0], heads=[3, 1, -4], **reductions)[kind]
    expected = np.array(everything[kind]["data"])[[2, 0]][:, [3, 1, 0]]
    axes = ["layer", "head", *everything[kind]["axes"][2:]]
    for axis, how in ((1, reduce_heads), (0, reduce_layers)):
        if how != "none":
            expected = {"mean": np.mean, "max": np.max}[how](expected, axis=axis)
            del axes[axis]
    np.testing.assert_allclose(block["data"], expected, atol=1e-6)
    assert (block["axes"], block["shape"]) == (axes, list(expected.shape))
    assert (block["layers"], block["heads"]) == ([2, 0], [3, 1, 0])


def rolled_out(weights):
    """Abnar and Zuidema's recursion, written out: (L, N, N) -> (N, N)."""
    flow = np.eye(len(weights[0]))
    for layer in weights:
        mixed = 0.5 * layer + 0.5 * np.eye(len(layer))
        flow = (mixed / mixed.sum(1, keepdims=True)) @ flow
    return flow


@pytest.mark.parametrize("reduce_heads", ["mean", "max"])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_rollout_multiplies_the_layers_with_the_residual(post, everything, kind, reduce_heads):
    reductions = {"reduce_heads": reduce_heads, "reduce_layers": "rollout"}
    block = blocks(post, kinds=[kind], layers=[2, 0], **reductions)[kind]
    weights = {"mean": np.mean, "max": np.max}[reduce_heads](everything[kind]["data"], axis=1)
    np.testing.assert_allclose(block["data"], rolled_out(weights[[0, 2]]), atol=1e-6)
    np.testing.assert_allclose(np.sum(block["data"], -1), 1, atol=1e-6)


def test_rollout_of_a_part_is_that_part_of_the_whole_rollout(post):
    """What was forced is not a row, and rows that are not wanted are multiplied all the same."""
    rollout = {"kinds": ["decoder"], "reduce_heads": "mean", "reduce_layers": "rollout"}
    body = {"source": WORD, "max_new_tokens": 6}
    wanted = {**rollout, "rows": [1, 3]}
    status, document = post("/v1/attention", **body, target_prefix="T R AE0", attention=wanted)
    assert status == 200
    (result,) = document["results"]
    (block,) = result["attention"]
    whole = blocks(post, target=result["target"], **rollout)["decoder"]["data"]
    np.testing.assert_allclose(block["data"], np.array(whole)[4:6, :9], atol=1e-5)


@given(start=st.integers(-14, 14), stop=st.integers(-14, 14))
def test_rows_are_a_slice_of_the_steps(post, everything, start, stop):
    wanted = {"kinds": KINDS, "rows": [start, stop]}
    status, document = post("/v1/attention", source=WORD, target=TARGET, attention=wanted)
    if status == 422:
        assert document["errors"][0]["pointer"] == "/attention/rows"
        assert all(not [*range(n)][start:stop] for n in range(30))
        return
    assert any([*range(n)][start:stop] for n in range(30))
    for block in document["results"][0]["attention"]:
        rows = slice(None) if block["kind"] == "encoder" else slice(start, stop)
        whole = everything[block["kind"]]
        expected = np.array(whole["data"])[:, :, rows]
        np.testing.assert_allclose(np.array(block["data"]).reshape(expected.shape), expected)
        assert block["rows"] == whole["rows"][rows]
        assert block["shape"] == list(expected.shape)


@pytest.mark.parametrize(
    ("wanted", "field", "said"),
    [
        ({"reduce_layers": "rollout", "reduce_heads": "mean"}, "reduce_layers", "encoder"),
        ({"kinds": ["encoder"], "reduce_layers": "rollout"}, "reduce_layers", "mean or max"),
        (
            {"reduce_layers": "rollout", "measure": "norm"},
            "reduce_layers",
            "set kinds to encoder, decoder or both and measure to weight and reduce_heads to mean",
        ),
        ({"kinds": ["encoder"], "rows": [0, 1]}, "rows", "decoder and cross"),
        ({"rows": [3, 3]}, "rows", "selects no row"),
        ({"rows": [0]}, "rows", "2 or more items"),
        ({"kinds": ["decoder"], "alignment": "argmax"}, "alignment", "cross"),
        ({"threshold": 0.5}, "threshold", "alignment"),
        ({"alignment": "threshold", "threshold": 0}, "threshold", "greater than 0"),
        ({"reduce_heads": "sum"}, "reduce_heads", "'none', 'mean' or 'max'"),
        ({"decimals": -1}, "decimals", "must be at least 0"),
    ],
)
def test_a_selection_that_makes_no_sense_is_refused(post, wanted, field, said):
    status, document = post("/v1/decode", source="a", attention=wanted)
    assert (status, document["errors"][0]["pointer"]) == (422, f"/attention/{field}")
    assert said in document["detail"]


@pytest.mark.parametrize("threshold", [None, 0.05, 0.3])
def test_an_alignment_pairs_tokens_that_are_not_special(post, everything, threshold):
    how = "argmax" if threshold is None else "threshold"
    wanted = {"alignment": how} if threshold is None else {"alignment": how, "threshold": threshold}
    block = blocks(post, **wanted)["cross"]
    sounds = len(TARGET.split())
    for weights, ofs in zip(everything["cross"]["data"], block["alignment"], strict=True):
        for matrix, alignment in zip(weights, ofs, strict=True):
            expected = [
                [s, t]
                for t, row in enumerate(matrix[:sounds])
                for s, weight in enumerate(row)
                if (weight == max(row) if threshold is None else weight >= threshold)
            ]
            assert alignment["pairs"] == expected
            assert alignment["pharaoh"] == " ".join(f"{s}-{t}" for s, t in expected)
    reduced = blocks(post, reduce_heads="mean", reduce_layers="max", **wanted)["cross"]
    assert set(reduced["alignment"]) == {"pairs", "pharaoh"}


def test_special_tokens_are_aligned_with_none():
    a, special = Token("a", 5, 0, 1), Token("<eos>", 2, None, None)
    weights = np.array([[0.1, 0.3, 0.6], [0.7, 0.2, 0.1]], np.float32)
    found = align(weights, [a, special], [a, a, special], None, 0)
    assert (found["pairs"].tolist(), found["pharaoh"]) == ([[1, 0]], "1-0")
    found = align(weights, [a, special], [a, a, special], 0.05, 3)
    assert (found["pairs"].tolist(), found["pharaoh"]) == ([[0, 3], [1, 3]], "0-3 1-3")


def test_an_alignment_counts_tokens_that_are_not_rows(post):
    wanted = {"reduce_heads": "mean", "reduce_layers": "mean", "alignment": "argmax"}
    body = {"source": WORD, "target_prefix": "T R AE0"}
    _, document = post("/v1/attention", **body, attention={**wanted, "rows": [1, 3]})
    (result,) = document["results"]
    whole = blocks(post, target=result["target"], **wanted)["cross"]["alignment"]["pairs"]
    found = result["attention"][0]["alignment"]
    assert found["pairs"] == [pair for pair in whole if pair[1] in (4, 5)]
    assert found["pharaoh"] == " ".join(f"{s}-{t}" for s, t in found["pairs"])


def test_decimals_round(post, everything):
    block = blocks(post, kinds=["cross"], decimals=3)["cross"]
    np.testing.assert_allclose(block["data"], np.round(everything["cross"]["data"], 3), atol=1e-7)


LISTS = st.lists(st.integers(0, 3), unique=True, min_size=1, max_size=4)


@given(
    layers=st.dictionaries(st.sampled_from(KINDS), LISTS, min_size=1),
    heads=LISTS,
    reductions=st.tuples(st.sampled_from(["none", "mean"]), st.sampled_from(["none", "max"])),
    rows=st.none() | st.tuples(st.integers(-9, 9), st.integers(-9, 9)),
    lengths=st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(0, 8), st.integers(0, 3)),
)
def test_the_bytes_are_known_before(layers, heads, reductions, rows, lengths):
    """For the longest target exactly, or more, for none less; `rows` may favour a shorter one."""
    selection = Selection(layers, heads, *reductions, rows)
    source, target, fewer, forced = lengths
    read = forced + target
    shapes = {"encoder": (source, source), "decoder": (target, read), "cross": (target, source)}
    for count in {target, max(1, target - fewer)}:
        picked = 0
        for kind in layers:
            weights = np.zeros((4, 4, *shapes[kind]), np.float32)
            steps = slice(None) if kind == "encoder" else selection.steps(count)
            picked += selection.pick(kind, weights, steps).nbytes
        assert picked <= selection.nbytes(source, target, read)
        if count == target and not (rows and rows[0] < 0 <= rows[1]):
            assert picked == selection.nbytes(source, target, read)


VOWELS = ["AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"]
SPELT = {"B": "b", "CH": "ct", "D": "d", "DH": "t", "F": "fp", "G": "gx", "HH": "hw", "JH": "jgd"}
SPELT |= {"K": "ckqx", "L": "l", "M": "m", "N": "nk", "NG": "n", "P": "p", "R": "r", "S": "scx"}
SPELT |= {"SH": "stc", "T": "td", "TH": "t", "V": "vf", "W": "wuo", "Y": "yueij", "Z": "zsx"}
SPELT |= {"ZH": "sgz"} | dict.fromkeys(VOWELS, "aeiouy")


def spelt_alignment(letters, sounds):
    """{sound: letter} of the cheapest way from one to the other, as Levenshtein's: a sound costs
    nothing at a letter that may spell it, 1.2 at another, and a letter or sound alone 0.6."""
    best = {(0, 0): (0.0, {})}
    for i in range(len(letters) + 1):
        for j in range(len(sounds) + 1):
            ways = [best[i, j]] if (i, j) == (0, 0) else []
            if i and j:
                cost, pairs = best[i - 1, j - 1]
                may = letters[i - 1] in SPELT[sounds[j - 1].rstrip("012")]
                ways.append((cost + (0 if may else 1.2), {**pairs, j - 1: i - 1}))
            ways += [(best[i - 1, j][0] + 0.6, best[i - 1, j][1])] if i else []
            ways += [(best[i, j - 1][0] + 0.6, best[i, j - 1][1])] if j else []
            best[i, j] = min(ways, key=lambda way: way[0])
    return best[len(letters), len(sounds)][1]


@pytest.mark.parametrize(
    "wanted",
    [
        {"reduce_heads": "mean", "reduce_layers": "mean", "alignment": "argmax"},
        {"layers": [0], "heads": [0], "alignment": "model"},
    ],
    ids=["mean", "model"],
)
def test_the_default_model_attends_to_the_letters_that_spell_each_sound(post, wanted):
    """Of 200 words: four of five sounds at the very letter, nearly all at it or next to it."""
    _, document = post("/v1/attention", source=WORDS, attention=wanted)
    distances = []
    for result in document["results"]:
        (block,) = result["attention"]
        letters, sounds = ([token["text"] for token in block[axis]] for axis in ("columns", "rows"))
        found = {t: s for s, t in block["alignment"]["pairs"]}
        expected = spelt_alignment(letters, [sound for sound in sounds if sound != "<eos>"])
        distances += [abs(found[t] - s) for t, s in expected.items()]
    assert len(document["results"]) == 200
    assert np.mean(np.array(distances) == 0) > 0.8
    assert np.mean(np.array(distances) <= 1) > 0.97
