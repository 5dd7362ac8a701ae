"""Ids around a source, and a language that files fix, are those of the checkpoint's tokenizer."""

import json
from dataclasses import replace
from itertools import product

import pytest
import tokenizers
import torch
import transformers
from tokenizers import processors

from model.importers.checkpoint import Checkpoint
from model.importers.proofs.tokenizers import prove_ends
from model.importers.tokenizers.added_tokens import with_ids
from model.importers.usage.framing import SOURCE_SLOT, TARGET_SLOT
from tests.conftest import opened
from tests.model.importers.checkpoints import (
    change,
    write_m2m100,
    write_mbart,
    write_mbart50,
    write_nllb,
)
from tests.model.importers.conftest import read
from tests.model.importers.kinds import every_language
from tests.model.importers.served import convert, post, refusal, start_of

WORDS = ["def add(a, b): return a + b", "the weather is lovely"] * 20
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
SOURCE, TARGET = "source_language", "target_language"
PROCESSORS = {
    "roberta": processors.RobertaProcessing(("</s>", 2), ("<s>", 1), add_prefix_space=False),
    "eos": processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)]),
    "bert": processors.BertProcessing(("</s>", 2), ("<mask>", 4)),
    "twice": processors.TemplateProcessing(
        "<s> <mask> $A </s> </s>", special_tokens=[("<s>", 1), ("</s>", 2), ("<mask>", 4)]
    ),
    "none": None,
    "bytes": processors.ByteLevel(),
}


def write_bytes(folder, kind, processor):
    """Write a network of this kind with a byte-level tokenizer.json, and return the library."""
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(WORDS, 300, special_tokens=SPECIAL, show_progress=False)
    library = tokenizers.Tokenizer.from_str(bpe.to_str())
    if processor is not None:
        library.post_processor = processor
    library.save(str(folder / "tokenizer.json"))
    ids = {"vocab_size": 300, "decoder_start_token_id": 0, "pad_token_id": 0}
    ids |= {"bos_token_id": 1, "eos_token_id": 2}
    if kind == "t5":
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
        config = transformers.T5Config(**sizes, **ids, tie_word_embeddings=False)
        transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    else:
        layers = {f"{side}_{each}": n for side in ("encoder", "decoder") for each, n in LAYER}
        config = transformers.BartConfig(d_model=16, max_position_embeddings=32, **layers, **ids)
        transformers.BartForConditionalGeneration(config).save_pretrained(folder)
    return library


LAYER = (("layers", 1), ("attention_heads", 2), ("ffn_dim", 24))


@pytest.mark.parametrize("kind", ["t5", "bart"])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_the_post_processor_of_a_file_that_stands_alone_decides(tmp_path, kind, processor):
    library = write_bytes(tmp_path, kind, PROCESSORS[processor])
    change(tmp_path, "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    checkpoint, vocabularies, usage = read(tmp_path)
    ids = vocabularies.source.tokenizer.encode("add(a, b)", add_special_tokens=False).ids
    around = [*usage.source_prefix, *ids, *usage.source_suffix]
    assert around == library.encode("add(a, b)").ids
    assert around == transformers.AutoTokenizer.from_pretrained(tmp_path)("add(a, b)").input_ids
    assert prove_ends(checkpoint, vocabularies, usage).holds


@pytest.mark.parametrize("named", ["RobertaTokenizer", "RobertaTokenizerFast", "GPT2Tokenizer"])
@pytest.mark.parametrize("processor", ["none", "bytes"])
def test_a_class_puts_its_ids_where_tokenizer_json_has_none(tmp_path, named, processor):
    write_bytes(tmp_path, "t5", PROCESSORS[processor])
    change(tmp_path, "tokenizer_config.json", tokenizer_class=named)
    checkpoint, vocabularies, usage = read(tmp_path)
    ids = vocabularies.source.tokenizer.encode("add(a, b)", add_special_tokens=False).ids
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)("add(a, b)").input_ids
    assert [*usage.source_prefix, *ids, *usage.source_suffix] == theirs
    assert prove_ends(checkpoint, vocabularies, usage).holds


