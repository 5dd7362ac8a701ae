"""What a model of Marian says of itself is read, or refused by name."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from model.importers.checkpoint import Checkpoint
from model.importers.convert import read_model
from model.importers.proofs.tokenizers import prove_pieces
from model.importers.usage.usage import read_usage
from model.importers.vocabularies import read_vocabularies
from tests.model.importers.marian.folders import (
    OPTIONS,
    names_of,
    pieces,
    quoted,
    random_tensors,
    shortlist_file,
    write_folder,
    zip_folder,
)
from tests.model.importers.served import refusal

ONE = {"enc-depth": 1, "dec-depth": 1}
REFUSED = {
    "type": ["s2s", "multi-transformer", "bert", "transformer-lm"],
    "transformer-decoder-autoreg": ["average-attention"],
    "transformer-preprocess": ["r", "nn"],
    "transformer-postprocess": ["da", "dh", "dar", "n", "nda"],
    "transformer-postprocess-emb": ["r"],
    "transformer-postprocess-top": ["a", "an"],
    "transformer-ffn-depth": [1, 3],
    "transformer-ffn-activation": ["tanh"],
    "transformer-decoder-dim-ffn": [64],
    "transformer-tied-layers": [[1, 1]],
    "transformer-train-position-embeddings": [True],
    "transformer-no-projection": [True],
    "transformer-attention-mask": ["alibi"],
    "lemma-dim-emb": [16, -1],
    "lemma-dependency": ["soft-transformer-layer"],
    "factors-combine": ["concat"],
    "right-left": [True],
    "ulr": [True],
    "input-types": [["sequence", "class"]],
    "transformer-mixture": [4],
    "tied-embeddings": ["maybe"],
}
CASES = [(name, value) for name, values in REFUSED.items() for value in values]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_an_option_that_heed_lacks_is_named(name, value, tmp_path):
    write_folder(tmp_path / "model", **ONE, **{name: value})
    assert f"special:model.yml has {name} " in refusal(tmp_path / "model", tmp_path / "bundle")


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_another_recurrence_is_named(cell, tmp_path):
    rnn = {"transformer-decoder-autoreg": "rnn", "dec-cell": cell}
    write_folder(tmp_path / "model", **ONE, **rnn)
    assert f"dec-cell '{cell}'" in refusal(tmp_path / "model", tmp_path / "bundle")


def read(folder):
    """Return the network, the tokenizers, and how the model is used."""
    checkpoint = Checkpoint(folder)
    model, vocabularies = read_model(checkpoint), read_vocabularies(checkpoint)
    return model, vocabularies, read_usage(checkpoint, vocabularies, model.config)


def test_a_text_is_read_as_marian_reads_it(tmp_path):
    write_folder(tmp_path / "model", container="fp32", **ONE)
    model, vocabularies, usage = read(tmp_path / "model")
    names = names_of(pieces())
    assert usage.source_suffix == [names.index("</s>")] == [model.config.eos_id]
    assert usage.source_prefix == []
    assert usage.decoder_start == [320]
    assert usage.decoding["suppress_tokens"] == [names.index("<unk>")]
    assert (usage.source_languages, usage.target_languages) == ({"en": []}, {"pt": []})
    assert not model.decoder.embedding.tokens.weight[320].any()
    typed = vocabularies.source.tokenizer.encode("a </s> <unk> b", add_special_tokens=False).ids
    assert not {0, 320} & {*typed}


def test_settings_of_the_decoder_are_taken(tmp_path):
    folder = tmp_path / "model"
    write_folder(folder, **ONE)
    (folder / "decoder.yml").write_text(
        "models:\n  - /home/me/model.npz\nvocabs:\n  - ./vocab.enpt.spm\n  - vocab.enpt.spm\n"
        "beam-size: 6\nnormalize: 0.6\nallow-unk: true\nmini-batch: 1\n"
    )
    decoding = read(folder)[2].decoding
    assert (decoding["beam_size"], decoding["length_penalty"]) == (6, 0.6)
    assert decoding["suppress_tokens"] == []
    assert decoding["early_stopping"] is False


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("models: [a.npz, b.npz]", "an ensemble of 2 models"),
        ("vocabs: [a.fsv, b.fsv]", "a vocabulary of factors, a.fsv"),
        ("word-penalty: 0.5", "word-penalty '0.5'"),
        ("beam-size: many", "beam-size 'many'"),
        ("beam-size: 65", "beam-size is 65; expected 1 to 64"),
    ],
)
def test_settings_that_heed_lacks_are_named(settings, expected, tmp_path):
    write_folder(tmp_path / "model", **ONE)
    (tmp_path / "model" / "decoder.yml").write_text(settings)
    assert expected in refusal(tmp_path / "model", tmp_path / "bundle")


@pytest.mark.parametrize(("named", "layer"), [("last", 1), (1, 0), (2, 1)])
@pytest.mark.parametrize("file", ["model.npz", "opus.spm32k-spm32k.transformer-align.model1.npz"])
def test_the_first_head_of_the_layer_that_options_name_is_the_guided_one(
    named, layer, file, tmp_path
):
    """OPUS-MT names its models so if it trained them with alignments."""
    folder = tmp_path / "model"
    write_folder(folder, **{"transformer-guided-alignment-layer": named})
    (folder / "model.npz").rename(folder / file)
    usage = read(folder)[2]
    assert usage.guided == (layer, 0)
    assert usage.surely_guided is ("transformer-align" in file)


@pytest.mark.parametrize("named", ["first", 0, 3, -1])
def test_a_guided_layer_that_the_decoder_lacks_is_named(named, tmp_path):
    name = "transformer-guided-alignment-layer"
    write_folder(tmp_path / "model", **{name: named})
    assert f"{name} '{named}'" in refusal(tmp_path / "model", tmp_path / "bundle")


def test_two_files_of_weights_are_named(tmp_path):
    write_folder(tmp_path / "model", **ONE)
    write_folder(tmp_path / "model", container="fp32", **ONE)
    assert "2 files of weights" in refusal(tmp_path / "model", tmp_path / "bundle")


def test_languages_of_the_target_go_before_a_source(tmp_path):
    folder = tmp_path / "model"
    write_folder(folder, vocabulary="yml", **ONE, **{"dim-vocabs": [322, 322]})
    names = [*names_of(pieces(320)), ">>fra<<", ">>por<<"]
    lines = [f"{quoted(name)}: {i}\n" for i, name in enumerate(names)]
    (folder / "vocab.yml").write_text("".join(lines))
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(pieces(320))
    _, _, usage = read(folder)
    assert usage.source_prefix == ["target_language"]
    assert usage.target_languages == {"fra": [320], "por": [321]}
    assert usage.decoder_start == [322]


def test_packed_files_are_those_that_were_packed(tmp_path):
    """Firefox's server packs each file; OPUS-MT all of them."""
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    write_folder(plain, container="int8", **ONE)
    (plain / "lex.50.50.enpt.s2t.bin").write_bytes(shortlist_file([[7], [], [3, 9, 250]]))
    packed.mkdir()
    for path in plain.iterdir():
        (packed / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    expected, found = read(plain), read(packed)
    for name, tensor in expected[0].state_dict().items():
        assert tensor.equal(found[0].state_dict()[name]), name
    assert expected[1].source.tokenizer.to_str() == found[1].source.tokenizer.to_str()
    assert replace(expected[2], shortlists=None) == replace(found[2], shortlists=None)
    for name in ("offsets", "tokens", "always"):
        ours, theirs = (getattr(each[2].shortlists, name) for each in (found, expected))
        np.testing.assert_array_equal(ours, theirs)
    assert [proof.holds for proof in prove_pieces(found[1])] == [True, True]


@pytest.mark.long
def test_a_zip_becomes_the_bundle_of_its_folder(tmp_path):
    from tests.model.importers.served import run

    write_folder(tmp_path / "opus", vocabulary="yml", **ONE)
    path = zip_folder(tmp_path / "opus", tmp_path / "opus.zip")
    manifests = []
    for given in (tmp_path / "opus", path):
        bundle = tmp_path / f"of-{given.name}"
        done = run(given, bundle, "--precision", "fp32", "--name", "opus")
        assert done.exit_code == 0, done.output
        manifests.append(json.loads((bundle / "bundle.json").read_text()))
    assert manifests[0] == manifests[1]


def test_one_tensor_too_many_is_named(tmp_path):
    tensors = random_tensors(OPTIONS | ONE)
    tensors["decoder_l9_ffn_b1"] = tensors["decoder_l1_ffn_b1"]
    write_folder(tmp_path / "model", tensors=tensors, **ONE)
    said = refusal(tmp_path / "model", tmp_path / "bundle")
    assert "has 1 tensor that a model of this kind does not have: decoder_l9_ffn_b1;" in said
