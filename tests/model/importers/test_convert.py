"""Checkpoints are converted, served, and answer as Hugging Face's own classes do."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from model.__main__ import app as commands
from model.checkpoint import load_model
from model.importers.probes import probes
from model.network.config import InputError
from service.app import create_app
from service.settings import Settings
from tests.model.importers.checkpoints import (
    LANGUAGES,
    write_bart,
    write_m2m100,
    write_madlad,
    write_marian,
    write_mbart50,
    write_nllb,
    write_pegasus,
    write_t5,
)

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
KINDS = {
    "marian": write_marian,
    "nllb": write_nllb,
    "t5": write_t5,
    "m2m100": write_m2m100,
    "mbart50": write_mbart50,
    "bart": write_bart,
    "pegasus": write_pegasus,
    "madlad": write_madlad,
}
QUICK = ("marian", "nllb", "t5")
PARAMETERS = [
    kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.long) for kind in KINDS
]
USED = {  # the languages of a request, by the kind of checkpoint
    "nllb": {"source_language": "eng_Latn", "target_language": "fra_Latn"},
    "m2m100": {"source_language": "en", "target_language": "fr"},
    "mbart50": {"source_language": "en_XX", "target_language": "fr_XX"},
    "madlad": {"target_language": "fr"},
}
TEXTS = probes()[:40]


def run(*arguments):
    return CliRunner().invoke(commands, ["convert", *map(str, arguments)])


@pytest.fixture(scope="module", params=PARAMETERS)
def converted(request, tmp_path_factory):
    """The kind, the folder of the checkpoint, the bundle, and Hugging Face's model."""
    folder = tmp_path_factory.mktemp(request.param) / "checkpoint"
    folder.mkdir()
    theirs = KINDS[request.param](folder)
    bundle = folder.parent / "bundle"
    precision = "both" if request.param == "marian" else "fp32"
    done = run(folder, bundle, "--precision", precision)
    assert done.exit_code == 0, done.output
    return request.param, folder, bundle, theirs


@pytest.fixture(scope="module")
def served(converted):
    settings = Settings(bundles=[converted[2]], precision="fp32")
    with TestClient(create_app(settings)) as client:
        yield client


def post(client, path, **body):
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def generate(theirs, kind, ids, bundle):
    """Decode as `generate` does with the checkpoint's own options."""
    forced, start = {}, start_of(kind, bundle)
    if kind in ("nllb", "m2m100", "mbart50"):
        forced["forced_bos_token_id"] = start[1]
    with torch.no_grad():
        (found,) = theirs.generate(torch.tensor([ids]), **forced)
    return found.tolist()[len(start) :]


def start_of(kind, bundle):
    """Return the ids that the decoder reads first."""
    manifest = json.loads((bundle / "bundle.json").read_text())
    codes, language = manifest["languages"]["target"], USED.get(kind, {}).get("target_language")
    start = [
        codes[language] if each == "target_language" else [each]
        for each in manifest["decoder_start"]
    ]
    return [token_id for ids in start for token_id in ids]


def test_decoding_without_options_is_what_generate_does(converted, served):
    kind, _, bundle, theirs = converted
    languages = USED.get(kind, {})
    sources = post(served, "/v1/tokenize", text=TEXTS, **languages)
    results = post(served, "/v1/decode", source=TEXTS, **languages)
    for source, result in zip(sources, results, strict=True):
        expected = generate(theirs, kind, source["token_ids"], bundle)
        assert result["hypotheses"][0]["token_ids"] == expected


def test_scores_are_the_log_probs_of_hugging_face(converted, served):
    kind, _, bundle, theirs = converted
    languages = USED.get(kind, {})
    texts, targets = TEXTS[:10], TEXTS[10:20]
    sources = post(served, "/v1/tokenize", text=texts, **languages)
    read = post(served, "/v1/tokenize", text=targets, side="target", **languages)
    scored = post(served, "/v1/score", source=texts, target=targets, **languages)
    start = start_of(kind, bundle)
    for source, target, result in zip(sources, read, scored, strict=True):
        inputs = [*start, *target["token_ids"][:-1]]
        with torch.no_grad():
            logits = theirs(
                input_ids=torch.tensor([source["token_ids"]]),
                decoder_input_ids=torch.tensor([inputs]),
            ).logits[0]
        if kind == "marian":  # its padding is never generated, and the others share its probability
            logits[:, theirs.config.pad_token_id] = -torch.inf
        rows = logits.log_softmax(-1)[len(start) - 1 :]
        expected = rows[torch.arange(len(rows)), target["token_ids"]]
        np.testing.assert_allclose(result["log_probs"], expected.numpy(), **TOLERANCE)


def test_attention_is_that_of_hugging_face(converted, served):
    kind, _, bundle, theirs = converted
    languages = USED.get(kind, {})
    theirs.set_attn_implementation("eager")  # the only one that gives weights
    texts, targets = TEXTS[:4], TEXTS[4:8]
    sources = post(served, "/v1/tokenize", text=texts, **languages)
    read = post(served, "/v1/tokenize", text=targets, side="target", **languages)
    wanted = {"kinds": ["encoder", "decoder", "cross"]}
    shown = post(
        served, "/v1/attention", source=texts, target=targets, attention=wanted, **languages
    )
    start = start_of(kind, bundle)
    first = len(start) - 1  # the row that predicts the first token of the target
    for source, target, result in zip(sources, read, shown, strict=True):
        with torch.no_grad():
            expected = theirs(
                input_ids=torch.tensor([source["token_ids"]]),
                decoder_input_ids=torch.tensor([[*start, *target["token_ids"][:-1]]]),
                output_attentions=True,
            )
        references = {
            "encoder": torch.cat(expected.encoder_attentions),
            "decoder": torch.cat(expected.decoder_attentions)[:, :, first:],
            "cross": torch.cat(expected.cross_attentions)[:, :, first:],
        }
        for block in result["attention"]:
            # T5 does not scale its scores: of random weights they are large, and rounded the more
            np.testing.assert_allclose(
                np.array(block["data"]), references[block["kind"]].numpy(), rtol=5e-4, atol=1e-5
            )


