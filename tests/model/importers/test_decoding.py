"""The decoding options of a checkpoint, compared with those that `generate` uses."""

import json
import re
import shutil

import pytest
import torch
import transformers

from model.importers.checkpoint import Checkpoint
from model.importers.convert import read_model
from model.importers.decoding import Generation
from model.importers.usage import read_usage
from model.importers.vocabularies import read_vocabularies
from model.network.config import InputError
from tests.model.importers.checkpoints import write_bart

OPTIONS = {  # of old checkpoints, which have them in config.json
    "num_beams": 3,
    "length_penalty": 0.7,
    "early_stopping": True,
    "no_repeat_ngram_size": 2,
    "repetition_penalty": 1.3,
    "renormalize_logits": True,
    "suppress_tokens": [7],
    "task_specific_params": {"summarization": {"num_beams": 9}},
}
FORCED = 1  # the bos that BART generates first


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bart")
    write_bart(folder)
    return folder


def with_generation(folder, **options):
    path = folder / "generation_config.json"
    given = {"decoder_start_token_id": 2, "pad_token_id": 1, "eos_token_id": 2}
    path.write_text(json.dumps(given | {"forced_bos_token_id": 0} | options))


def generate(folder, logit):
    """Generate with so large a logit of eos, and return the tokens after the forced ones."""
    theirs = transformers.BartForConditionalGeneration.from_pretrained(folder)
    theirs.final_logits_bias[:, theirs.config.eos_token_id] = logit
    (found,) = theirs.generate(torch.tensor([[0, 9, 2]])).tolist()
    return found[1 + FORCED :]


def test_options_of_config_json_count_if_there_is_no_other_file(folder, tmp_path):
    for path in folder.iterdir():
        if path.name != "generation_config.json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | OPTIONS))
    theirs = transformers.BartForConditionalGeneration.from_pretrained(tmp_path).generation_config
    ours = Generation(Checkpoint(tmp_path)).decoding(0)
    names = {"beam_size": "num_beams", "renormalize": "renormalize_logits"}
    for name in ours.keys() - {"min_new_tokens"}:
        assert ours[name] == getattr(theirs, names.get(name, name))
    assert ours["beam_size"] == 3


@pytest.mark.parametrize(("length", "new"), [(None, None), (8, None), (10, 3), (2, 6), (9, 0)])
def test_the_least_length_is_that_of_generate(folder, length, new):
    with_generation(folder, max_length=20, min_length=length, min_new_tokens=new)
    found = generate(folder, 1e6)
    assert found[-1] == 2
    assert Generation(Checkpoint(folder)).decoding(FORCED)["min_new_tokens"] == len(found) - 1


@pytest.mark.parametrize(("length", "new"), [(9, None), (20, 6), (5, 8)])
def test_the_greatest_length_is_that_of_generate(folder, length, new):
    with_generation(folder, max_length=length, max_new_tokens=new)
    found = generate(folder, -1e6)
    assert Generation(Checkpoint(folder)).max_new_tokens(64, FORCED) == len(found)


@pytest.mark.parametrize("eos_id", [7, [7]])
def test_ids_of_generation_config_come_before_those_of_config_json(folder, tmp_path, eos_id):
    copied = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((copied / "config.json").read_text())
    del config["decoder_start_token_id"]
    (copied / "config.json").write_text(json.dumps(config | {"eos_token_id": 9}))
    with_generation(copied, eos_token_id=eos_id, decoder_start_token_id=5, max_length=9)
    theirs = transformers.BartForConditionalGeneration.from_pretrained(copied)
    theirs.final_logits_bias[:, 7] = 1e6
    (found,) = theirs.generate(torch.tensor([[0, 9, 2]])).tolist()
    checkpoint = Checkpoint(copied)
    ours = read_model(checkpoint).config
    usage = read_usage(checkpoint, read_vocabularies(checkpoint), ours)
    assert [*usage.decoder_start, ours.eos_id] == found
    assert usage.source_suffix == [2]  # as the tokenizer ends a source


@pytest.mark.parametrize("eos_id", [[2, 7], [], "2", True])
def test_several_ends_are_refused_by_name(folder, tmp_path, eos_id):
    copied = shutil.copytree(folder, tmp_path / "copy")
    with_generation(copied, eos_token_id=eos_id)
    said = f"generation_config.json has eos_token_id {eos_id!r}; expected one id, as a number or a"
    with pytest.raises(InputError, match=re.escape(said)):
        read_model(Checkpoint(copied))
