"""The same layers under other names: [names] in heed.toml."""

import re
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from model.importers.checkpoint import Checkpoint
from model.importers.networks.plain import read_plain
from model.network.config import Tied
from tests.model.importers.annotated import Annotated
from tests.model.importers.plain_models import (
    SOURCES,
    TARGETS,
    USE,
    assert_same_numbers,
    randomize,
    record,
    refusal,
    translator,
    write,
)

PARTS = ("q", "k", "v")
DOCS = (Path(__file__).parents[3] / "docs" / "checkpoints.md").read_text()


def each_alone(attention, parameter, pieces, _):
    return {
        f"{attention}.{part}.{parameter}": piece for part, piece in zip(PARTS, pieces, strict=True)
    }


def two_packed(attention, parameter, pieces, _):
    if "multihead" not in attention:
        return {f"{attention}.qkv.{parameter}": torch.cat(pieces)}
    query, *others = pieces
    return {
        f"{attention}.q.{parameter}": query,
        f"{attention}.kv.{parameter}": torch.cat(others),
    }


def by_heads(attention, parameter, pieces, heads):
    return {
        f"{attention}.heads.{i}.{part}.{parameter}": head
        for part, piece in zip(PARTS, pieces, strict=True)
        for i, head in enumerate(piece.tensor_split(heads))
    }


def foreign(state, split, heads, changes):
    """Return torch's tensors as a model of other code has them: projections split as it does, and
    names changed."""
    named = {}
    for name, tensor in state.items():
        if found := re.fullmatch(r"(.*)\.in_proj_(weight|bias)", name):
            named |= split(found[1], found[2], tensor.tensor_split(3), heads)
        else:
            named[name] = tensor
    for old, new in changes:
        named = {re.sub(old, new, name): tensor for name, tensor in named.items()}
    return {name: tensor.clone() for name, tensor in named.items()}


def count_from_one(found):
    return f"{found[1]}.blocks.{int(found[2]) + 1}."


STYLES = {  # how projections are split, how names change, and the patterns that say so
    "the tutorial of the documentation": (
        each_alone,
        [
            (r"core\.", ""),
            (r"(encoder.*)norm2", r"\1ff_layer_norm"),
            (r"norm3", "ff_layer_norm"),
            (r"norm2", "enc_attn_layer_norm"),
            (r"norm1", "self_attn_layer_norm"),
            (r"multihead_attn", "encoder_attention"),
            (r"self_attn\.", "self_attention."),
            (r"attention\.([qkv])\.", r"attention.fc_\1."),
            (r"out_proj", "fc_o"),
            (r"linear", "positionwise_feedforward.fc_"),
        ],
        tomllib.loads(re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)[-1])["names"],
    ),
    "blocks from 1": (
        each_alone,
        [
            (r"core\.(..)coder\.layers\.(\d+)\.", count_from_one),
            (r"self_attn\.([qkv])\.", r"attn.w\1."),
            (r"multihead_attn\.([qkv])\.", r"cross.w\1."),
            (r"self_attn\.out_proj", "attn.wo"),
            (r"multihead_attn\.out_proj", "cross.wo"),
            (r"linear1", "mlp.0"),
            (r"linear2", "mlp.3"),
            (r"norm(\d)\.weight", r"ln\1.gamma"),
            (r"norm(\d)\.bias", r"ln\1.beta"),
        ],
        {
            f"{side}.blocks.*.{theirs}": f"core.{side}coder.layers.*.{ours}"
            for side in ("en", "de")
            for theirs, ours in {
                "attn.wo.*": "self_attn.out_proj.*",
                "attn.w*.*": "self_attn.*_proj.*",
                "cross.wo.*": "multihead_attn.out_proj.*",
                "cross.w*.*": "multihead_attn.*_proj.*",
                "mlp.0.*": "linear1.*",
                "mlp.3.*": "linear2.*",
                "ln*.gamma": "norm*.weight",
                "ln*.beta": "norm*.bias",
            }.items()
            if side == "de" or "cross" not in theirs
        },
    ),
    "packed": (
        two_packed,
        [(r"core\.", "net."), (r"\.(qkv|q|kv)\.(weight|bias)", r".\1_proj.\2")],
        {
            "net.*.qkv_proj.*": "*.in_proj.*",
            "net.*": "*",  # q_proj and kv_proj have their names
        },
    ),
    "heads": (
        by_heads,
        [(r"core\.", "transformer.")],
        {"transformer.*.heads.*.q.*": "*.heads.*.q_proj.*"}
        | {f"*.heads.*.{part}.*": f"*.heads.*.{part}_proj.*" for part in "kv"},
    ),
}


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(i, marks=pytest.mark.long) for i in (24, 32, 36))]
)
@pytest.mark.parametrize("style", STYLES)
def test_layers_under_other_names_give_the_same_numbers(tmp_path, style, seed):
    split, changes, names = STYLES[style]
    theirs, keys = translator(seed)
    for modules in theirs.attentions():
        for module in modules:
            record(module)
    state = foreign(theirs.state_dict(), split, keys["num_heads"], changes)
    save_file(state, tmp_path / "model.safetensors")
    if style == "heads":
        keys["transformer"] = "transformer."
    if style.startswith("the tutorial"):
        keys["transformer"] = ""
    write(tmp_path, names, **keys)
    assert_same_numbers(read_plain(Checkpoint(tmp_path)), theirs, [7, 2, 12], [5, 9, 1], seed)


