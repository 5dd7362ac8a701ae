"""Names of tensors that torch's wrappers changed, and those of tied matrices."""

import re
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_model
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

from model.importers.checkpoint import Checkpoint
from model.importers.networks.plain import read_plain
from model.network.config import Tied
from tests.model.importers import random_models as hugging_face
from tests.model.importers.plain_models import assert_same_numbers, record, translator, write
from tests.model.importers.random_models import random_model, read


def wrapped(model, wrapper):
    """The state dict of a module inside one of torch's wrappers."""
    match wrapper:
        case "DataParallel":
            return nn.DataParallel(model).state_dict()
        case "compiled":
            return torch.compile(model).state_dict()
        case "compiled DataParallel":
            return torch.compile(nn.DataParallel(model)).state_dict()
        case "compiled layers":
            model.core = torch.compile(model.core)
            return model.state_dict()
        case "averaged":
            return AveragedModel(model).state_dict()
        case "checkpointed layers":
            model.core.encoder.layers[0] = checkpoint_wrapper(model.core.encoder.layers[0])
            state = model.state_dict()
            inner = "_checkpoint_wrapped_module."
            return {n.replace("layers.0.", f"layers.0.{inner}"): x for n, x in state.items()}
        case "in an attribute":
            return nn.ModuleDict({"model": model}).state_dict()
    return None


@pytest.mark.parametrize("with_prefix", [False, True])
@pytest.mark.parametrize(
    "wrapper",
    [
        "DataParallel",
        "compiled",
        "compiled DataParallel",
        "compiled layers",
        "averaged",
        "checkpointed layers",
        "in an attribute",
    ],
)
def test_names_are_read_without_the_prefixes_of_wrappers(tmp_path, wrapper, with_prefix):
    """heed.toml may give names with the prefix or without it."""
    theirs, keys = translator(24)
    expected = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of torch.compile
        state = wrapped(theirs, wrapper)
    assert state.keys() != expected.keys()
    if with_prefix:
        full = {re.sub(r"(module|_orig_mod|^model)\.", "", name): name for name in state}
        keys |= {key: full[keys[key]] for key in ("source_embedding", "target_embedding", "output")}
        keys["positions"] = [full[name] for name in keys["positions"]]
    torch.save(state, tmp_path / "model.pt")
    write(tmp_path, **keys)
    ours = read_plain(Checkpoint(tmp_path)).state_dict()
    for part, name in {
        "encoder.embedding.tokens.weight": "words_in.weight",
        "encoder.layers.0.feed_forward.up.weight": "core.encoder.layers.0.linear1.weight",
        "decoder.layers.0.self_attention.output.bias": (
            "core.decoder.layers.0.self_attn.out_proj.bias"
        ),
    }.items():
        assert torch.equal(ours[part], expected[name])


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("family", ["bart", "t5"])
def test_checkpoints_of_hugging_face_may_have_prefixes_of_wrappers(tmp_path, family, prefix):
    theirs = random_model(family, 0)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    state = {prefix + name: tensor for name, tensor in theirs.state_dict().items()}
    torch.save(state, tmp_path / "pytorch_model.bin")
    hugging_face.assert_same_numbers(read(tmp_path), theirs, [7, 2], [5, 9])


@pytest.mark.parametrize("saved", ["model.safetensors", "model.pt"])
@pytest.mark.parametrize(("tied", "seed"), [(Tied.all, 14), (Tied.target, 24)])
def test_tied_matrices_are_read_by_each_of_their_names(tmp_path, saved, tied, seed):
    """safetensors keep one of the names, and list the others in their metadata."""
    theirs, keys = translator(seed)
    theirs.again = theirs.words_out  # a name that heed.toml does not give
    for modules in theirs.attentions():
        for module in modules:
            record(module)
    if saved == "model.pt":
        torch.save(theirs.state_dict(), tmp_path / saved)
    else:
        save_model(theirs, tmp_path / saved)
        names = load_file(tmp_path / saved).keys()
        assert len(names) < len(theirs.state_dict())
    write(tmp_path, **keys)
    ours = read_plain(Checkpoint(tmp_path))
    assert ours.config.tied is tied
    assert_same_numbers(ours, theirs, [7, 2, 12], [5, 9, 1], seed)
