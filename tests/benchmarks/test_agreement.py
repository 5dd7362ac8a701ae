"""Heed and CTranslate2 decode the same checkpoints, at int8 and at fp32."""

import asyncio
import dataclasses
import json
import shutil

import pytest
import typer

from benchmarks import documents
from benchmarks.kit.models import MARIAN
from benchmarks.speed import agreement
from benchmarks.speed.agreement_report import agreement_columns, render_agreement
from benchmarks.speed.random_checkpoint import nllb, write_checkpoint
from benchmarks.speed.report import DOCS
from benchmarks.speed.witness import Witness
from model.importers.tokenizers.probes import probes
from service.bundle.manifest import load_bundle
from service.settings.settings import DEFAULT_BUNDLE, Precision
from tests.model.importers.checkpoints import let_texts_end
from tests.model.importers.kinds import WRITERS
from tests.model.importers.served import convert

TEXTS = probes()[:12]
LANGUAGES = {"source_language": "eng_Latn", "target_language": "fra_Latn"}
LAYERS = {
    f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")
}
SHAPE = nllb("tiny", vocab_size=2000, d_model=32, encoder_ffn_dim=32, decoder_ffn_dim=32, **LAYERS)
SMALL = {"d_model": 16, "embedding_scale": 0, "d_ff": 32, "num_heads": 2, "d_qk": 8, "d_v": 8}
SMALL |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
FOUND = {
    "machine": {"cpu": "A"},
    "family": "one",
    "texts": 2000,
    "searches": [
        {"beam_size": 1, "heed": 1999, "ctranslate2": 1000, "control": 2000},
        {"beam_size": 4, "heed": 0},
    ],
}


def test_shares_are_of_the_texts_and_a_missing_peer_leaves_its_columns_empty():
    columns = ["one", "2,000", "100.0%", "50.0%", "100.0%", "0.0%", "", ""]
    assert agreement_columns(FOUND) == columns


def test_each_machine_has_a_table():
    other = {**FOUND, "machine": {"cpu": "B"}}
    text = render_agreement([FOUND, other, {**FOUND, "family": "two"}])
    lines = [line.split(" |")[0] for line in text.splitlines() if line.startswith(("cpu", "| "))]
    head = ["| family", "| ---"]
    assert lines == ["cpu A", *head, "| one", "| two", "cpu B", *head, "| one"]


def test_a_line_replaces_that_of_the_same_family_and_machine(tmp_path):
    for name in ("performance.md", "performance.json"):
        shutil.copy(DOCS / name, tmp_path)
    numbers = json.loads((tmp_path / "performance.json").read_text())
    numbers.pop("agreement", None)
    (tmp_path / "performance.json").write_text(json.dumps(numbers))
    other = {**FOUND, "machine": {"cpu": "B"}}
    for found in (FOUND, other, {**FOUND, "texts": 10}):
        agreement.add_agreement(found, tmp_path)
    stored = json.loads((tmp_path / "performance.json").read_text())
    assert stored == {**numbers, "agreement": [{**FOUND, "texts": 10}, other]}
    assert (tmp_path / "performance.md").read_text().count("| one |") == 2


def test_texts_are_read_up_to_a_tab(tmp_path):
    (tmp_path / "texts").write_text("one\tx\n\ntwo words\n \t\n", encoding="utf-8")
    assert agreement.read_source_texts(tmp_path / "texts") == ["one", "two words"]


def test_a_file_without_texts_is_refused(tmp_path):
    (tmp_path / "texts").write_text("\n\n")
    with pytest.raises(typer.BadParameter, match="holds no text: give a file with a text on each"):
        agreement.read_source_texts(tmp_path / "texts")


def test_the_default_model_has_no_peer():
    found = agreement.measure(DEFAULT_BUNDLE, ["heed", "answer"], {}, None)
    assert found["family"] == "g2p-en"
    assert found["searches"] == [{"beam_size": beam_size, "heed": 2} for beam_size in (1, 4)]


