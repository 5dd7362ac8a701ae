"""What a target loses without parts of its source, compared with torch and with NumPy."""

import io
import json
import shutil
from xml.etree import ElementTree

import httpx2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from safetensors.numpy import load

from model.checkpoint import load_model
from service.formats.colours import BLUE_TO_RED
from service.occlusion import first_difference, leads, losses, source_shares
from tests.conftest import TINY, edit_manifest, edit_tokenizer, opened
from tests.service.formats.blocks import SVG, decoded, texts_of
from tests.service.mutations.edit import edit_json
from tests.torch_scores import log_probs_of

UNKNOWN = 3
WORD, TARGET, FOIL = "transformer", "T R AE0 N S F AO1 R M ER0", "T R AE1 N Z F AO1 R M"


def attributed(post, **body):
    status, document = post("/v1/attribution", **body)
    assert status == 200, document
    return document["results"]


def blocks_of(result):
    return {block["kind"]: np.array(block["data"]) for block in result["attribution"]}


@pytest.fixture(scope="module")
def by_torch(g2p):
    """Log-probs of a target by the torch model, with letters of its source replaced."""
    trained = load_model(g2p)
    config = trained.transformer.config

    def log_probs(word, target, replaced=()):
        source = trained.source_tokenizer.encode(word).ids
        source = [UNKNOWN if i in replaced else each for i, each in enumerate(source)]
        ids = [*trained.target_tokenizer.encode(target).ids, config.eos_id]
        return log_probs_of(trained, source, [config.bos_id, *ids[:-1]])[range(len(ids)), ids]

    return log_probs


