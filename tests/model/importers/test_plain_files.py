"""heed.toml, the weights and the tokenizers of a model of one's own: what is read, what refused."""

import pickle
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from model.importers.checkpoint import Checkpoint
from model.importers.description import RULES, read_description
from model.importers.networks.plain import read_plain
from model.importers.readme import find_licence
from model.network.config import Tied
from tests.model.importers.plain_models import refusal, write

DOCS = (Path(__file__).parents[3] / "docs" / "checkpoints.md").read_text()
ROWS, WIDTH = 9, 8
WORDS = ["<unk>", "<pad>", "<s>", "</s>", "der", "Hund", "ist", "groß", "."]
KEYS = {
    "kind": "torch",
    "source_embedding": "source.weight",
    "target_embedding": "target.weight",
    "output": "output.weight",
    "positions": "sinusoidal",
    "embedding_scale": "sqrt",
    "num_heads": 2,
    "pad_id": 1,
    "start_id": 2,
    "eos_id": 3,
    "source_prefix_ids": [],
    "source_suffix_ids": [3],
    "max_source_length": 16,
    "max_target_length": 16,
}


@pytest.fixture(scope="module")
def state():
    torch.manual_seed(0)
    layers = nn.Transformer(WIDTH, 2, 1, 1, 12, batch_first=True).state_dict()
    tensors = {f"transformer.{name}": tensor for name, tensor in layers.items()}
    for name in ("source", "target", "output"):
        tensors[f"{name}.weight"] = torch.randn(ROWS, WIDTH)
    return tensors


@pytest.fixture
def checkpoint(tmp_path, state):
    """Write a checkpoint with other keys and tensors than usual; None leaves one out."""

    def write_folder(tensors=None, **keys):
        write(tmp_path, **KEYS | keys)
        held = {**state, **(tensors or {})}
        save_file(
            {name: tensor for name, tensor in held.items() if tensor is not None},
            tmp_path / "model.safetensors",
        )
        return Checkpoint(tmp_path)

    return write_folder


@pytest.fixture
def weights(tmp_path):
    """The file of the weights, not yet written, of a folder that is described."""
    write(tmp_path, **KEYS)
    return tmp_path / "model.pt"


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"kind": None}, "heed.toml lacks kind: give one of torch, annotated"),
        ({"kind": "keras"}, "has kind 'keras': give one of torch, annotated"),
        ({"heads": 2}, "has heads, which is not a key: the keys are .*num_heads"),
        ({"num_heads": None}, "lacks keys that a model of kind 'torch' needs: num_heads, a whole"),
        ({"num_heads": "2"}, "has num_heads '2': give a whole number"),
        ({"num_heads": True}, "has num_heads True: give a whole number"),
        ({"num_heads": 3}, "heed.toml: d_model 8 is not a multiple of num_heads 3"),
        ({"pad_id": -1}, "has pad_id -1: give an id"),
        ({"eos_id": 9}, r"heed.toml: pad_id, bos_id, eos_id are \(1, 2, 9\): give .* less than 9"),
        ({"source_prefix_ids": 2}, "has source_prefix_ids 2: give a list of ids"),
        ({"source_suffix_ids": [9]}, "source_suffix_ids has 9, but the source has ids 0 to 8"),
        ({"embedding_scale": 0}, 'has embedding_scale 0: give "sqrt", or a number above 0'),
        ({"norm_epsilon": "small"}, "has norm_epsilon 'small': give a number above 0"),
        ({"norm_first": 1}, "has norm_first 1: give true or false"),
        ({"activation": "tanh"}, "has activation 'tanh': give one of relu, gelu"),
        ({"positions": ["a"]}, 'has positions .*: give "sinusoidal", the name of a tensor, or'),
        ({"max_source_length": 0}, "heed.toml: max_source_length is 0: give at least 1"),
        ({"output": "out.weight"}, "output is 'out.weight', .* have output.weight, source.weight"),
        ({"output_bias": "bias"}, "output_bias is 'bias', but the weights have no such tensor"),
        ({"positions": "pe"}, "positions is 'pe', but the weights have no such tensor"),
        ({"ignore": ["optimizer"]}, "ignore is 'optimizer', but the weights have no such tensor"),
        ({"transformer": "core."}, "transformer is 'core.', but no .*; give 'transformer.'"),
        ({"kind": "annotated", "transformer": "transformer."}, r"have no .*linears"),
        ({"source_vocabulary": "../a.txt"}, "give the name of a file in this folder"),
    ],
)
def test_a_wrong_key_is_named(checkpoint, keys, sentence):
    assert re.search(sentence, refusal(read_plain, checkpoint(**keys)))


@pytest.mark.parametrize(
    ("tensors", "keys", "sentence"),
    [
        ({"head.scale": torch.ones(1)}, {}, "have head.scale, which nothing reads: .* in ignore"),
        ({"places": torch.ones(1, 9, WIDTH)}, {"positions": "places"}, "at least 16 rows of 8"),
        ({"places": torch.ones(4, 9, WIDTH)}, {"positions": "places"}, "places have shape"),
        ({"source.weight": torch.ones(ROWS)}, {}, "source.weight has shape .* must be a matrix"),
        ({"target.weight": torch.ones(ROWS, 4)}, {}, "target.weight .* heed.toml describes"),
        (
            {"transformer.encoder.layers.0.linear2.weight": None},
            {},
            r"have no transformer.encoder.layers.0.linear2.weight: map names to",
        ),
        ({"transformer.decoder.norm.weight": None}, {}, "have no transformer.decoder.norm.weight:"),
        (
            {"source.weight": torch.ones(0, WIDTH)},
            {},
            "source.weight is empty, as DeepSpeed leaves",
        ),
        ({"output.weight": torch.full((ROWS, WIDTH), torch.nan)}, {}, "output.weight holds NaN"),
    ],
)
def test_a_wrong_tensor_is_named(checkpoint, tensors, keys, sentence):
    assert re.search(sentence, refusal(read_plain, checkpoint(tensors, **keys)))


