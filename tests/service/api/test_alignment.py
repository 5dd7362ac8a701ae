"""The model's own alignment in answers, against NumPy over all of its cross-attention."""

import shutil

import numpy as np
import pytest

from tests.conftest import ALIGNMENT, edit_manifest, opened, sender
from tests.service.mutations.edit import edit_json

SOURCE = "red green blue two"
TARGET = "abcabd"


@pytest.fixture(scope="module", params=[0, 1], ids=["predicts", "reads"])
def shift(request):
    return request.param


@pytest.fixture(scope="module")
def client(aligned, tiny, tmp_path_factory):
    """Models with an alignment of either shift, `tiny`, which has none, and one from before `heed
    align`."""
    folder = tmp_path_factory.mktemp("alignments")
    bundles = [shutil.copytree(aligned, folder / f"shift{shift}") for shift in (0, 1)]
    for shift, bundle in enumerate(bundles):
        edit_manifest(bundle, name=bundle.name, alignment={**ALIGNMENT, "shift": shift})
    unasked = shutil.copytree(tiny, folder / "unasked")
    edit_json("bundle.json", lambda manifest: manifest.pop("alignment"), unasked)
    edit_manifest(unasked, name="unasked")
    with opened(*bundles, tiny, unasked) as client:
        yield client


@pytest.fixture
def ask(client, shift):
    return sender(client, model=f"shift{shift}")


def blocks(ask, path="/v1/attention", **body):
    status, document = ask(path, **body)
    assert status == 200, document
    (result,) = document["results"]
    hypotheses = [result] if path == "/v1/attention" else result["hypotheses"]
    return [
        (
            each.get("target", each.get("text")),
            next(b for b in each["attention"] if "alignment" in b),
        )
        for each in hypotheses
    ]


def expected_pairs(ask, target_ids, shift):
    """argmax of the mean of the heads that ALIGNMENT names, among tokens that are not special."""
    whole = [*target_ids, 5]  # the step that predicts any next token has read the last one
    _, document = ask("/v1/attention", source=SOURCE, target=[whole])
    (block,) = document["results"][0]["attention"]
    weights = np.array(block["data"])[ALIGNMENT["layers"]][:, ALIGNMENT["heads"]].mean((0, 1))
    columns = [i for i, token in enumerate(block["columns"]) if token["start"] is not None]
    best = [columns[row[columns].argmax()] for row in weights[shift:]]
    rows = [i for i, token in enumerate(block["rows"][:-1]) if token["start"] is not None]
    return [[best[i], i] for i in rows]


def ids_of(ask, text):
    return ask("/v1/tokenize", text=text, side="target")[1]["results"][0]["token_ids"]


@pytest.mark.parametrize(
    "selected",
    [{}, {"layers": [0], "heads": [4], "reduce_heads": "max"}, {"kinds": ["encoder", "cross"]}],
)
def test_pairs_are_those_of_the_models_heads_whatever_is_selected(ask, shift, selected):
    ((_, block),) = blocks(
        ask, source=SOURCE, target=TARGET, attention={**selected, "alignment": "model"}
    )
    found = block["alignment"]
    assert found["pairs"] == expected_pairs(ask, ids_of(ask, TARGET), shift)
    assert found["pharaoh"] == " ".join(f"{s}-{t}" for s, t in found["pairs"])


def test_rows_bound_the_pairs(ask, shift):
    selected = {"alignment": "model", "rows": [2, -2]}
    ((_, block),) = blocks(ask, source=SOURCE, target=TARGET, attention=selected)
    whole = expected_pairs(ask, ids_of(ask, TARGET), shift)
    assert block["alignment"]["pairs"] == [pair for pair in whole if 2 <= pair[1] < 5]


def test_every_hypothesis_is_aligned_after_the_prefix(ask, shift):
    body = {"beam_size": 3, "num_hypotheses": 3, "target_prefix": "ab", "max_new_tokens": 6}
    found = blocks(ask, "/v1/decode", source=SOURCE, attention={"alignment": "model"}, **body)
    assert len(found) == 3
    for text, block in found:
        ids = [*ids_of(ask, "ab")[:-1], *(token["id"] for token in block["rows"])]
        whole = expected_pairs(ask, ids, shift)
        assert block["alignment"]["pairs"] == [pair for pair in whole if pair[1] >= 2]
        words = block["alignment"]["words"]["target"]
        assert [text[word["start"] : word["end"]] for word in words] == text.split()


def test_words_are_aligned_as_their_tokens(ask):
    """Each word of this source is a token, and the letters of the target are one word."""
    ((_, block),) = blocks(ask, source=SOURCE, target=TARGET, attention={"alignment": "model"})
    alignment = block["alignment"]
    words = alignment["words"]
    assert [word["text"] for word in words["source"]] == SOURCE.split()
    assert words["target"] == [{"text": TARGET, "start": 0, "end": len(TARGET)}]
    tokens = sorted({source for source, _ in alignment["pairs"]})
    assert words["pairs"] == [[source, 0] for source in tokens]
    assert words["pharaoh"] == " ".join(f"{source}-0" for source in tokens)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("unasked", "run `heed align BUNDLE`"),
        ("tiny", "no head of it was found that aligns"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/attention", "/v1/decode"])
def test_a_model_without_one_is_refused(client, path, model, said):
    wanted = {"source": "red", "attention": {"alignment": "model"}}
    status, problem = sender(client, model=model)(path, **wanted)
    assert (status, problem["code"]) == (404, "not_supported")
    assert problem["detail"].startswith(f"model {model} has no alignment: ")
    assert said in problem["detail"]


def test_without_attention_there_is_no_alignment(aligned):
    with opened(aligned, attention=False) as client:
        wanted = {"source": "red", "attention": {"alignment": "model"}}
        status, problem = sender(client)("/v1/attention", **wanted)
        assert (status, problem["code"]) == (404, "not_supported")