def test_the_bundle_says_what_was_proved_and_where_it_comes_from(converted):
    kind, _, bundle, _ = converted
    manifest = json.loads((bundle / "bundle.json").read_text())
    origin, card = manifest["origin"], (bundle / "MODEL_CARD.md").read_text()
    assert manifest["licence"] == "apache-2.0"
    assert all(proof["holds"] is not False for proof in origin["proofs"])
    assert [each["holds"] for each in origin["proofs"] if each["name"] == "network"] == [True]
    assert {"config.json", "model.safetensors", "README.md"} <= origin["files"].keys()
    for digest in origin["files"].values():
        assert digest in card
    assert "en, fr" in card
    assert (bundle / "int8").exists() == (kind == "marian")


def test_a_language_that_the_model_lacks_is_refused_with_the_nearest(converted, served):
    if converted[0] != "nllb":
        pytest.skip("has no languages")
    body = {"source": "a", "source_language": "eng", "target_language": "fra_Latn"}
    answer = served.post("/v1/decode", json=body)
    assert answer.status_code == 422
    assert "eng_Latn" in answer.json()["detail"]
    listed = served.get("/v1/models").json()["models"][0]["languages"]
    assert listed == {"source": [*LANGUAGES], "target": [*LANGUAGES]}


def test_two_conversions_give_the_same_bytes(converted, tmp_path):
    kind, folder, bundle, _ = converted
    if kind != "t5":
        pytest.skip("one kind is enough")
    assert run(folder, tmp_path / "bundle", "--precision", "fp32").exit_code == 0
    for path in bundle.rglob("*"):
        if path.is_file():
            assert (
                tmp_path / "bundle" / path.relative_to(bundle)
            ).read_bytes() == path.read_bytes()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused") / "marian"
    folder.mkdir()
    write_marian(folder)
    return folder


def edit(folder, name="config.json", **changes):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut(folder, name):
    path = folder / name
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda f: (f / "config.json").unlink(), "it has no config.json"),
        (lambda f: (f / "vocab.json").unlink(), "has no vocab.json"),
        (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
        (lambda f: cut(f, "model.safetensors"), "model.safetensors is damaged or cut short"),
        (lambda f: cut(f, "source.spm"), "source.spm"),
        (lambda f: edit(f, model_type="longt5"), "model_type 'longt5': Heed knows bart, mbart"),
        (lambda f: edit(f, decoder_ffn_dim=64), "encoder_ffn_dim 48 and decoder_ffn_dim 64"),
        (lambda f: edit(f, activation_function="mish"), "activation_function 'mish'"),
        (lambda f: edit(f, decoder_layers=1), "tensors that a model of this kind does not have"),
        (lambda f: edit(f, decoder_layers=3), "the checkpoint is incomplete"),
        (lambda f: edit(f, "generation_config.json", do_sample=True), "do_sample True"),
        (lambda f: (f / "README.md").unlink(), "give --licence"),
        (lambda f: (f / "adapter_config.json").write_text("{}"), "holds an adapter"),
        (
            lambda f: (f / "model.safetensors").write_text(
                "version https://git-lfs.github.com/spec"
            ),
            "is a git-lfs pointer",
        ),
    ],
)
def test_a_folder_that_cannot_be_converted_is_refused_in_one_sentence(
    checkpoint, tmp_path, break_it, said
):
    folder, bundle = tmp_path / "marian", tmp_path / "bundle"
    shutil.copytree(checkpoint, folder)
    bundle.mkdir()
    (bundle / "bundle.json").write_text("an older bundle")
    break_it(folder)
    done = run(folder, bundle)
    assert done.exit_code == 2
    (sentence,) = (line for line in done.stderr.splitlines() if line.startswith("heed: "))
    assert said in sentence
    assert done.stdout == ""
    assert [path.name for path in bundle.iterdir()] == ["bundle.json"]
    assert {path.name for path in tmp_path.iterdir()} == {"marian", "bundle"}


def test_a_failed_proof_leaves_no_bundle(checkpoint, tmp_path, monkeypatch):
    from model.importers import proofs

    monkeypatch.setattr(proofs, "their_log_probs", lambda *_: np.zeros(1, np.float32))
    done = run(checkpoint, tmp_path / "bundle")
    assert done.exit_code == 3
    assert "| network |" in done.output
    assert "FAILS" in done.output
    assert not any(tmp_path.iterdir())


def test_a_checkpoint_is_converted_without_transformers(checkpoint, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    done = run(checkpoint, tmp_path / "bundle", "--precision", "fp32")
    assert done.exit_code == 0, done.output
    assert "not compared" in done.output


def test_a_converted_bundle_is_neither_trained_nor_evaluated(converted):
    _, _, bundle, _ = converted
    with pytest.raises(InputError, match="was converted from a checkpoint"):
        load_model(bundle)