@pytest.mark.parametrize("named", ["RobertaTokenizer", "GPT2Tokenizer"])  # CodeT5 and FRED-T5
@pytest.mark.parametrize("added", [False, True])
def test_a_t5_may_have_the_files_and_the_ids_of_another_class(tmp_path, named, added):
    library = write_bytes(tmp_path, "t5", None)
    library.model.save(str(tmp_path))  # vocab.json and merges.txt
    (tmp_path / "tokenizer.json").unlink()
    change(tmp_path, "tokenizer_config.json", tokenizer_class=named)
    if added:
        change(tmp_path, "added_tokens.json", **{"<extra_id_0>": 299, "<sep>": 298})
        change(tmp_path, "config.json", vocab_size=300)
    checkpoint, vocabularies, usage = read(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("def add(a, b)", " add"):
        ids = vocabularies.source.tokenizer.encode(text, add_special_tokens=False).ids
        assert [*usage.source_prefix, *ids, *usage.source_suffix] == theirs(text).input_ids
    assert prove_ends(checkpoint, vocabularies, usage).holds


@pytest.mark.parametrize("changed", ["prefix", "suffix", "tokens"])
@pytest.mark.parametrize("stored", [True, False])
def test_the_proof_names_both_lists_of_ids(tmp_path, stored, changed):
    if stored:
        write_bytes(tmp_path, "t5", PROCESSORS["roberta"])
        change(tmp_path, "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    else:
        write_nllb(tmp_path, languages=every_language("nllb"))
    checkpoint, vocabularies, usage = read(tmp_path)
    wrong = usage.source_prefix if changed == "prefix" else usage.source_suffix
    other = {"prefix": {"source_prefix": [7, *wrong]}, "suffix": {"source_suffix": [*wrong, 7]}}
    if changed == "tokens":
        other["tokens"] = {"source_prefix": [], "source_suffix": []}
    proof = prove_ends(checkpoint, vocabularies, replace(usage, **other[changed]))
    assert proof.holds is False
    assert proof.result.count("[") == 2


def test_a_language_that_the_class_of_m2m100_lacks_is_proved_without(tmp_path):
    languages = every_language("m2m100")
    write_m2m100(tmp_path, languages=languages, extra_rows=len(languages) + 8)
    first = len(json.loads((tmp_path / "vocab.json").read_text()))
    listed = {f"__{code}__": i for i, code in enumerate(languages, first)}
    change(tmp_path, "added_tokens.json", **listed, __tyv__=first + len(languages))
    checkpoint, vocabularies, usage = read(tmp_path)
    assert usage.source_languages["tyv"] == [first + len(languages)]
    assert prove_ends(checkpoint, vocabularies, usage).holds


@pytest.mark.parametrize(
    ("languages", "compared"),
    [
        (("en", "fr"), None),  # 18 languages of the class come before en
        (("af", "am", "ar", "fr"), True),  # the first three are the class's first
    ],
)
def test_languages_that_the_class_of_m2m100_moves_are_not_compared(tmp_path, languages, compared):
    write_m2m100(tmp_path, languages=languages)
    assert prove_ends(*read(tmp_path)).holds is compared


MARKS = {  # of SMaLL-100
    "class": lambda folder: change(
        folder, "tokenizer_config.json", tokenizer_class="SMALL100Tokenizer"
    ),
    "code": lambda folder: change(
        folder,
        "tokenizer_config.json",
        auto_map={"AutoTokenizer": ["tokenization_small100.SMALL100Tokenizer", None]},
        tokenizer_class="M2M100Tokenizer",
    ),
    "file": lambda folder: (folder / "tokenization_small100.py").write_text("raise SystemExit"),
    "name": lambda folder: change(folder, "config.json", _name_or_path="me/SMaLL-100-finetuned"),
}


@pytest.mark.parametrize("mark", MARKS)
def test_small100_is_known_by_its_marks(tmp_path, mark):
    languages = every_language("m2m100")
    write_m2m100(tmp_path, languages=languages)
    MARKS[mark](tmp_path)
    checkpoint, vocabularies, usage = read(tmp_path)
    assert usage.source_prefix == [TARGET_SLOT]
    assert prove_ends(checkpoint, vocabularies, usage).holds
    wrong = replace(usage, source_prefix=[], decoder_start=[2, TARGET_SLOT])
    assert prove_ends(checkpoint, vocabularies, wrong).holds is False


def test_small100_without_its_marks_is_refused(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    depths = {"encoder_layers": 12, "decoder_layers": 3}
    theirs = write_m2m100(folder, d_model=4, encoder_ffn_dim=4, decoder_ffn_dim=4, **depths)
    change(folder, "tokenizer_config.json", tokenizer_class="M2M100Tokenizer")
    said = refusal(folder, tmp_path / "bundle")
    assert "has 12 and 3 layers, as SMaLL-100, whose sources begin with the language" in said
    assert '"tokenizer_class": "SMALL100Tokenizer"' in said

    theirs.generation_config.update(forced_bos_token_id=theirs.config.vocab_size - 9)
    theirs.generation_config.save_pretrained(folder)
    assert read(folder)[2].source_prefix == [SOURCE_SLOT]  # as M2M100 is used


MBART = {  # files of an mBART-50, and what they say of its tokenizer's class
    "no class": {},
    "generic class": {"tokenizer_class": "PreTrainedTokenizerFast"},
    "class of mBART-25": {"tokenizer_class": "MBartTokenizer"},
    "its own class": {"tokenizer_class": "MBart50TokenizerFast"},
}


@pytest.mark.parametrize("said", MBART)
def test_mbart_50_is_known_by_its_first_id(tmp_path, said):
    write_mbart50(tmp_path, languages=every_language("mbart50"))
    config = json.loads((tmp_path / "config.json").read_text())
    del config["tokenizer_class"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    change(tmp_path, "tokenizer_config.json", **MBART[said])
    usage = read(tmp_path)[2]
    assert usage.source_prefix == [SOURCE]
    assert usage.source_suffix == [2]
    assert usage.decoder_start == [2, TARGET]


@pytest.mark.parametrize("language_first", [True, False])
def test_the_template_of_a_file_tells_one_mbart_from_the_other(tmp_path, language_first):
    write_mbart50(tmp_path, languages=every_language("mbart50"), extra_rows=64)
    (tmp_path / "tokenizer.json").unlink()
    known = transformers.MBart50Tokenizer if language_first else transformers.MBartTokenizer
    theirs = known.from_pretrained(tmp_path, src_lang="fr_XX")
    theirs.save_pretrained(tmp_path)
    (tmp_path / "sentencepiece.bpe.model").unlink()
    change(tmp_path, "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    checkpoint, vocabularies, usage = read(tmp_path)
    around = [*usage.source_prefix, "text", *usage.source_suffix]
    assert around == ([SOURCE, "text", 2] if language_first else ["text", 2, SOURCE])
    assert prove_ends(checkpoint, vocabularies, usage).holds


FIXED = {  # what generation_config.json and config.json have, and the decoder's start
    "forced": ({"forced_bos_token_id": "fr"}, [2, TARGET], "fr"),
    "first": ({"decoder_start_token_id": "fr"}, [TARGET], "fr"),
    "both": ({"decoder_start_token_id": "fr", "forced_bos_token_id": "fr"}, [TARGET] * 2, "fr"),
    "other": ({"decoder_start_token_id": "en", "forced_bos_token_id": "fr"}, ["en", TARGET], "fr"),
    "a token": ({"forced_bos_token_id": 7}, [2, 7], None),
    "free": ({}, [2, TARGET], None),
}


@pytest.mark.parametrize(
    ("kind", "fixed"), [*product(["nllb"], FIXED), ("mbart", "first"), ("mbart", "forced")]
)
def test_a_language_that_the_files_fix_is_the_default(tmp_path, kind, fixed):
    write, codes = {
        "nllb": (write_nllb, {"en": "eng_Latn", "fr": "fra_Latn"}),
        "mbart": (write_mbart50, {"en": "en_XX", "fr": "fr_XX"}),
    }[kind]
    write(tmp_path, languages=tuple(codes.values()))
    placed = with_ids(Checkpoint(tmp_path))
    ids = {
        short: i for i, token in placed for short, code in codes.items() if token.content == code
    }
    fields, start, default = FIXED[fixed]
    change(tmp_path, "generation_config.json", **{k: ids.get(v, v) for k, v in fields.items()})
    usage = read(tmp_path)[2]
    assert usage.decoder_start == [ids.get(each, each) for each in start]
    assert usage.default_target == codes.get(default)
    assert set(usage.target_languages) == (set(codes.values()) if TARGET in start else set())


def test_the_first_id_of_mbart_25_is_its_default_language(tmp_path):
    write_mbart(tmp_path)
    usage = read(tmp_path)[2]
    assert usage.decoder_start == [TARGET]
    assert usage.default_target == "fr_XX"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["nllb", "mbart"])
def test_a_request_without_target_language_decodes_as_generate_does(tmp_path, kind):
    """The served bundle takes every id that it sent."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write = write_nllb if kind == "nllb" else write_mbart
    theirs = write(folder, extra_rows=40)
    language = read(folder)[1].languages["fra_Latn" if kind == "nllb" else "fr_XX"][0]
    change(folder, "generation_config.json", forced_bos_token_id=language, num_beams=1)
    if kind == "mbart":
        change(folder, "generation_config.json", forced_bos_token_id=None)
    theirs.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    bundle = convert(folder)
    named = {"source_language": "eng_Latn" if kind == "nllb" else "en_XX"}
    with opened(bundle, precision="fp32") as client:
        sources = post(client, "/v1/tokenize", text=["the weather", "is lovely"], **named)
        results = post(client, "/v1/decode", source=["the weather", "is lovely"], **named)
        start = start_of(bundle, {TARGET: "fra_Latn" if kind == "nllb" else "fr_XX"})
        for source, result in zip(sources, results, strict=True):
            ids = torch.tensor([source["token_ids"]])
            expected = theirs.generate(ids)[0].tolist()[len(start) :]
            found = result["hypotheses"][0]["token_ids"]
            assert found == expected[: len(found)]
        last = json.loads((bundle / "bundle.json").read_text())["config"]["target_vocab_size"] - 1
        sent = [[last, 5], found]
        assert [
            each["token_ids"] for each in post(client, "/v1/detokenize", token_ids=sent)
        ] == sent
        body = {"source": ["the weather"] * 2, "target": sent, **named}
        assert [len(each["log_probs"]) for each in post(client, "/v1/score", **body)] == [
            2,
            len(found),
        ]
