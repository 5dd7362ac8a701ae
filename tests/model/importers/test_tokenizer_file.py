"""Folders that transformers 5 saves: tokenizer.json, and no sentencepiece model."""

import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st

from model.importers.checkpoint import Checkpoint
from model.importers.proofs.tokenizers import prove_pieces
from model.importers.tokenizers.piece_file import PieceFile
from model.importers.tokenizers.probes import probes
from model.importers.vocabularies import read_vocabularies
from model.network.config import InputError
from tests.conftest import opened
from tests.model.importers.checkpoints import (
    LANGUAGES,
    names_of,
    train_pieces,
    write_bart,
    write_mbart50,
    write_nllb,
    write_pegasus,
)
from tests.model.importers.conftest import serve
from tests.model.importers.served import check_places, post, run
from tests.model.importers.t5_checkpoints import write_flan, write_madlad

KINDS = {
    "t5": (write_flan, transformers.T5Tokenizer),
    "nllb": (write_nllb, transformers.NllbTokenizer),
    "mbart50": (write_mbart50, transformers.MBart50Tokenizer),
    "pegasus": (write_pegasus, transformers.PegasusTokenizer),
    "bart": (write_bart, transformers.BartTokenizer),
}
ORIGINALS = ("spiece.model", "sentencepiece.bpe.model", "vocab.json", "merges.txt")
STORED = "tokenizer.json"


def write(kind, folder):
    """Write a checkpoint with the tokenizer as transformers saves it; return both."""
    write_model, tokenizer_class = KINDS[kind]
    model = write_model(folder, extra_rows=128)  # the class has languages that ours lacks
    (folder / STORED).unlink(missing_ok=True)
    languages = {"extra_special_tokens": [*LANGUAGES]} if kind == "nllb" else {}
    tokenizer = tokenizer_class.from_pretrained(folder, **languages)
    tokenizer.save_pretrained(folder)
    for name in ORIGINALS:
        (folder / name).unlink(missing_ok=True)
    return model, tokenizer_class.from_pretrained(folder)


@pytest.fixture(scope="module", params=KINDS)
def saved(request, tmp_path_factory):
    """The kind, the tokenizers read from the folder, and Hugging Face's own."""
    folder = tmp_path_factory.mktemp(request.param)
    _, theirs = write(request.param, folder)
    return request.param, read_vocabularies(Checkpoint(folder)), theirs


def special_names(theirs):
    """Return the names of its special tokens, and of languages, which it may not count as such."""
    return [token.content for token in theirs.added_tokens_decoder.values()]


def test_ids_are_those_of_hugging_face(saved):
    _, ours, theirs = saved
    assert all(proof.holds for proof in prove_pieces(ours))
    special = special_names(theirs)
    compared = [text for text in probes() if not any(name in text for name in special)]
    assert len(compared) > 450
    served = serve(ours.source.converted)
    for text in compared:
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert [token.id for token in served.encode(text, "/").tokens] == expected


def test_a_typed_special_token_is_text_with_a_place_for_every_letter(saved):
    _, ours, theirs = saved
    served, special = serve(ours.source.converted), special_names(theirs)
    assert "</s>" in special
    for name in special:
        text = f"a{name} b {name}"
        tokens = served.encode(text, "/").tokens  # it refuses special tokens
        check_places(text, tokens)
        special_ids = {*theirs.added_tokens_decoder} - {theirs.unk_token_id}
        assert not {token.id for token in tokens} & special_ids


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_every_letter_has_one_place(saved, text):
    _, ours, _ = saved
    check_places(f"b{text}b", serve(ours.source.converted).encode(f"b{text}b", "/").tokens)


def test_ids_decode_to_what_hugging_face_decodes(saved):
    _, ours, theirs = saved
    served = serve(ours.target.converted)
    languages = [i for ids in ours.languages.values() for i in ids]
    for text in probes():
        ids = [i for i in theirs(text)["input_ids"] if i not in languages]
        if theirs.unk_token_id not in ids:
            assert served.decode(ids).text == theirs.decode(ids, skip_special_tokens=True)


def test_language_tokens_are_found(saved):
    kind, ours, theirs = saved
    expected = {"nllb": LANGUAGES, "mbart50": ("en_XX", "fr_XX")}.get(kind, ())
    assert bool(ours.languages) == bool(expected)
    for code in expected:
        assert ours.languages[code] == [theirs.convert_tokens_to_ids(code)]


def test_languages_that_are_pieces_are_found(tmp_path):
    """MADLAD's tokens have no place of their own in tokenizer.json."""
    model = write_madlad(tmp_path)
    names = names_of(train_pieces("unigram", ("<2en>", "<2fr>")))
    pieces = [(name, -1.0 - i / 1500) for i, name in enumerate(names)]
    library = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=2))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    library.save(str(tmp_path / STORED))
    (tmp_path / "spiece.model").unlink()
    vocabularies = read_vocabularies(Checkpoint(tmp_path))
    languages = vocabularies.languages
    assert languages.keys() == {"en", "fr"}
    typed = vocabularies.source.tokenizer.encode("a <2fr> hello").ids
    assert languages["fr"][-1] not in typed
    expected = library.encode("<2fr> hello").ids
    assert [*languages["fr"], *library.encode("hello").ids] == expected
    assert max(expected) < model.config.vocab_size


def test_a_sentencepiece_model_wins(tmp_path):
    write_flan(tmp_path)
    tokenizer = transformers.T5Tokenizer.from_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / STORED).is_file()
    assert isinstance(read_vocabularies(Checkpoint(tmp_path)).source.original, PieceFile)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"added_tokens": []}', "has no spiece.model.*, or tokenizer.json in their place"),
        ('{"model": {"type": "Unigram"}}', "tokenizer.json is not a file of the tokenizers lib"),
        (
            tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a")).to_str(),
            "has a model of type WordLevel: Heed reads Unigram and BPE",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, content, said):
    write_flan(tmp_path)
    (tmp_path / "spiece.model").unlink()
    (tmp_path / STORED).write_text(content)
    with pytest.raises(InputError, match=said):
        read_vocabularies(Checkpoint(tmp_path))


@pytest.mark.long
def test_such_a_folder_is_converted_and_decodes_as_generate_does(tmp_path):
    folder, bundle = tmp_path / "checkpoint", tmp_path / "bundle"
    folder.mkdir()
    model, tokenizer = write("nllb", folder)
    done = run(folder, bundle, "--precision", "fp32")
    assert done.exit_code == 0, done.output
    assert "| source tokenizer | tokenizers " in done.output
    tokenizer.src_lang = "deu_Latn"
    texts = [text for text in probes() if "<" not in text][:40]
    languages = {"source_language": "deu_Latn", "target_language": "fra_Latn"}
    forced = tokenizer.convert_tokens_to_ids("fra_Latn")
    with opened(bundle, precision="fp32") as client:
        results = post(client, "/v1/decode", source=texts, **languages)
    for text, result in zip(texts, results, strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        (expected,) = model.generate(**inputs, forced_bos_token_id=forced).tolist()
        assert result["hypotheses"][0]["token_ids"] == expected[2:]
