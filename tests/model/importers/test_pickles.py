"""Files of torch.save that other programs wrote: what is read, and what is said of the others."""

import argparse
import re
import warnings

import pytest
import torch
from torch import nn

from model.importers.checkpoint import Checkpoint
from model.importers.networks.plain import read_plain
from tests.model.importers.plain_models import refusal, translator, write

OPTIONS = argparse.Namespace(layers=2)  # an object: torch does not load it


def write_weights(folder, content, zipped=True, **more):
    _, keys = translator(24)
    torch.save(content, folder / "best.ckpt", _use_new_zipfile_serialization=zipped)
    write(folder, weights="best.ckpt", **keys, **more)


LIGHTNING = {"epoch": 3, "pytorch-lightning_version": "2.4.0", "hyper_parameters": {"lr": 1e-3}}
JOEY = {"steps": 5, "best_ckpt_score": 1.5, "optimizer_state": {"state": {}, "param_groups": []}}


@pytest.mark.parametrize(
    ("entry", "others"), [("state_dict", LIGHTNING), ("model_state", JOEY), ("model", {"step": 3})]
)
def test_the_state_dict_of_a_training_is_read(tmp_path, entry, others):
    theirs, keys = translator(24)
    write_weights(tmp_path, {entry: theirs.state_dict(), **others})
    said = f'no tensors at its top, .*: write state = "{entry}" in'
    assert re.search(said, refusal(Checkpoint, tmp_path))
    write(tmp_path, weights="best.ckpt", state=entry, **keys)
    assert read_plain(Checkpoint(tmp_path)).config.num_heads == keys["num_heads"]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (LIGHTNING | {"state_dict": {}, "hyper_parameters": OPTIONS}, "a checkpoint of Lightning:"),
        (
            {"args": OPTIONS, "model": {}, "optimizer_history": [], "extra_state": {}},
            "a checkpoint of fairseq: convert it to Hugging Face's files",
        ),
        (
            {"cfg": OPTIONS, "model": {}, "last_optimizer_state": {}, "extra_state": {}},
            "a checkpoint of fairseq: convert it to Hugging Face's files",
        ),
        (
            {"model": {}, "generator": {}, "vocab": {}, "opt": OPTIONS, "optim": {}},
            "a checkpoint of OpenNMT-py: join its entries model and generator",
        ),
        (
            {"module": {}, "ds_version": "0.15", "args": OPTIONS},
            "a shard of DeepSpeed: run zero_to",
        ),
        ({"model": {}, "args": OPTIONS}, "save the weights alone with torch.save(model.state"),
    ],
)
def test_the_program_of_a_file_with_objects_is_named(tmp_path, content, said, zipped):
    write_weights(tmp_path, content, zipped)
    sentence = refusal(Checkpoint, tmp_path)
    assert "best.ckpt holds more than tensors, namely argparse.Namespace, and" in sentence
    assert said in sentence


def test_a_checkpoint_in_two_entries_is_named(tmp_path):
    """That of OpenNMT-py may hold no object, but its weights are in two entries."""
    one = {"a": torch.ones(1)}
    write_weights(tmp_path, {"model": one, "generator": one, "vocab": {}, "opt": {}})
    said = "no tensors at its top, .* a checkpoint of OpenNMT-py"
    assert re.search(said, refusal(Checkpoint, tmp_path))


def test_a_program_of_torchscript_is_named(tmp_path):
    _, keys = translator(24)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        torch.jit.script(nn.Linear(2, 2)).save(tmp_path / "model.pt")
    write(tmp_path, **keys)
    said = "model.pt is a program of TorchScript, which is not run"
    assert said in refusal(Checkpoint, tmp_path)
