"""Checkpoints are converted, served, and answer as Hugging Face's own classes do."""

import copy
import json
from contextlib import nullcontext

import pytest
import torch
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from libretranslatepy import LibreTranslateAPI

from model.checkpoint import load_model
from model.importers.tokenizers.probes import probes
from model.network.config import InputError
from tests.conftest import opened, serving
from tests.model.importers import checkpoints
from tests.model.importers.kinds import LANGUAGES, T5, WRITERS, banned
from tests.model.importers.served import assert_same_answers, convert, post, refusal, run, start_of
from tests.service.processes import run_python
from tests.tracing import without_gates

QUICK = ("marian", "nllb")
KINDS = [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.long) for kind in WRITERS]
TEXTS = probes()[:40]
OFF = (  # heads, and where they are
    (1, {"kind": "encoder", "layer": 0}),
    (0, {"kind": "decoder", "layer": 1}),
    (1, {"kind": "cross", "layer": 1}),
)
HEADS = {  # the output projections of these three
    "bart": (
        "model.encoder.layers.0.self_attn.out_proj",
        "model.decoder.layers.1.self_attn.out_proj",
        "model.decoder.layers.1.encoder_attn.out_proj",
    ),
    "t5": (
        "encoder.block.0.layer.0.SelfAttention.o",
        "decoder.block.1.layer.0.SelfAttention.o",
        "decoder.block.1.layer.1.EncDecAttention.o",
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def converted(request, tmp_path_factory):
    """The kind, the folder of the checkpoint, the bundle, and Hugging Face's model."""
    kind = request.param
    folder = tmp_path_factory.mktemp(kind) / "checkpoint"
    folder.mkdir()
    theirs = WRITERS[kind](folder)
    options = ("all", "--example", TEXTS[0]) if kind == "marian" else ("fp32",)
    with without_gates() if kind == "nllb" else nullcontext():  # m2m100 is of the same class
        return kind, folder, convert(folder, *options), theirs


@pytest.fixture(scope="module")
def served(converted):
    with opened(converted[2], precision="fp32") as client:
        yield client


def test_examples_are_requests_that_need_no_language(converted, served, tmp_path):
    kind, folder, _, _ = converted
    if kind == "nllb":
        refused = refusal(folder, tmp_path / "bundle", "--example", TEXTS[0])
        assert refused.startswith("heed: --example gives a text without its languages")
    (card,) = served.get("/v1/models").json()["models"]
    assert card["examples"] == ([{"source": TEXTS[0]}] if kind == "marian" else [])
    for example in card["examples"]:
        assert post(served, "/v1/decode", **example)


def generate(theirs, kind, ids, start):
    """Decode as `generate` does with the checkpoint's own options."""
    forced = {"forced_bos_token_id": start[1]} if kind in ("nllb", "m2m100", "mbart50") else {}
    forced |= {"decoder_start_token_id": start[0]} if kind == "plbart" else {}
    (found,) = theirs.generate(torch.tensor([ids]), **forced)
    return found.tolist()[len(start) :]


def test_decoding_without_options_is_what_generate_does(converted, served):
    kind, _, bundle, theirs = converted
    languages = LANGUAGES.get(kind, {})
    texts = TEXTS if kind == "marian" else TEXTS[:12]  # the others decode to a limit of hundreds
    sources = post(served, "/v1/tokenize", text=texts, **languages)
    results = post(served, "/v1/decode", source=texts, **languages)
    start = start_of(bundle, languages)
    for source, result in zip(sources, results, strict=True):
        expected = generate(theirs, kind, source["token_ids"], start)
        assert result["hypotheses"][0]["token_ids"] == expected


def test_log_probs_and_attention_are_those_of_hugging_face(converted, served):
    kind, _, bundle, theirs = converted
    languages = LANGUAGES.get(kind, {})
    sources = post(served, "/v1/tokenize", text=TEXTS[:10], **languages)
    targets = post(served, "/v1/tokenize", text=TEXTS[10:20], side="target")
    pairs = [(s["token_ids"], t["token_ids"]) for s, t in zip(sources, targets, strict=True)]
    assert_same_answers(served, theirs, pairs, bundle, languages, banned(kind, theirs))


@torch.no_grad()
def test_ablated_heads_are_those_of_hugging_face_without_their_slices(converted, served):
    kind, _, bundle, theirs = converted
    if kind == "nllb":
        pytest.skip("exported without gated graphs, unlike m2m100, which is of the same class")
    languages = LANGUAGES.get(kind, {})
    pair = [each["token_ids"] for each in post(served, "/v1/tokenize", text=TEXTS[:2], **languages)]
    cut, places = copy.deepcopy(theirs), HEADS["t5" if kind in T5 else "bart"]
    for place, (head, _) in zip(places, OFF, strict=True):
        weight = cut.get_submodule(place).weight.unflatten(1, (2, -1))
        weight[:, head] = 0
    ablate = [{**where, "heads": [head]} for head, where in OFF]
    assert_same_answers(served, cut, [pair], bundle, languages, banned(kind, theirs), ablate=ablate)


def test_the_bundle_says_what_was_proved_and_where_it_comes_from(converted):
    kind, _, bundle, _ = converted
    manifest = json.loads((bundle / "bundle.json").read_text())
    origin, card = manifest["origin"], (bundle / "MODEL_CARD.md").read_text()
    assert manifest["licence"] == "apache-2.0"
    assert "Licence of the weights: apache-2.0. Languages: en, fr." in card
    assert all(proof["holds"] is not False for proof in origin["proofs"])
    assert [each["holds"] for each in origin["proofs"] if each["name"] == "network"] == [True]
    for proof in origin["proofs"]:  # the differences that were measured
        assert f"| {proof['name']} | {proof['reference']} | {proof['result']} |" in card
    assert {"config.json", "model.safetensors", "README.md"} <= origin["files"].keys()
    for digest in origin["files"].values():
        assert digest in card
    assert {"torch", "transformers", "tokenizers", "onnxruntime"} <= origin["versions"].keys()
    for package, number in origin["versions"].items():
        assert f"{package} {number}" in card
    proved = [each["name"] for each in origin["proofs"] if each["name"].endswith(" graphs")]
    precisions = ["fp32", "int8", "fp16"] if kind == "marian" else ["fp32"]
    assert proved == [f"{precision} graphs" for precision in precisions]
    assert [*manifest["precisions"]] == precisions
    kept = origin.get("fp32_products")
    assert (kept is not None) == (kind == "marian")
    assert (f"| {len(kept or [])} of 33 products stay fp32" in card) == (kind == "marian")
    assert ("% multiply activations of 16 bits; int8 changes predictions by " in card) == (
        kind == "marian"
    )
    assert "| 8 of 8 texts are decoded as by `generate`; " in card


@pytest.mark.parametrize("converted", ["nllb"], indirect=True)
def test_a_language_that_the_model_lacks_is_refused_with_the_nearest(served):
    body = {"source": "a", "source_language": "eng", "target_language": "fra_Latn"}
    answer = served.post("/v1/decode", json=body)
    assert answer.status_code == 422
    assert "eng_Latn" in answer.json()["detail"]
    listed = served.get("/v1/models").json()["models"][0]["languages"]
    every = [*checkpoints.LANGUAGES]
    assert listed == {"source": every, "target": every}


@pytest.mark.parametrize("converted", ["marian"], indirect=True)
def test_a_fixed_pair_is_listed_and_changes_nothing(served):
    (model,) = served.get("/v1/models").json()["models"]
    assert model["task"] == "translation"
    assert model["languages"] == {"source": ["en"], "target": ["fr"]}
    pair = {"source_language": "en", "target_language": "fr"}
    plain = post(served, "/v1/decode", source=TEXTS[0])
    assert post(served, "/v1/decode", source=TEXTS[0], **pair) == plain
    for slot, code in (("source_language", "de"), ("target_language", "en")):
        answer = served.post("/v1/decode", json={"source": "a", **pair, slot: code})
        assert answer.status_code == 422
        (fault,) = answer.json()["errors"]
        assert fault["pointer"] == f"/{slot}"
        assert f"is {code!r}, which this model does not know: give another" in fault["detail"]


@pytest.mark.parametrize("converted", ["marian"], indirect=True)
def test_stock_clients_translate_from_one_language_into_one(converted, served):
    expected, whole = (
        post(served, "/v1/decode", source="the weather", **limit)[0]["hypotheses"][0]["text"]
        for limit in ({}, {"max_new_tokens": 64})  # LibreTranslate's are not cut
    )
    options = ("--protocols", "libretranslate,hugging-face", "--precision", "fp32")
    with serving(*options, "--bundles", str(converted[2])) as address:
        hugging_face = InferenceClient(base_url=address, token="")
        for languages in ({}, {"src_lang": "en", "tgt_lang": "fr"}):
            found = hugging_face.translation("the weather", **languages)
            assert found.translation_text == expected
        with pytest.raises(HfHubHTTPError, match="'de', which this model does not know"):
            hugging_face.translation("the weather", src_lang="de", tgt_lang="fr")
        libre = LibreTranslateAPI(address)
        listed = {each["code"]: each["targets"] for each in libre.languages()}
        assert listed == {"en": ["fr"], "fr": []}
        assert libre.translate("the weather", "en", "fr") == whole


@pytest.mark.long
@pytest.mark.parametrize("converted", ["t5"], indirect=True)
def test_two_conversions_give_the_same_bytes(converted, tmp_path):
    _, folder, bundle, _ = converted
    again = tmp_path / "bundle"
    assert run(folder, again, "--precision", "fp32").exit_code == 0
    for path in bundle.rglob("*"):
        if path.is_file():
            assert (again / path.relative_to(bundle)).read_bytes() == path.read_bytes()


DECODE = """
import sys
for name in ("torch", "sentencepiece", "transformers", "onnx", "model"):
    sys.modules[name] = None  # an import of it raises ImportError
from pathlib import Path
from fastapi.testclient import TestClient
from service.app import create_app
from service.settings.settings import Settings

with TestClient(create_app(Settings(bundles=[Path(sys.argv[1])])), "http://localhost") as client:
    languages = {"source_language": "eng_Latn", "target_language": "fra_Latn"}
    answer = client.post("/v1/decode", json={"source": "the weather", **languages})
    print(answer.json()["results"][0]["hypotheses"][0]["token_ids"])
"""


@pytest.mark.parametrize("converted", ["nllb"], indirect=True)
def test_a_bundle_is_decoded_without_what_converted_it(converted, served):
    done = run_python("-c", DECODE, converted[2])
    languages = LANGUAGES["nllb"]
    (result,) = post(served, "/v1/decode", source="the weather", **languages)
    assert str(result["hypotheses"][0]["token_ids"]) in done.stdout.splitlines(), done.stderr


def test_a_converted_bundle_is_neither_trained_nor_evaluated(converted):
    with pytest.raises(InputError, match="was converted from a checkpoint"):
        load_model(converted[2])
