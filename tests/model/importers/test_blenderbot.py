"""Blenderbot's tokenizer reads a text as if it began with a space, and ends it with </s>."""

import json

import pytest
import transformers
from tokenizers import ByteLevelBPETokenizer, processors

from model.importers.checkpoint import Checkpoint
from model.importers.convert import read_model
from model.importers.proofs.tokenizers import prove_ends, prove_pieces
from model.importers.tokenizers.probes import probes
from model.importers.usage import read_usage
from model.importers.vocabularies import read_vocabularies
from tests.model.importers.checkpoints import write_blenderbot
from tests.model.importers.conftest import serve
from tests.model.importers.served import check_places

PROCESSORS = {
    "with </s>": processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)]),
    "plain": processors.TemplateProcessing("$A"),  # as transformers 5 saves it
}


def read(folder):
    checkpoint = Checkpoint(folder)
    vocabularies = read_vocabularies(checkpoint)
    return (
        checkpoint,
        vocabularies,
        read_usage(checkpoint, vocabularies, read_model(checkpoint).config),
    )


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
        whole = theirs.decode(tokens.ids)  # the service waits for the rest of a character
        assert ours.decode(tokens.ids).text == whole.rstrip("\ufffd")
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
