"""The decoding options of a checkpoint, compared with those that `generate` uses."""

import contextlib
import json
import re
import shutil

import pytest
import torch
import transformers

from model.importers.checkpoint import Checkpoint
from model.importers.convert import read_model
from model.importers.usage.decoding import Generation
from model.importers.usage.usage import read_usage
from model.importers.vocabularies import read_vocabularies
from model.network.config import InputError
from tests.model.importers.checkpoints import (
    write_bart,
    write_marian,
    write_marian_of_two_vocabularies,
)

OPTIONS = {  # of old checkpoints, which have them in config.json
    "num_beams": 3,
    "length_penalty": 0.7,
    "early_stopping": True,
    "no_repeat_ngram_size": 2,
    "repetition_penalty": 1.3,
    "encoder_repetition_penalty": 1.2,
    "encoder_no_repeat_ngram_size": 3,
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


IDS = {"decoder_start_token_id": 2, "pad_token_id": 1, "eos_token_id": 2}
OLD = "force_bos_token_to_be_generated"
FROM = "_from_model_config"


@pytest.fixture(scope="module")
def vocabularies(folder):
    return read_vocabularies(Checkpoint(folder))


def usage_of(folder, vocabularies):
    checkpoint = Checkpoint(folder)
    return read_usage(checkpoint, vocabularies, read_model(checkpoint).config)


def write_options(folder, copy, config, generation):
    """Write a copy with more keys in config.json and, unless None, with a generation_config.json.
    A value of None removes a key."""
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    (copy / "generation_config.json").unlink()
    fields = json.loads((copy / "config.json").read_text()) | config
    fields = {name: value for name, value in fields.items() if value is not None}
    (copy / "config.json").write_text(json.dumps(fields))
    if generation is not None:
        (copy / "generation_config.json").write_text(json.dumps(generation))


@pytest.mark.parametrize(
    ("config", "generation"),
    [
        ({OLD: True}, None),
        ({OLD: True, "bos_token_id": 4}, None),
        ({OLD: True, "forced_bos_token_id": 7}, None),
        ({OLD: False, "forced_bos_token_id": 7}, None),
        ({OLD: True}, IDS),
        ({OLD: True, "num_beams": 3}, IDS | {FROM: True}),
        ({}, IDS | {FROM: True, "bos_token_id": 0, OLD: True}),
        ({}, IDS | {"bos_token_id": 0, OLD: True}),
        ({"decoder_start_token_id": None, "bos_token_id": 5}, None),
        ({"decoder_start_token_id": 8}, {"bos_token_id": 0, "eos_token_id": 2}),
        ({"num_beams": 3}, {"bos_token_id": 6, "eos_token_id": 2, "num_beams": None}),
        (
            {"eos_token_id": [2], "num_beams": 2, "early_stopping": "never", "length_penalty": 0},
            None,
        ),
        ({"early_stopping": "never"}, None),
        ({"num_beams": 2}, IDS | {"early_stopping": "never", "forced_bos_token_id": 4}),
        ({"num_beams": 2, "length_penalty": -1.5, "min_length": 5, "max_length": 12}, None),
        ({}, IDS | {"bad_words_ids": [[2], [9]], "suppress_tokens": [7, 10**6, -1]}),
        ({}, IDS | {"bad_words_ids": [[2]], "renormalize_logits": True}),
        ({}, IDS | {"bad_words_ids": [[9, 8], [2], [2, 9], [7]], "suppress_tokens": [30]}),
        ({}, IDS | {"encoder_repetition_penalty": 1.2, "encoder_no_repeat_ngram_size": 3}),
        ({}, IDS | {"encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 65}),
        ({"eos_token_id": 2}, IDS | {"eos_token_id": [9, 2, 7], "bad_words_ids": [[7], [5]]}),
        ({"eos_token_id": [9, 7, 9]}, None),
        ({}, IDS | {"max_length": 10**6, "min_length": 10**6, "no_repeat_ngram_size": 65}),
        ({}, IDS | {"max_new_tokens": 3, "min_new_tokens": 9, "no_repeat_ngram_size": -1}),
        (
            {"task_specific_params": {"a": {"num_beams": 4}}, "prefix": "a: ", "n_positions": 4},
            None,
        ),
    ],
)
def test_options_are_those_that_hugging_face_loads(
    folder, vocabularies, tmp_path, config, generation
):
    config = {"forced_bos_token_id": None} | config
    write_options(folder, tmp_path, config, generation)
    ours = usage_of(tmp_path, vocabularies)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generation_config
    start = theirs.decoder_start_token_id
    start = theirs.bos_token_id if start is None else start
    forced = theirs.forced_bos_token_id
    assert ours.decoder_start == [start, *([] if forced is None else [forced])]
    before = len(ours.decoder_start)  # ids that theirs count and ours do not
    longest = 64 + 1 - before
    most = theirs.max_new_tokens or (theirs.max_length or 10**6) - 1
    assert ours.max_new_tokens == min(longest, most - before + 1)
    least = theirs.min_new_tokens or (theirs.min_length or 0) - 1
    size, repeated = 64, theirs.no_repeat_ngram_size or 0
    ends = theirs.eos_token_id
    ends = {*ends} if isinstance(ends, list) else {ends}
    eos_id = read_model(Checkpoint(tmp_path)).config.eos_id
    assert {eos_id, *ours.other_eos_ids} == ends
    assert (eos_id, len(ours.other_eos_ids)) == (2 if 2 in ends else 9, len(ends) - 1)
    words = [ids for ids in theirs.bad_words_ids or [] if len(ids) > 1 or ids[0] not in ends]
    banned = {*(theirs.suppress_tokens or []), *(ids[0] for ids in words if len(ids) == 1)}
    of_source = {
        "encoder_repetition_penalty": theirs.encoder_repetition_penalty or 1,
        "encoder_no_repeat_ngram_size": theirs.encoder_no_repeat_ngram_size or 0,
    }
    if of_source["encoder_no_repeat_ngram_size"] > size:  # longer than any target
        of_source["encoder_no_repeat_ngram_size"] = 0
    rows = json.loads((tmp_path / "config.json").read_text())["vocab_size"]
    assert ours.decoding == {
        "min_new_tokens": min(max(least - before + 1, 0), ours.max_new_tokens),
        "beam_size": theirs.num_beams or 1,
        "length_penalty": 1 if theirs.length_penalty is None else theirs.length_penalty,
        "early_stopping": theirs.early_stopping is True,
        "no_repeat_ngram_size": repeated if 0 < repeated <= size else 0,
        "repetition_penalty": theirs.repetition_penalty or 1,
        "suppress_tokens": [
            *sorted(i for i in banned if 0 <= i < rows),
            *(ids for ids in words if len(ids) > 1),
        ],
        "renormalize": bool(theirs.renormalize_logits),
    } | {name: value for name, value in of_source.items() if value not in (0, 1)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_beams": 65}, "num_beams is 65; expected 1 to 64"),
        ({"num_beams": 0}, "num_beams is 0; expected 1 to 64"),
        ({"num_beams": "4"}, "has num_beams '4': expected a whole number"),
        ({"length_penalty": 11}, "length_penalty is 11; expected -10 to 10"),
        ({"length_penalty": float("nan")}, "length_penalty is nan; expected -10 to 10"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; expected 0.01 to 100"),
        ({"max_length": 1}, "has max_length 1: that leaves no room for a token"),
        ({"max_new_tokens": 0}, "has max_new_tokens 0: that leaves no room for a token"),
        ({"forced_bos_token_id": 10**6}, "forced_bos_token_id is 1000000; expected 0 to "),
        ({"forced_bos_token_id": [1, 2]}, "has forced_bos_token_id [1, 2]: expected one id"),
        ({"decoder_start_token_id": 10**6}, "has decoder_start_token_id 1000000; expected an id"),
        ({"eos_token_id": 10**6}, "has eos_token_id 1000000; expected an id below "),
        ({"bad_words_ids": [[10**6]]}, "has bad_words_ids [[1000000]]: the vocabulary has "),
        ({"bad_words_ids": [7]}, "has bad_words_ids [7]: expected lists of ids"),
        ({"bad_words_ids": [[7], []]}, "has bad_words_ids [[7], []]: expected lists of ids"),
        ({"bad_words_ids": [[7, -1]]}, "has bad_words_ids [[7, -1]]: expected lists of ids"),
        ({"bad_words_ids": [[5, 10**6]]}, "has bad_words_ids [[5, 1000000]]: the vocabulary has "),
        ({"bad_words_ids": [[5] * 65]}, "bad_words_ids or suppress_tokens is 65 ids in a row; exp"),
        ({"encoder_repetition_penalty": 0}, "encoder_repetition_penalty is 0; expected 0.01 to "),
        ({"encoder_no_repeat_ngram_size": "3"}, "encoder_no_repeat_ngram_size '3': expected a "),
        ({"eos_token_id": [2, 10**6]}, "has eos_token_id [2, 1000000]; expected ids below "),
        ({"suppress_tokens": list(range(10)) * 2 + [1.5]}, "expected a list of ids"),
        ({"early_stopping": "never", "num_beams": 2}, "has early_stopping 'never': expected true"),
        ({"renormalize_logits": "yes"}, "has renormalize_logits 'yes': expected true or false"),
    ],
)
def test_what_no_bundle_may_hold_is_refused_under_the_checkpoints_key(
    folder, vocabularies, tmp_path, options, said
):
    write_options(folder, tmp_path, {}, IDS | options)
    with pytest.raises(InputError, match=re.escape(said)):
        usage_of(tmp_path, vocabularies)


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


@pytest.mark.parametrize("eos_id", [[], [2, "7"], [2, [7]], [2, -1], [*range(17)], "2", True])
def test_ends_that_are_not_ids_are_refused_by_name(folder, tmp_path, eos_id):
    copied = shutil.copytree(folder, tmp_path / "copy")
    with_generation(copied, eos_token_id=eos_id)
    said = f"generation_config.json has eos_token_id {eos_id!r}; expected "
    with pytest.raises(InputError, match=re.escape(said)):
        read_model(Checkpoint(copied))


@pytest.mark.parametrize("write", [write_marian, write_marian_of_two_vocabularies])
def test_options_that_compare_sides_need_one_vocabulary(tmp_path, write):
    """Two tokenizers may share it, as OPUS-MT's."""
    write(tmp_path)
    path = tmp_path / "generation_config.json"
    options = json.loads(path.read_text()) | {"encoder_no_repeat_ngram_size": 3}
    path.write_text(json.dumps(options))
    checkpoint = Checkpoint(tmp_path)
    vocabularies = read_vocabularies(checkpoint)
    said = contextlib.nullcontext()
    if write is write_marian_of_two_vocabularies:
        said = pytest.raises(InputError, match=r"encoder_no_repeat_ngram_size 3: .*two vocabular")
    with said:
        Generation(checkpoint).check_vocabularies(vocabularies)