@pytest.mark.parametrize(("word", "target"), [(WORD, TARGET), ("read", "R EH1 D"), ("a", "ZH ZH")])
def test_losses_and_shares_are_those_of_the_torch_model(fp32_server, by_torch, word, target):
    body = {"source": word, "target": target}
    answer = httpx2.post(f"{fp32_server}/v1/attribution", json=body, timeout=60).json()
    (result,) = answer["results"]
    whole = by_torch(word, target)
    expected = [whole - by_torch(word, target, [i]) for i in range(len(word))]
    np.testing.assert_allclose(result["log_probs"], whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(blocks_of(result)["target"], np.transpose(expected), atol=1e-4)
    without = by_torch(word, target, range(len(word)))
    kept = np.minimum(np.exp(without) / np.exp(whole), 1)
    np.testing.assert_allclose(result["source_share"], 1 - kept, atol=1e-4)
    assert answer["replacement"] == {"token": "<unk>", "id": UNKNOWN}


def test_a_lead_over_a_foil_is_that_of_the_torch_model(fp32_server, by_torch):
    """Of the first token that differs, where both follow the same tokens, and of all tokens."""
    body = {"source": WORD, "target": TARGET, "contrast": FOIL}
    (result,) = httpx2.post(f"{fp32_server}/v1/attribution", json=body, timeout=60).json()[
        "results"
    ]

    def lead(replaced):
        target, foil = (by_torch(WORD, each, replaced) for each in (TARGET, FOIL))
        return np.array([target[2] - foil[2], target.sum() - foil.sum()])

    expected = [lead([]) - lead([i]) for i in range(len(WORD))]
    np.testing.assert_allclose(blocks_of(result)["contrast"], np.transpose(expected), atol=1e-3)
    assert result["contrast"]["first"] == 2
    assert result["contrast"]["target"] == FOIL
    np.testing.assert_allclose(result["contrast"]["lead"], lead([]), atol=1e-4)
    np.testing.assert_allclose(result["contrast"]["log_probs"], by_torch(WORD, FOIL), atol=1e-4)
    labels = [row["text"] for row in result["attribution"][1]["rows"]]
    assert labels == ["AE0, not AE1", "whole target"]


def test_a_decoded_target_leads_over_itself_by_nothing(post):
    (alone,) = attributed(post, source=WORD)
    (result,) = attributed(post, source=WORD, contrast=alone["target"])
    assert not blocks_of(result)["contrast"].any()
    assert (result["contrast"]["first"], result["contrast"]["lead"]) == (None, [0, 0])
    swapped = {"source": WORD, "target": FOIL, "contrast": TARGET}
    found = [
        blocks_of(*attributed(post, **each))["contrast"]
        for each in (swapped, {**swapped, "target": TARGET, "contrast": FOIL})
    ]
    np.testing.assert_allclose(found[0], -found[1], atol=1e-4)


def test_rows_do_not_depend_on_those_that_are_computed_with_them(post):
    """At int8, as the default model is served."""
    words, targets = ["read", WORD, "a"], ["R EH1 D", TARGET, "ZH"]
    foils = ["R IY1 D", FOIL, "AH0"]
    together = attributed(post, source=words, target=targets, contrast=foils)
    for word, target, foil, result in zip(words, targets, foils, together, strict=True):
        (alone,) = attributed(post, source=word, target=target, contrast=foil)
        for kind, data in blocks_of(alone).items():
            np.testing.assert_allclose(blocks_of(result)[kind], data, atol=1e-4)
        np.testing.assert_allclose(result["source_share"], alone["source_share"], atol=1e-4)


def test_an_unknown_token_is_replaced_by_itself_without_loss(tmp_path):
    """With a manifest that names no unknown token, the tokenizer tells which one is."""
    bundle = shutil.copytree(TINY, tmp_path / "reads-unknown")

    def forget_unknown(tokenizer):
        tokenizer["added_tokens"] = tokenizer["added_tokens"][:UNKNOWN]

    edit_manifest(bundle, unknown_id=None)
    edit_tokenizer(bundle, "source.tokenizer.json", forget_unknown)
    with opened(bundle) as client:
        body = {"source": "red purple green", "target": "abc"}
        answer = client.post("/v1/attribution", json=body).json()
    assert answer["replacement"] == {"token": "<unk>", "id": UNKNOWN}
    (block,) = answer["results"][0]["attribution"]
    assert [column["id"] for column in block["columns"]].index(UNKNOWN) == 1
    red, purple, green = np.array(block["data"]).T
    np.testing.assert_allclose(purple, 0, atol=1e-5)
    assert min(abs(red).max(), abs(green).max()) > 1e-3


def test_a_decoded_target_is_explained_like_one_that_is_given(post):
    (found,) = attributed(post, source=WORD, target_prefix="T R AE1", beam_size=3)
    (given,) = attributed(post, source=WORD, target=found["target"])
    assert found["attribution"][0]["rows"] == given["attribution"][0]["rows"][3:]
    for field in ("log_probs", "source_share"):
        np.testing.assert_allclose(found[field], given[field][3:], atol=1e-4)
    np.testing.assert_allclose(
        blocks_of(found)["target"], blocks_of(given)["target"][3:], atol=1e-4
    )
    contrast = {"contrast": "T R AE0"}
    _, over = attributed(
        post, source=[WORD] * 2, target_prefix="T R AE1", contrast=[FOIL, "T R AE0"]
    )
    (given,) = attributed(post, source=WORD, target=over["target"], **contrast)
    assert over["contrast"]["first"] == given["contrast"]["first"] == 2
    np.testing.assert_allclose(over["contrast"]["lead"], given["contrast"]["lead"], atol=1e-3)


def test_words_are_replaced_whole(post):
    """All of a text is replaced for its only word, as for its source share."""
    body = {"model": "tiny", "source": ["red green", "blue"], "target": ["abc", "ab"]}
    both, one = attributed(post, **body, unit="word")
    tokens = attributed(post, **body, unit="token")
    words = [
        {"text": "red", "start": 0, "end": 3, "tokens": [0]},
        {"text": "green", "start": 4, "end": 9, "tokens": [1]},
    ]
    assert both["attribution"][0]["columns"] == words
    np.testing.assert_allclose(blocks_of(both)["target"], blocks_of(tokens[0])["target"], atol=1e-5)
    lost = blocks_of(one)["target"][:, 0]
    np.testing.assert_allclose(one["source_share"], 1 - np.minimum(np.exp(-lost), 1), atol=1e-5)


KINDS = {"encoder": 4, "decoder": 3, "cross": 3}  # layers of the default model


def test_heads_are_worth_what_a_target_loses_when_they_are_switched_off(post):
    """As /v1/score says with ablate, of generated tokens."""
    body = {"source": "read", "target_prefix": "R"}
    answer = post("/v1/attribution", **body, of="heads")[1]
    (result,) = answer["results"]
    assert "replacement" not in answer
    assert "source_share" not in result
    found = blocks_of(result)
    assert {kind: data.shape for kind, data in found.items()} == {
        kind: (layers, 4) for kind, layers in KINDS.items()
    }

    def total(**ablated):
        body = {"source": "read", "target": result["target"], **ablated}
        (scored,) = post("/v1/score", **body)[1]["results"]
        return sum(scored["log_probs"][1:])

    for kind, layer, head in [("encoder", 0, 1), ("decoder", 2, 0), ("cross", 1, 3)]:
        ablate = [{"kind": kind, "layer": layer, "heads": [head]}]
        lost = total() - total(ablate=ablate)
        assert found[kind][layer, head] == pytest.approx(lost, abs=1e-3)
    block = result["attribution"][0]
    assert (block["rows"][2], block["columns"][3]) == ({"text": "layer 2"}, {"text": "head 3"})
    assert sum(abs(data).max() for data in found.values()) > 0.1


def test_heads_are_drawn_as_a_picture_for_each_kind(client):
    body = {"model": "g2p-en", "source": "read", "of": "heads"}
    answer = client.post("/v1/attribution", json=body, headers={"accept": "image/svg+xml"})
    texts = texts_of(ElementTree.fromstring(answer.content))
    said = "attention: log-prob that the target loses without each head"
    assert [text for text in texts if said in text] == [f"{kind} {said}" for kind in KINDS]
    assert texts.count("layer 2") == texts.count("head 3") == 3


def test_a_model_without_gates_cannot_say_what_heads_are_worth(tiny, tmp_path):
    bundle = shutil.copytree(tiny, tmp_path / "without-gates")

    def remove(manifest):
        for graphs in manifest["precisions"].values():
            for name in [each for each in graphs if each.startswith("gated")]:
                del manifest["files"][graphs[name]]
                (bundle / graphs.pop(name)).unlink()

    edit_json("bundle.json", remove, bundle)
    with opened(bundle) as client:
        body = {"source": "red", "target": "a"}
        assert client.post("/v1/attribution", json=body).status_code == 200
        answer = client.post("/v1/attribution", json={**body, "of": "heads"})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_supported")


NUMBERS = st.floats(-(2.0**100), 0, width=32)
LOG_PROBS = st.tuples(st.integers(2, 5), st.integers(1, 4)).flatmap(
    lambda shape: arrays.arrays(np.float32, shape, elements=NUMBERS)
)


@given(LOG_PROBS)
def test_a_share_is_between_0_and_1_whatever_the_log_probs(log_probs):
    shares = source_shares(log_probs)
    assert ((shares >= 0) & (shares <= 1)).all()
    assert (shares[log_probs[-1] >= log_probs[0]] == 0).all()
    assert losses(log_probs).shape == (log_probs.shape[1], len(log_probs) - 2)


@pytest.mark.parametrize(
    ("target", "foil", "first"),
    [
        ([5, 6, 2], [5, 6, 2], None),
        ([5, 6, 2], [7], 0),
        ([5, 6], [5, 6, 2], 2),
        ([5, 6, 2], [5, 6], 2),
    ],
)
def test_a_target_that_has_ended_has_no_token_to_lead_with(target, foil, first):
    assert first_difference(target, foil) == first
    one, other = (np.full((3, len(ids)), -1.0, np.float32) for ids in (target, foil))
    found = leads(one, other, first)
    if first is None:
        assert not found.any()
    else:
        assert (found[0] == (first < len(foil)) - (first < len(target))).all()
        assert (found[1] == len(foil) - len(target)).all()


def test_arrays_hold_what_the_json_does(client):
    body = {"model": "g2p-en", "source": ["heed", "read"], "contrast": ["HH", "R"], "decimals": 3}

    def ask(form):
        return client.post("/v1/attribution", json=body, headers={"accept": form}).content

    document = json.loads(ask("application/json"))
    expected = {
        f"{i}.0.{block['kind']}": np.array(block.pop("data"), np.float32)
        for i, result in enumerate(document["results"])
        for block in result["attribution"]
    }
    npz = dict(np.load(io.BytesIO(ask("application/npz"))))
    assert json.loads(str(npz.pop("meta"))) == document
    for found in (npz, load(ask("application/safetensors"))):
        assert found.keys() == expected.keys()
        for name, data in expected.items():
            np.testing.assert_array_equal(found[name], data)


def test_a_picture_is_red_where_much_is_lost_and_blue_where_much_is_gained(client):
    body = {"model": "g2p-en", "source": "read", "target": "R EH1 D", "contrast": "R IY1 D"}
    (result,) = client.post("/v1/attribution", json=body).json()["results"]
    answer = client.post("/v1/attribution", json=body, headers={"accept": "image/svg+xml"})
    root = ElementTree.fromstring(answer.content)
    bar, cells, _, contrast = root.findall(f"{SVG}image")
    assert [*map(tuple, decoded(bar)[0][[0, -1]])] == [*map(tuple, BLUE_TO_RED[[0, -1]])]
    for image, data in zip((cells, contrast), blocks_of(result).values(), strict=True):
        colours, extreme = decoded(image), np.unravel_index(abs(data).argmax(), data.shape)
        end = -1 if data[extreme] > 0 else 0
        assert tuple(colours[extreme]) == tuple(BLUE_TO_RED[end])
    texts = texts_of(root)
    assert "log-prob that rows lose without columns" in texts
    assert {"EH1, not IY1", "whole target"} <= {*texts}
    png = client.post("/v1/attribution", json=body, headers={"accept": "image/png"})
    assert Image.open(io.BytesIO(png.content)).width > 100


@pytest.mark.parametrize(
    ("body", "status", "pointer", "said"),
    [
        ({"source": ""}, 422, "/source", "at least one"),
        ({"source": "a", "target": ""}, 422, "/target", "at least one"),
        ({"source": "a", "contrast": ""}, 422, "/contrast", "at least one"),
        ({"source": "a", "contrast": ["a", "b"]}, 422, "/contrast", "2 targets for 1 source"),
        ({"source": ["a", "b"], "target": "D", "contrast": ["D", "D"]}, 422, "/target", "1 target"),
        ({"source": "a", "contrast": [[10**6]]}, 422, "/contrast/0/0", "not allowed"),
        ({"source": "a", "contrast": [["D"]]}, 422, "/contrast/0/0", "the id of a token"),
        ({"source": "a", "contrast": "D " * 80}, 413, "/contrast", "shorten it"),
        ({"source": "a", "target": "D", "beam_size": 2}, 422, "/beam_size", "no effect"),
        ({"source": "a", "unit": "letter"}, 422, "/unit", "'token' or 'word'"),
        ({"source": "a", "of": "layers"}, 422, "/of", "'source' or 'heads'"),
        ({"source": "a", "of": "heads", "unit": "word"}, 422, "/unit", "no effect"),
        ({"source": "a", "of": "heads", "contrast": "D"}, 422, "/contrast", "no effect"),
        ({"source": "a", "decimals": 10}, 422, "/decimals", "at most 9"),
        ({"source": "a", "target_language": "fr"}, 422, "/target_language", "no languages"),
        ({"source": "a", "max_new_tokens": 65}, 422, "/max_new_tokens", "1 to 64"),
    ],
)
def test_what_cannot_be_attributed_is_refused(post, body, status, pointer, said):
    found, problem = post("/v1/attribution", **body)
    assert (found, problem["errors"][0]["pointer"]) == (status, pointer)
    assert said in problem["detail"]


@pytest.mark.parametrize("as_ids", [False, True])
def test_a_given_target_must_have_another_foil_than_itself(post, as_ids):
    """Each is named by its place; in a partial request, the other pairs are answered."""
    foil = "R EH1 D"
    if as_ids:
        foil = post("/v1/tokenize", text=foil, side="target")[1]["results"][0]["token_ids"]
    body = {"source": ["read", "read"], "target": ["R IY1 D", "R EH1 D"], "contrast": [foil, foil]}
    status, problem = post("/v1/attribution", **body)
    assert (status, [each["pointer"] for each in problem["errors"]]) == (422, ["/contrast/1"])
    assert "is the target itself: send another one" in problem["detail"]
    first, second = attributed(post, **body, partial=True)
    assert first["contrast"]["first"] == 1
    assert second["problem"]["status"] == 422
    single = {"source": "read", "target": "R EH1 D", "contrast": "R EH1 D"}
    assert post("/v1/attribution", **single)[1]["errors"][0]["pointer"] == "/contrast"
    (alone,) = attributed(post, source=["read"], target=["D"], contrast=["D"], partial=True)
    assert alone["problem"]["status"] == 422


@pytest.mark.parametrize(
    ("body", "most", "rows", "change"),
    [
        ({"source": ["ab", "abc"]}, 8, 9, lambda body, said: {**body, "source": ["ab"]}),
        ({"source": "a" * 9}, 8, 11, lambda body, said: {**body, "unit": "word"}),
        ({"source": "a" * 9, "contrast": "D"}, 21, 22, lambda body, said: {**body, "unit": "word"}),
        (
            {"source": ["a"] * 3, "of": "heads"},
            82,
            123,
            lambda body, said: {**body, "source": ["a"] * 2},
        ),
        ({"source": "abcdef", "contrast": "D"}, 5, 16, lambda body, said: None),
    ],
)
def test_more_rows_than_the_limit_are_refused_with_what_would_fit(
    post, limit, body, most, rows, change
):
    limit(max_rows=most)
    status, problem = post("/v1/attribution", **body)
    assert (status, problem["code"]) == (413, "too_large")
    assert f"takes {rows} rows" in problem["detail"]
    assert f"the limit is {most}" in problem["detail"]
    less = change(body, problem["detail"])
    if less:
        assert post("/v1/attribution", **less)[0] == 200
    limit(max_rows=rows)
    assert post("/v1/attribution", **body)[0] == 200


def test_a_decoded_target_has_what_the_glossary_requires(post):
    sources, glossary = ["tomato", "read", "photograph"], {"tomato": "AA1 T", "read": "EH1"}
    results = attributed(post, source=sources, glossary=glossary)
    _, decoded = post("/v1/decode", source=sources, glossary=glossary)
    texts = [each["hypotheses"][0]["text"] for each in decoded["results"]]
    assert [each["target"] for each in results] == texts
    assert "AA1 T" in texts[0]
    status, problem = post("/v1/attribution", source="tomato", glossary={"tomato": "zz"})
    assert (status, problem["errors"][0]["pointer"]) == (422, "/glossary/tomato")
