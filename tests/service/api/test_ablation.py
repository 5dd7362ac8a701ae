"""ablate and measure in requests, compared with a bundle whose weights lack the heads."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.conftest import TINY, edit_manifest, opened, seal, sender

OFF = [
    {"kind": "encoder", "layer": 0, "heads": "all"},
    {"kind": "decoder", "layer": -1, "heads": [0, -1]},
    {"kind": "cross", "layer": 0, "heads": [1]},
]
SLICES = [  # of the same heads: the weight, and which of five heads
    ("encoder.layers.0.self_attention.output.weight", [0, 1, 2, 3, 4]),
    ("decoder.layers.1.self_attention.output.weight", [0, 4]),
    ("decoder.layers.0.cross_attention.output.weight", [1]),
]
EVERY = {"kinds": ["encoder", "decoder", "cross"]}
SOURCES = ["red green blue", "two"]


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """(path, model, **body) of `tiny`, `cut`, which lacks the heads, and `old`, without gates."""
    folder = tmp_path_factory.mktemp("ablation")
    cut, old = (shutil.copytree(TINY, folder / name) for name in ("cut", "old"))
    weights = load_file(cut / "fp32" / "model.safetensors")
    for name, heads in SLICES:
        weights[name] = weights[name].copy()
        weights[name].reshape(35, 5, 6)[:, heads] = 0
    rewrite(cut / "fp32" / "model.safetensors", weights)
    edit_manifest(cut, name="cut")
    seal(cut)
    plain = {name: f"fp32/{name}.onnx" for name in ("encoder", "step", "attention", "score")}
    plain["encoder_attention"] = "fp32/encoder_attention.onnx"
    edit_manifest(old, name="old", precisions={"fp32": plain})
    with opened(TINY, cut, old, self_check=False) as client:
        yield sender(client)


def rewrite(path, weights):
    """Write the numbers into the places that the graphs know."""
    content = bytearray(path.read_bytes())
    before = load_file(path)
    for name, array in weights.items():
        if not np.array_equal(before[name], array):
            start = content.index(before[name].tobytes())
            content[start : start + array.nbytes] = array.tobytes()
    path.write_bytes(content)


def numbers_of(document):
    """All numbers in a document, in order."""
    if isinstance(document, dict):
        return [number for value in document.values() for number in numbers_of(value)]
    if isinstance(document, list):
        return [number for value in document for number in numbers_of(value)]
    return [document] if isinstance(document, float | int) else []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/decode", {"attention": EVERY}),
        ("/v1/decode", {"beam_size": 3, "num_hypotheses": 3, "target_prefix": "ab"}),
        ("/v1/decode", {"temperature": 1.0, "seed": 7, "num_hypotheses": 4}),
        ("/v1/score", {"target": ["abcdef", "ac"]}),
        ("/v1/attention", {"target": ["abcdef", "ac"], "attention": {**EVERY, "measure": "norm"}}),
        ("/v1/attention", {"attention": EVERY}),
    ],
    ids=["greedy", "beams", "samples", "score", "norms", "weights"],
)
def test_ablated_heads_are_those_of_a_model_without_them(ask, path, body):
    body = {**body, "source": SOURCES}
    status, ablated = ask(path, model="tiny", ablate=OFF, **body)
    assert status == 200, ablated
    _, cut = ask(path, model="cut", **body)
    for ours, theirs in zip(ablated["results"], cut["results"], strict=True):
        np.testing.assert_allclose(numbers_of(ours), numbers_of(theirs), rtol=1e-4, atol=1e-5)
    _, whole = ask(path, model="tiny", **body)
    assert numbers_of(whole["results"]) != numbers_of(ablated["results"])


@pytest.mark.parametrize("alignment", ["argmax", "threshold"])
def test_norms_are_aligned_by_their_share_of_the_row(ask, alignment):
    selected = {"reduce_heads": "mean", "reduce_layers": "mean", "measure": "norm"}
    selected |= {"alignment": alignment}
    body = {"model": "tiny", "source": SOURCES[0], "target": "abcd", "attention": selected}
    _, document = ask("/v1/attention", **body)
    (block,) = document["results"][0]["attention"]
    norms = np.array(block["data"])
    shares = norms / norms.sum(-1, keepdims=True)
    rows, columns = (
        [each["start"] is not None for each in block[side]] for side in ("rows", "columns")
    )
    inside = np.outer(rows, columns)
    best = np.where(columns, norms, -1).argmax(-1)
    chosen = shares >= 0.2 if alignment == "threshold" else np.eye(norms.shape[1], dtype=bool)[best]
    expected = np.argwhere(inside & chosen)[:, ::-1].tolist()
    assert block["measure"] == "norm"
    assert block["alignment"]["pairs"] == expected


def test_a_block_of_weights_names_no_measure(ask):
    _, document = ask("/v1/attention", model="tiny", source="red", target="ab")
    assert "measure" not in document["results"][0]["attention"][0]


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        (
            {"ablate": [{"kind": "cross", "layer": 2, "heads": [5]}]},
            {
                "/ablate/0/layer": "is 2 but there is no such cross layer: give -2 to 1",
                "/ablate/0/heads/0": "is 5 but there is no such head: give -5 to 4",
            },
        ),
        (
            {"ablate": [{"kind": "all", "layer": 0, "heads": "all"}]},
            {"/ablate/0/kind": "must be 'encoder', 'decoder' or 'cross'"},
        ),
        (
            {"ablate": [{"kind": "cross", "layer": 0, "heads": [0, -5]}]},
            {
                "/ablate/0/heads": "names a head twice (negative indices count from the end): name"
                " each once"
            },
        ),
    ],
)
def test_heads_that_do_not_exist_are_named(ask, body, faults):
    status, problem = ask("/v1/decode", model="tiny", source="red", **body)
    assert status == 422
    assert {each["pointer"]: each["detail"] for each in problem["errors"]} == faults


def test_rollout_of_norms_is_refused(ask):
    selected = {**EVERY, "kinds": ["encoder"], "reduce_heads": "mean", "reduce_layers": "rollout"}
    body = {"model": "tiny", "source": "red", "attention": {**selected, "measure": "norm"}}
    status, problem = ask("/v1/attention", **body)
    assert status == 422
    said = "multiplies one matrix of self-attention weights per layer: set measure to weight"
    assert problem["detail"].endswith(said)


@pytest.mark.parametrize(
    ("field", "body"),
    [("ablate", {"ablate": OFF}), ("measure", {"attention": {"measure": "norm"}})],
)
def test_a_bundle_of_an_older_heed_says_what_it_lacks(ask, field, body):
    status, problem = ask("/v1/attention", model="old", source="red", **body)
    assert (status, problem["code"]) == (404, "not_supported")
    assert problem["detail"].endswith(
        f"lacks the gated graphs; export or convert it again, or omit {field}"
    )
    assert ask("/v1/attention", model="old", source="red", ablate=[])[0] == 200
