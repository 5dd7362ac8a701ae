"""Languages add the ids that the tokenizer of the checkpoint's own library adds."""

import re

import pytest
import sentencepiece
import transformers
from transformers.models.m2m_100 import tokenization_m2m_100 as m2m_100

from model.importers.checkpoint import Checkpoint
from model.importers.proofs.tokenizers import prove_ends
from model.importers.vocabularies import LISTS, PLBART_LISTS, read_vocabularies
from model.network.config import InputError
from service.bundle.languages import fill
from tests.model.importers.checkpoints import change
from tests.model.importers.conftest import read, serve
from tests.model.importers.kinds import WRITERS, every_language
from tests.model.importers.served import check_places

TEXT = "the weather is lovely"
SOURCE, TARGET = "source_language", "target_language"
KINDS = {  # the tokenizer, and two of its languages
    "nllb": ("NllbTokenizer", "eng_Latn", "fra_Latn"),
    "m2m100": ("M2M100Tokenizer", "en", "fr"),
    "mbart": ("MBartTokenizer", "en_XX", "fr_XX"),
    "mbart50": ("MBart50Tokenizer", "en_XX", "fr_XX"),
}


def read_text(folder):
    """Return how a checkpoint is used, and the ids of TEXT without those around it."""
    _, vocabularies, usage = read(folder)
    return usage, vocabularies.source.tokenizer.encode(TEXT, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_and_a_target_have_the_ids_of_hugging_face(tmp_path, kind):
    class_name, source, target = KINDS[kind]
    WRITERS[kind](tmp_path, languages=every_language(kind))
    usage, ids = read_text(tmp_path)
    (tmp_path / "tokenizer.json").unlink(missing_ok=True)  # ours lists nothing but languages
    theirs = getattr(transformers, class_name).from_pretrained(
        tmp_path, src_lang=source, tgt_lang=target
    )
    languages = {SOURCE: usage.source_languages[source], TARGET: usage.target_languages[target]}
    prefix, suffix = fill(usage.source_prefix, languages), fill(usage.source_suffix, languages)
    assert [*prefix, *ids, *suffix] == theirs(TEXT).input_ids
    start, labels = fill(usage.decoder_start, languages), theirs(text_target=TEXT).input_ids
    if kind == "mbart":  # it reads the last label first
        assert [*ids, theirs.eos_token_id, *start] == labels
    else:
        assert [*start[1:], *ids, theirs.eos_token_id] == labels
        assert start[0] == theirs.eos_token_id


@pytest.mark.parametrize("listed", [True, False])  # by a file, or by the class alone
def test_a_small100_source_begins_with_its_target_language(tmp_path, listed):
    """As M2M100's begins with its source language; the decoder begins with </s> alone."""
    languages = every_language("m2m100")
    WRITERS["small100"](tmp_path, languages=languages)
    if not listed:
        (tmp_path / "special_tokens_map.json").unlink()
    usage, ids = read_text(tmp_path)
    files = (str(tmp_path / name) for name in ("vocab.json", "sentencepiece.bpe.model"))
    theirs = transformers.M2M100Tokenizer(*files, language_codes="m2m100")
    assert usage.decoder_start == [theirs.eos_token_id]
    assert usage.source_languages == {code: [] for code in languages}  # it need not be told
    assert [*usage.target_languages] == [*languages]
    for code, language in usage.target_languages.items():
        theirs.src_lang = code
        prefix = fill(usage.source_prefix, {TARGET: language})
        assert [*prefix, *ids, *usage.source_suffix] == theirs(TEXT).input_ids


@pytest.mark.parametrize("listed", PLBART_LISTS)
def test_plbart_has_the_languages_and_the_ids_of_its_class(tmp_path, listed):
    folder, saved = tmp_path / "old", tmp_path / "saved"
    folder.mkdir()
    WRITERS["plbart"](folder, extra_rows=8)
    file = str(folder / "sentencepiece.bpe.model")
    theirs = transformers.PLBartTokenizer(file, language_codes=listed, src_lang="java")
    theirs.save_pretrained(saved)
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (folder / name).rename(saved / name)
    usage, ids = read_text(saved)
    assert [*usage.source_languages] == PLBART_LISTS[listed].split()
    assert usage.decoder_start == [TARGET]
    for code, language in usage.source_languages.items():
        theirs.src_lang = theirs.tgt_lang = code
        suffix = fill(usage.source_suffix, {SOURCE: language})
        assert [*ids, *suffix] == theirs(TEXT).input_ids
        assert [*ids, 2, *language] == theirs(text_target=TEXT).input_ids  # the last is read first
    vocabularies = read_vocabularies(Checkpoint(saved))
    assert vocabularies.source.names[: len(theirs)] == theirs.convert_ids_to_tokens(
        [*range(len(theirs))]
    )
    assert prove_ends(Checkpoint(saved), vocabularies, usage).holds


def test_an_unknown_list_of_plbart_is_refused(tmp_path):
    WRITERS["plbart"](tmp_path)
    for listed in ("all", ["java", "python"]):
        change(tmp_path, "tokenizer_config.json", language_codes=listed)
        said = f"language_codes {listed!r}; expected base or multi"
        with pytest.raises(InputError, match=re.escape(said)):
            read_text(tmp_path)


def test_plbart_may_fix_the_language_of_its_targets(tmp_path):
    WRITERS["plbart"](tmp_path)
    change(tmp_path, "generation_config.json", decoder_start_token_id=1503)
    usage, _ = read_text(tmp_path)
    assert (usage.decoder_start, usage.default_target) == ([TARGET], "en_XX")


def test_lists_of_languages_are_those_of_hugging_face():
    expected = m2m_100.FAIRSEQ_LANGUAGE_CODES
    assert {name: codes.split() for name, codes in LISTS.items()} == expected


@pytest.mark.parametrize("listed", LISTS)
def test_m2m100_as_transformers_5_saves_it_has_the_languages_of_its_list(tmp_path, listed):
    folder, saved = tmp_path / "old", tmp_path / "saved"
    folder.mkdir()
    WRITERS["m2m100"](folder, languages=LISTS[listed].split())
    files = (str(folder / name) for name in ("vocab.json", "sentencepiece.bpe.model"))
    theirs = transformers.M2M100Tokenizer(*files, language_codes=listed)
    theirs.save_pretrained(saved)
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (folder / name).rename(saved / name)
    usage, ids = read_text(saved)
    assert len(usage.source_languages) == len(LISTS[listed].split())
    for code, language in usage.source_languages.items():
        theirs.src_lang = code
        assert [*language, *ids, *usage.source_suffix] == theirs(TEXT).input_ids
    library = read_vocabularies(Checkpoint(saved)).source.converted
    assert serve(library).encode(f"{TEXT} \N{OLD PERSIAN SIGN A}", "/").ids[-1] == 3  # unknown

    (saved / "tokenizer_config.json").unlink()
    with pytest.raises(
        InputError, match=r"no languages: .* special_tokens_map.json, .* language_c"
    ):
        read_text(saved)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_a_marian_source_begins_with_its_target_language(tmp_path):
    WRITERS["marian"](tmp_path, languages=("fra", "deu"))
    usage, ids = read_text(tmp_path)
    theirs = transformers.MarianTokenizer.from_pretrained(tmp_path)
    for code, language in usage.target_languages.items():
        prefix = fill(usage.source_prefix, {TARGET: language})
        assert [*prefix, *ids, *usage.source_suffix] == theirs(f">>{code}<< {TEXT}").input_ids


def test_a_madlad_source_begins_with_its_target_language(tmp_path):
    WRITERS["madlad"](tmp_path)
    usage, ids = read_text(tmp_path)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    prefix = fill(usage.source_prefix, {TARGET: usage.target_languages["fr"]})
    assert [*prefix, *ids] == theirs.encode(f"<2fr> {TEXT}")
    assert usage.decoder_start == [3]  # its own, not padding


@pytest.mark.parametrize(
    "kind", ["marian", "nllb", "small100", "plbart", "mbart", "mbart50", "madlad"]
)
def test_a_typed_language_token_is_text(tmp_path, kind):
    languages = {"languages": ("fra", "deu")} if kind == "marian" else {}
    WRITERS[kind](tmp_path, **languages)
    vocabularies = read_vocabularies(Checkpoint(tmp_path))
    served = serve(vocabularies.source.converted)
    for ids in vocabularies.languages.values():
        name = served.name(ids[-1])
        for text in (f"a {name} b", f"a{name}b", f"{name} </s> Hello"):
            tokens = served.encode(text, "/").tokens  # it refuses special tokens
            assert ids[-1] not in [token.id for token in tokens]
            check_places(text, tokens)