def test_a_language_that_the_model_does_not_read_is_refused():
    with pytest.raises(typer.BadParameter, match="reads no target_language: leave it out"):
        agreement.measure(DEFAULT_BUNDLE, ["heed"], {"target_language": "fra"}, None)


def test_a_text_that_the_model_does_not_read_is_named():
    with pytest.raises(typer.BadParameter, match="text 2 has '7'"):
        agreement.measure(DEFAULT_BUNDLE, ["heed", "7"], {}, None)


@pytest.mark.long
def test_both_precisions_of_both_systems(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    write_checkpoint(SHAPE, checkpoint)
    bundle = convert(checkpoint, "both")
    found = agreement.measure(bundle, TEXTS, LANGUAGES, checkpoint)
    for search in found["searches"]:
        assert search["control"] == len(TEXTS)
        assert search["ctranslate2"] > 0
    manifest = load_bundle(bundle).manifest
    with pytest.raises(typer.BadParameter, match="give --target-language, one of eng_Latn"):
        agreement.find_languages(manifest, {"source_language": "eng_Latn"})


@pytest.mark.long
@pytest.mark.parametrize("kind", ["marian", "bart", "t5"])
def test_ctranslate2_decodes_what_heed_does_at_fp32(kind, tmp_path):
    """Its converter takes the embedding of Marian's first token for zero, and that T5 1.1 scales
    its output. Neither holds here."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    theirs = WRITERS[kind](checkpoint, tie_word_embeddings=False)
    let_texts_end(theirs)
    theirs.generation_config.update(forced_bos_token_id=None)  # CTranslate2 has none
    theirs.save_pretrained(checkpoint)
    bundle = load_bundle(convert(checkpoint))
    sources = agreement.read_sources(bundle, TEXTS, {})
    witness = Witness(checkpoint, tmp_path, bundle.manifest)
    for beam_size in (1, 4):
        options = agreement.options_of(bundle.manifest, beam_size)
        ours = agreement.decode_best(bundle, sources, Precision.fp32, options)
        assert witness.decode(sources.ids, (), "float32", options) == ours
        assert len(set(map(len, ours))) > 1


@pytest.mark.long
def test_whole_files_are_decoded_by_every_system(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    write_checkpoint(SHAPE, checkpoint)
    bundle = load_bundle(convert(checkpoint, "int8"))
    Witness(checkpoint, tmp_path, bundle.manifest)
    most = bundle.manifest.decoding.max_new_tokens
    measured = documents.measure(tmp_path, bundle, TEXTS[:3], LANGUAGES, most, rounds=1)
    lines = [line.removeprefix("| ").split(" | ") for line in asyncio.run(measured)]
    systems = [documents.PEER, documents.ALONE, documents.COMMAND, documents.HTTP]
    assert [line[:2] for line in lines] == [[size, each] for size in "14" for each in systems]
    assert {len(line) for line in lines} == {10}


@pytest.mark.long
def test_without_a_bundle_every_system_writes_as_many_words_as_the_texts_have(
    tmp_path, monkeypatch, capsys
):
    config = dataclasses.replace(MARIAN.config, **SMALL, source_vocab_size=30, target_vocab_size=30)
    monkeypatch.setattr(documents, "MARIAN", dataclasses.replace(MARIAN, config=config))
    texts = tmp_path / "texts"
    texts.write_text("So it is.\nWhy is it so and not so?\n")
    documents.main(texts, rounds=1)
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[3:]]
    words = {row[-1].removesuffix(" |") for row in rows if row[1] != documents.ALONE}
    assert (len(rows), words) == (8, {"10"})


def test_a_bundle_without_its_checkpoint_is_refused(tmp_path):
    (tmp_path / "texts").write_text("heed\n")
    with pytest.raises(typer.BadParameter, match="give both --bundle and --checkpoint"):
        documents.main(tmp_path / "texts", bundle=DEFAULT_BUNDLE)
