"""Where versions of transformers differ, convert says so, and takes no wrong one for a proof."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.importers.checkpoint import Checkpoint
from model.importers.proofs.hugging_face import ask_hugging_face
from model.importers.proofs.texts import Texts
from model.importers.proofs.versions import describe_differences, find_fault
from model.network.config import TransformerConfig
from tests.model.importers.random_models import random_model, save

IDS = {"decoder_start_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
TEXTS = Texts("a test", [[4, 5, 2]], [2], longest=4, unknown=0.0)
CONFIG = TransformerConfig(
    source_vocab_size=40, target_vocab_size=40, d_model=8, num_heads=2, pad_id=1, eos_id=2
)
OLD_5 = ["5.0.0", "5.15.0", "5.17.0"]
CNN = {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "max_length": 142}


def write(folder, family, config, generation=None, rename=lambda tensors: None):
    save(random_model(family, 1), folder, "safetensors")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    (folder / "generation_config.json").unlink()
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    tensors = load_file(folder / "model.safetensors")
    rename(tensors)
    save_file(tensors, folder / "model.safetensors")
    return Checkpoint(folder)


@pytest.mark.parametrize(
    ("family", "config", "generation", "said"),
    [
        ("bart", CNN, IDS | CNN, None),
        ("bart", CNN, None, None),
        ("bart", {"num_beams": 1, "do_sample": False, "min_length": 0}, IDS, None),
        (
            "bart",
            CNN | {"force_bos_token_to_be_generated": True},
            IDS | CNN | {"forced_bos_token_id": 0},
            None,
        ),
        ("bart", {"force_bos_token_to_be_generated": True}, IDS, "_generated True, unlike"),
        (
            "bart",
            CNN,
            IDS,
            "has num_beams 4, length_penalty 2.0, early_stopping True, max_length 142",
        ),
        ("bart", {"do_sample": True}, IDS, "has do_sample True, unlike generation_config.json"),
        ("bart", {"num_beams": 2}, IDS, "alone, versions before this file existed by"),
        ("bart", {"num_beams": 2}, IDS | {"_from_model_config": True}, "alone, transformers 4 by"),
        ("umt5", {"tie_word_embeddings": False}, None, "scale UMT5's outputs"),
        ("umt5", {"tie_word_embeddings": True}, None, None),
        ("t5", {"tie_word_embeddings": False}, None, None),
    ],
)
def test_a_choice_that_other_versions_make_otherwise_is_said_in_a_line(
    tmp_path, family, config, generation, said
):
    found = describe_differences(write(tmp_path, family, config, generation))
    assert len(found) == (0 if said is None else 1)
    assert all(said in sentence and "\n" not in sentence for sentence in found)


def madlad(tensors):
    shared = tensors.pop("shared.weight")
    tensors["decoder.embed_tokens.weight"] = shared
    tensors["lm_head.weight"] = shared.flip(0).contiguous()


def own_output(tensors):
    tensors["lm_head.weight"] = tensors["shared.weight"].flip(0).contiguous()


def nothing(tensors):
    pass


@pytest.mark.parametrize(
    ("family", "config", "rename", "wrong"),
    [
        ("t5", {"tie_word_embeddings": False}, madlad, OLD_5),
        ("t5", {"tie_word_embeddings": False}, own_output, []),
        ("t5", {"tie_word_embeddings": True}, own_output, ["4.57.3"]),
        ("t5", {"tie_word_embeddings": True}, nothing, []),
        ("umt5", {"tie_word_embeddings": False}, own_output, ["4.57.3", *OLD_5]),
        ("umt5", {"tie_word_embeddings": True}, nothing, OLD_5),
        ("mt5", {"tie_word_embeddings": True}, nothing, ["4.57.3"]),
        ("bart", {"tie_word_embeddings": False}, nothing, []),
    ],
)
def test_versions_that_read_a_checkpoint_wrongly_are_named(tmp_path, family, config, rename, wrong):
    """Each was seen: loaded with these versions, and compared with the tensors of the file."""
    config = config | {"scale_decoder_outputs": None}
    checkpoint = write(tmp_path, family, config, rename=rename)
    fields = {key: value for key, value in checkpoint.config.items() if value is not None}
    checkpoint.config = fields
    checkpoint.close()
    versions = ["4.57.3", "5.0.0", "5.15.0", "5.17.0", "5.18.0", "5.23.0", "6.0.0.dev0"]
    found = {version: find_fault(checkpoint, version) for version in versions}
    assert [version for version, fault in found.items() if fault] == wrong
    assert all("install transformers 5.23 or later" in found[version] for version in wrong)


def test_a_model_with_random_weights_is_not_a_reference(tmp_path):
    """transformers 5 ties nothing if tie_word_embeddings is false, and makes up what is missing."""
    checkpoint = write(tmp_path, "bart", {"tie_word_embeddings": False}, IDS)
    proof = ask_hugging_face(checkpoint, TEXTS, CONFIG, print)
    assert proof.holds is None
    assert "no weights for lm_head.weight" in proof.result


def test_a_folder_that_hugging_face_cannot_load_is_a_failed_proof_in_one_line(tmp_path):
    checkpoint = write(tmp_path, "bart", {"dropout": "much"}, IDS)
    proof = ask_hugging_face(checkpoint, TEXTS, CONFIG, print)
    assert proof.holds is False
    assert proof.result.startswith("it cannot load the folder: ")
    assert "\n" not in proof.result


def test_a_model_that_hugging_face_cannot_run_is_a_failed_proof_in_one_line(tmp_path):
    checkpoint = write(tmp_path, "m2m_100", {"pad_token_id": None}, IDS)
    proof = ask_hugging_face(checkpoint, TEXTS, CONFIG, print)
    assert proof.holds is False
    assert proof.result.startswith("it loads the folder but cannot run it: ")
    assert "\n" not in proof.result


@pytest.mark.parametrize("family", ["t5", "umt5"])
def test_a_decoder_with_more_layers_than_the_encoder_has_a_reference(tmp_path, family):
    """transformers 5 makes room for the keys of as many layers as T5's encoder has."""
    model = random_model(family, 1, num_layers=1, num_decoder_layers=3)
    save(model, tmp_path, "safetensors")
    config = replace(CONFIG, num_encoder_layers=1, num_decoder_layers=3)
    found = ask_hugging_face(Checkpoint(tmp_path), TEXTS, config, print)
    (_, target), (log_probs,) = *found.pairs, found.log_probs
    assert log_probs[:-1].argmax(-1).tolist() == target[1:]


@pytest.mark.parametrize(
    "options",
    [
        IDS,
        IDS | {"num_return_sequences": 10},  # more than beams: transformers refuses to load these
        IDS | {"early_stopping": "soon"},
        IDS | {"num_beams": 4, "min_length": 10**4},
    ],
)
def test_a_valid_reference_answers(tmp_path, options):
    checkpoint = write(tmp_path, "pegasus", {}, options)
    found = ask_hugging_face(checkpoint, TEXTS, CONFIG, print)
    ((source, target),), (log_probs,) = found.pairs, found.log_probs
    assert source == [4, 5, 2]
    assert target[0] == 2
    assert len(target) == len(log_probs) <= 4
    assert torch.from_numpy(log_probs).exp().sum(-1).allclose(torch.ones(len(target)))
    assert log_probs[:-1].argmax(-1).tolist() == target[1:]  # what `generate` writes is the best