def rename_blocks(heads, size):
    """The Annotated Transformer with names of other code, and norms with one number for all."""
    theirs = randomize(Annotated((SOURCES, TARGETS), (2, 1), heads, size, Tied.no), 0)
    for module in theirs.modules():
        if hasattr(module, "a_2"):
            module.a_2, module.b_2 = nn.Parameter(torch.tensor([1.2])), nn.Parameter(torch.ones(1))
    names = {
        "self_attn.linears": "self_attention_block.w",
        "src_attn.linears": "cross_attention_block.w",
        "sublayer": "residual_connections",
        "a_2": "alpha",
        "b_2": "bias",
        "feed_forward.w_": "feed_forward_block.linear_",
    }
    state = theirs.state_dict()
    for old, new in names.items():
        state = {name.replace(old, new): tensor for name, tensor in state.items()}
    return theirs, state


def test_the_annotated_transformer_may_have_other_names_too(tmp_path):
    theirs, state = rename_blocks(2, 8)
    patterns = {
        "*.self_attention_block.w.*": "*.self_attn.linears.*",
        "*.cross_attention_block.w.*": "*.src_attn.linears.*",
        "*.residual_connections.*.alpha": "*.sublayer.*.a_2",
        "*.residual_connections.*.bias": "*.sublayer.*.b_2",
        "*.norm.alpha": "*.norm.a_2",
        "*.norm.bias": "*.norm.b_2",
        "*.feed_forward_block.linear_*": "*.feed_forward.w_*",
    }
    torch.save(state, tmp_path / "model.pt")
    write(tmp_path, patterns, kind="annotated", num_heads=2, **USE)
    assert_same_numbers(read_plain(Checkpoint(tmp_path)), theirs, [7, 2, 12], [5, 9, 1], 0)


def edited(folder, change, names=None, **more):
    """Write a translator after `change` of its state dict; return the refusal."""
    theirs, keys = translator(24)
    state = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    torch.save(change(state), folder / "model.pt")
    write(folder, names, **keys | more)
    sentence = refusal(read_plain, Checkpoint(folder))
    assert "download" not in sentence
    return sentence


def replaced(old, new):
    return lambda state: {re.sub(old, new, name): tensor for name, tensor in state.items()}


@pytest.mark.parametrize(
    ("change", "names", "said"),
    [
        (
            replaced(r"norm2|linear1", "x"),
            {},
            "have no core.encoder.layers.*.linear1.* (3), core.encoder.layers.*.norm2.* (3), ",
        ),
        (
            replaced(r"layers\.(\d+)\.norm1", r"layers.\1.first"),
            {},
            "and have core.decoder.layers.*.first.* (4), core.encoder.layers.*.first.* (6), ",
        ),
        (
            replaced(r"core\.encoder", "enc"),
            {},
            "under [names]: core.decoder.layers.*.linear1.* (4), ",
        ),
        (
            replaced("a", "a"),
            {"*.fc.*": "*.linear1.*"},
            "names has *.fc.*, which matches no tensor",
        ),
        (replaced("a", "a"), {"*.norm2.*": "*.norm1.*"}, "names calls two tensors core."),
        (replaced("a", "a"), {"*.norm2.*": "norm1.*"}, "has names {'*.norm2.*': 'norm1.*'}: give"),
        (replaced(r"decoder\.layers\.0", "decoder.layers.7"), {}, "which some are missing"),
    ],
)
def test_what_the_names_do_not_fit_is_said_in_one_message(tmp_path, change, names, said):
    assert said in edited(tmp_path, change, names)


def test_keys_after_the_table_of_names_are_noticed(tmp_path):
    theirs, keys = translator(24)
    torch.save(theirs.state_dict(), tmp_path / "model.pt")
    heads = keys.pop("num_heads")
    write(tmp_path, {"*.norm2.*": "*.norm2.*"}, **keys)
    with (tmp_path / "heed.toml").open("a") as file:
        file.write(f"\nnum_heads = {heads}")
    said = r"has names .*num_heads.*: give a table at the end of"
    assert re.search(said, refusal(read_plain, Checkpoint(tmp_path)))


def test_tensors_to_ignore_may_be_patterns(tmp_path):
    theirs, keys = translator(24)
    masks = {f"core.decoder.layers.{i}.self_attn.mask": torch.ones(3) for i in range(2)}
    torch.save(theirs.state_dict() | masks, tmp_path / "model.pt")
    write(tmp_path, ignore=["*.mask"], **keys)
    assert read_plain(Checkpoint(tmp_path)).config.num_heads == keys["num_heads"]
