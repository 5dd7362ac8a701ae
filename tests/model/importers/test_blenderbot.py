"""Blenderbot's tokenizer reads a text as if it began with a space, and ends it with </s>. That of
BlenderbotSmall splits lower-case words, and adds nothing."""

import json

import pytest
import transformers
from tokenizers import ByteLevelBPETokenizer, processors

from model.importers.checkpoint import Checkpoint
from model.importers.proofs.tokenizers import prove_ends, prove_pieces
from model.importers.tokenizers.probes import probes
from model.importers.vocabularies import read_vocabularies
from model.network.config import InputError
from tests.model.importers.checkpoints import write_blenderbot, write_blenderbot_small
from tests.model.importers.conftest import read, serve
from tests.model.importers.served import check_places

PROCESSORS = {
    "with </s>": processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)]),
    "plain": processors.TemplateProcessing("$A"),  # as transformers 5 saves it
}


def write_library(folder, processor):
    """Write tokenizer.json beside vocab.json and merges.txt."""
    files = (str(folder / name) for name in ("vocab.json", "merges.txt"))
    library = ByteLevelBPETokenizer(*files, add_prefix_space=True)._tokenizer
    library.post_processor = PROCESSORS[processor]
    library.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("given", [None, True, False])  # what tokenizer_config.json has
@pytest.mark.parametrize("alone", [True, False])  # tokenizer.json without the other files
def test_texts_have_the_ids_and_the_text_of_hugging_face(tmp_path, given, alone):
    write_blenderbot(tmp_path)
    options = {"tokenizer_class": "BlenderbotTokenizer"}
    options |= {} if given is None else {"add_prefix_space": given}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    if alone:
        write_library(tmp_path, "with </s>")
        (tmp_path / "merges.txt").unlink()
    theirs = transformers.BlenderbotTokenizer.from_pretrained(tmp_path)
    vocabularies = read_vocabularies(Checkpoint(tmp_path))
    ours = serve(vocabularies.source.converted)
    for text in (*probes(), "mystery", " mystery", "  a b"):
        expected = theirs(text, add_special_tokens=False).input_ids
        hidden = any(name in text for name in ("<s>", "</s>", "<pad>", "<unk>"))
        tokens = ours.encode(text, "/")
        assert hidden or tokens.ids == expected
        assert ours.decode(tokens.ids).text == theirs.decode(tokens.ids)
        check_places(text, tokens.tokens)
    assert all(proof.holds for proof in prove_pieces(vocabularies))


def test_a_text_ends_with_eos_as_tokenizer_json_has_it(tmp_path):
    write_blenderbot(tmp_path)
    write_library(tmp_path, "with </s>")
    checkpoint, vocabularies, usage = read(tmp_path)
    theirs = transformers.BlenderbotTokenizer.from_pretrained(tmp_path)
    ids = vocabularies.source.tokenizer.encode("a b").ids
    assert [*usage.source_prefix, *ids, *usage.source_suffix] == theirs("a b").input_ids
    assert usage.decoder_start == [1]
    assert usage.decoding["encoder_no_repeat_ngram_size"] == 3
    assert prove_ends(checkpoint, vocabularies, usage).holds


@pytest.mark.parametrize("processor", [None, "plain"])
def test_a_text_ends_with_eos_also_where_transformers_5_leaves_it_out(tmp_path, processor):
    write_blenderbot(tmp_path)
    if processor:
        write_library(tmp_path, processor)
    checkpoint, vocabularies, usage = read(tmp_path)
    assert (usage.source_prefix, usage.source_suffix) == ([], [2])
    proof = prove_ends(checkpoint, vocabularies, usage)
    assert proof.holds is None
    assert proof.result.startswith("transformers 5 leaves </s> out")
    theirs = transformers.BlenderbotTokenizer.from_pretrained(tmp_path)
    assert theirs("a").input_ids[-1] != 2  # where it does not, compare with it


SMALL = (  # what the class of BlenderbotSmall does with signs, new lines and Greek
    *("Sam's here!\nHi.\n\nYes", "a'\nb", "x\r\ny", "a..b?c(d)", "\nend\n", "a@@ b</w> @@"),
    *("\u039f\u0394\u039f\u03a3 \u03a3\u0391\u03a3.\u03a3 \u03a3", "\u0130stanbul"),
)


def test_small_texts_have_the_ids_and_the_text_of_hugging_face(tmp_path):
    write_blenderbot_small(tmp_path)
    theirs = transformers.BlenderbotSmallTokenizer.from_pretrained(tmp_path)
    checkpoint, vocabularies, usage = read(tmp_path)
    ours = serve(vocabularies.source.converted)
    for text in (*probes(), *SMALL):
        expected = theirs.tokenize(text, split_special_tokens=True)
        tokens = ours.encode(text, "/")
        assert tokens.ids == theirs.convert_tokens_to_ids(expected)
        assert ours.decode(tokens.ids).text == theirs.decode(tokens.ids).rstrip()
        check_places(text, tokens.tokens)
    ids = vocabularies.source.tokenizer.encode("a b").ids
    assert [*usage.source_prefix, *ids, *usage.source_suffix] == theirs("a b").input_ids
    assert usage.decoder_start == [1]
    assert usage.decoding["encoder_no_repeat_ngram_size"] == 3
    assert all(proof.holds for proof in prove_pieces(vocabularies))
    assert prove_ends(checkpoint, vocabularies, usage).holds


def test_small_tokens_that_are_typed_are_text(tmp_path):
    write_blenderbot_small(tmp_path)
    _, vocabularies, _ = read(tmp_path)
    ours = serve(vocabularies.source.converted)
    for name in ("__null__", "__start__", "__end__", "__unk__"):
        tokens = ours.encode(f"a {name} b", "/").tokens
        assert not {0, 1, 2} & {token.id for token in tokens}
    assert ours.decode([1, 30, 2]).text == ours.decode([30]).text


def test_small_merges_without_an_id_are_dropped_and_counted(tmp_path):
    write_blenderbot_small(tmp_path)
    path = tmp_path / "vocab.json"
    names = [*json.loads(path.read_text())]
    rare = [name for name in names[-9:] if not name.endswith("@@")]
    kept = [name for name in names if name not in rare]
    path.write_text(json.dumps({name: i for i, name in enumerate(kept)}))
    vocabularies = read_vocabularies(Checkpoint(tmp_path))
    assert vocabularies.source.converted.dropped == len(rare) > 0
    for proof in prove_pieces(vocabularies):
        assert proof.holds
        assert proof.result.endswith(f"; {len(rare)} merges are of or to a piece without an id")
    ours = serve(vocabularies.source.converted)
    tokens = ours.encode(rare[0], "/").tokens
    assert len(tokens) > 1
    assert ours.unknown_id not in [token.id for token in tokens]


def test_small_without_its_unknown_token_is_refused(tmp_path):
    write_blenderbot_small(tmp_path)
    path = tmp_path / "vocab.json"
    names = ["other" if name == "__unk__" else name for name in json.loads(path.read_text())]
    path.write_text(json.dumps({name: i for i, name in enumerate(names)}))
    with pytest.raises(InputError, match=r"vocab\.json lacks __unk__"):
        read_vocabularies(Checkpoint(tmp_path))