def test_the_documented_examples_are_valid_and_all_keys_are_documented(checkpoint, tmp_path):
    examples = re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)
    checkpoint()
    kinds = []
    for example in examples:
        (tmp_path / "heed.toml").write_text(example)
        kinds.append(read_description(Checkpoint(tmp_path)).kind)
    assert kinds == ["torch", "annotated", "torch"]
    assert [key for key in RULES if f"`{key}`" not in DOCS] == []


def test_a_tensor_that_the_model_does_not_need_can_be_ignored(checkpoint):
    unused = {"head.scale": torch.ones(1)}
    assert read_plain(checkpoint(unused, ignore=["head.scale"])).config.tied is Tied.no


def test_heed_toml_comes_before_another_config_json(checkpoint, tmp_path):
    (tmp_path / "config.json").write_text('{"learning_rate": 1e-4}')
    assert read_plain(checkpoint()).config.d_model == WIDTH


def test_a_model_of_ones_own_needs_no_licence(checkpoint, tmp_path):
    checkpoint()
    (tmp_path / "README.md").write_text("# Mine\n")
    assert find_licence(tmp_path, "") == ""
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    assert find_licence(tmp_path, "") == "mit"


def test_a_projection_without_a_tensor_of_its_own_is_named_as_the_embedding(checkpoint, state):
    bias = torch.arange(9.0)
    read = read_plain(
        checkpoint(
            {"output.weight": None, "shift": bias}, output="target.weight", output_bias="shift"
        )
    )
    assert read.config.tied is Tied.target
    torch.testing.assert_close(read.generator.weight, state["target.weight"])
    torch.testing.assert_close(read.generator.bias, bias)


def test_a_state_dict_inside_a_file_is_named(weights, tmp_path, state):
    torch.save({"epoch": 3, "model": state}, weights)
    sentence = refusal(Checkpoint, tmp_path)
    assert "model.pt has no tensors at its top, but epoch, model" in sentence
    write(tmp_path, state="weights")
    assert "no tensors under 'weights', but epoch, model" in refusal(Checkpoint, tmp_path)


def test_safetensors_have_no_state(checkpoint):
    assert "model.safetensors has no entries: remove it" in refusal(lambda: checkpoint(state="ema"))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_whole_module_is_refused_by_its_name(weights, tmp_path, zipped):
    module = torch.nn.Linear(2, 2)
    torch.save(module, weights, _use_new_zipfile_serialization=zipped)
    sentence = refusal(Checkpoint, tmp_path)
    assert "namely torch.nn.modules.linear.Linear, and loading that could run code" in sentence
    assert "torch.save(model.state_dict(), path)" in sentence


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_a_file_that_is_cut_short_is_refused(weights, tmp_path, state, share, zipped):
    torch.save(state, weights, _use_new_zipfile_serialization=zipped)
    content = weights.read_bytes()
    weights.write_bytes(content[: int(share * len(content))])
    assert "model.pt is damaged" in refusal(Checkpoint, tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"hello", "is damaged"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a git-lfs pointer"),
        (pickle.dumps({"a": torch.zeros(3)}), "is a pickle that torch.save did not write: its obj"),
        (pickle.dumps(["a"], protocol=2), "is a pickle that torch.save did not write: its objects"),
    ],
)
def test_a_file_of_another_kind_is_refused(weights, tmp_path, content, said):
    weights.write_bytes(content)
    assert f"model.pt {said}" in refusal(Checkpoint, tmp_path)


def test_a_folder_without_weights_or_description_is_refused(tmp_path):
    assert "describe a model of your own in heed.toml" in refusal(Checkpoint, tmp_path)
    (tmp_path / "heed.toml").write_text("kind = ")
    assert "heed.toml is not TOML" in refusal(Checkpoint, tmp_path)
    (tmp_path / "heed.toml").write_text('kind = "torch"')
    assert "has no weights: it needs model.safetensors" in refusal(Checkpoint, tmp_path)
    for name in ("epoch_1.pt", "epoch_2.pt"):
        (tmp_path / name).write_bytes(b"")
    assert 'such as weights = "epoch_2.pt"' in refusal(Checkpoint, tmp_path)


@pytest.mark.parametrize("name", ["best.pth", "epoch_9.pt", "last.ckpt", "weights.safetensors"])
def test_heed_toml_may_name_the_file_of_the_weights(checkpoint, tmp_path, state, name):
    checkpoint({"source.weight": torch.zeros(ROWS, WIDTH)})
    write(tmp_path, **KEYS, weights=name)
    if name.endswith("safetensors"):
        save_file(state, tmp_path / name)
    else:
        torch.save(state, tmp_path / name)
    read = read_plain(Checkpoint(tmp_path))
    assert torch.equal(read.encoder.embedding.tokens.weight, state["source.weight"])
    (tmp_path / name).unlink()
    assert f"has weights '{name}', but the folder has no" in refusal(Checkpoint, tmp_path)
