"""Fields of config.json mean what they mean to Hugging Face, under each of their names."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from model.importers.checkpoint import Checkpoint
from model.importers.networks.t5 import read_t5
from model.network.config import InputError
from tests.model.importers.random_models import assert_same_numbers, random_model, read, save

LENGTHS = [7, 2, 12], [5, 9, 1]
UNNAMED = {"tie_word_embeddings": None, "scale_decoder_outputs": None}


def write(folder, family, changes, own_output=False):
    """Save a random model with other fields, a value of None removing one. Return Hugging Face's
    model of the folder."""
    save(random_model(family, 1), folder, "safetensors")
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | changes
    path.write_text(
        json.dumps({name: value for name, value in fields.items() if value is not None})
    )
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    if own_output:
        tensors["lm_head.weight"] = tensors["shared.weight"].roll(1, 0).contiguous()
    save_file(tensors, folder / "model.safetensors")
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )


@pytest.mark.parametrize("own_output", [True, False])
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *(("umt5", {"tie_word_embeddings": tied}) for tied in (True, False)),
        *(("mt5", {"tie_word_embeddings": tied}) for tied in (True, False)),
        ("t5", {}),
        ("t5", {"tie_word_embeddings": False}),
        ("t5", {"tie_word_embeddings": True, "scale_decoder_outputs": False}),
        ("t5", {"tie_word_embeddings": False, "scale_decoder_outputs": True}),
    ],
)
def test_outputs_of_t5_are_scaled_as_hugging_face_scales_them(
    tmp_path, family, changes, own_output
):
    theirs = write(tmp_path, family, UNNAMED | changes, own_output)
    assert_same_numbers(read(tmp_path), theirs, *LENGTHS)


def renamed(fields, config):
    """Return changes that give these fields of a configuration their other names."""
    held = {ours: getattr(config, ours) for ours in fields}
    return dict.fromkeys(held) | {fields[name]: value for name, value in held.items()}


OTHER_NAMES = {
    "bart": {
        "d_model": "hidden_size",
        "encoder_layers": "num_hidden_layers",
        "encoder_attention_heads": "num_attention_heads",
    },
    "t5": {
        "d_model": "hidden_size",
        "d_kv": "head_dim",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
    },
}


@pytest.mark.parametrize("family", OTHER_NAMES)
def test_fields_are_read_under_their_other_names(tmp_path, family):
    changes = renamed(OTHER_NAMES[family], random_model(family, 1).config)
    theirs = write(tmp_path, family, changes)
    assert_same_numbers(read(tmp_path), theirs, *LENGTHS)


def test_the_other_name_counts_before_the_own(tmp_path):
    changes = renamed({"d_model": "hidden_size"}, random_model("bart", 1).config) | {"d_model": 99}
    theirs = write(tmp_path, "bart", changes)
    assert_same_numbers(read(tmp_path), theirs, *LENGTHS)


@pytest.mark.parametrize(
    ("family", "fields", "changes"),
    [
        ("m2m_100", {"activation_function": "relu", "scale_embedding": True}, {}),
        ("mt5", {"feed_forward_proj": "gated-gelu"}, {"dense_act_fn": None, "is_gated_act": None}),
        ("t5", {"feed_forward_proj": "relu"}, {"dense_act_fn": None, "is_gated_act": None}),
    ],
)
def test_fields_that_are_missing_are_those_of_the_family(tmp_path, family, fields, changes):
    model = random_model(family, 1, **fields)
    save(model, tmp_path, "safetensors")
    path = tmp_path / "config.json"
    held = json.loads(path.read_text())
    path.write_text(json.dumps({name: held[name] for name in held.keys() - {*fields, *changes}}))
    assert_same_numbers(read(tmp_path), model, *LENGTHS)


@pytest.mark.parametrize("function", ["relu", "gelu_python", "silu"])
def test_the_activation_that_is_written_out_counts_before_its_short_name(tmp_path, function):
    theirs = write(tmp_path, "t5", {"dense_act_fn": function})
    assert_same_numbers(read(tmp_path), theirs, *LENGTHS)


@pytest.mark.parametrize(
    ("buckets", "longest", "max_length", "said"),
    [
        (32, 17, 40, None),
        (32, 16, 16, None),
        (32, 8, 8, None),
        (32, 8, 9, "give --max-length 8"),
        (32, 8, 512, "relative_attention_max_distance 8; expected more than 16, because tokens 8"),
        (32, 4, 16, None),
        (32, 4, 512, "give --max-length 1"),
        (32, 1, 512, "relative_attention_max_distance 1; expected more than 16"),
        (4, 3, 40, None),
        (6, 100, 40, None),
        (7, 20, 40, None),
        (3, 128, 40, "relative_attention_num_buckets 3; expected at least 4"),
        (32, 10**9, 40, None),
    ],
)
def test_distances_have_hugging_faces_buckets_or_are_refused(
    tmp_path, buckets, longest, max_length, said
):
    fields = {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": longest}
    theirs = random_model("t5", 0, **fields)
    save(theirs, tmp_path, "safetensors")
    if said:
        with pytest.raises(InputError, match=said):
            read_t5(Checkpoint(tmp_path), max_length)
    else:
        ours = read_t5(Checkpoint(tmp_path), max_length)
        assert_same_numbers(ours, theirs, [max_length, 3], [2, max_length])
