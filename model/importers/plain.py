"""Read models of your own: torch.nn.Transformer inside a module, or The Annotated Transformer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from model.importers.checkpoint import OWN, Checkpoint
from model.importers.description import SINUSOIDAL, SQRT, Description, read_description
from model.importers.state import StateReader, shortened
from model.network.config import (
    Activation,
    InputError,
    NormKind,
    Positions,
    Tied,
    TransformerConfig,
)
from model.network.positions import sinusoidal_positions
from model.network.transformer import Transformer
from model.network.tying import OUTPUT, SOURCE, TARGET

SIDES = ("encoder", "decoder")
PROJECTIONS = ("query", "key", "value")  # in the order of both kinds
ADVICE = "name them in heed.toml: as what they are, or in ignore if the model does not need them"


@dataclass(frozen=True, slots=True)
class Names:
    """The names that a kind of layer gives its parts. Norms are in the order of the sublayers."""

    norm: NormKind
    packed: bool  # the projections of queries, keys and values are one matrix
    cross_attention: str
    up: str
    down: str
    sublayer_norms: tuple[str, str, str]
    weight: str  # of a norm
    bias: str


NAMES = {
    "torch": Names(
        NormKind.layer_norm,
        True,
        "multihead_attn",
        "linear1",
        "linear2",
        ("norm1", "norm2", "norm3"),
        "weight",
        "bias",
    ),
    "annotated": Names(
        NormKind.unbiased_layer_norm,
        False,
        "src_attn",
        "feed_forward.w_1",
        "feed_forward.w_2",
        ("sublayer.0.norm", "sublayer.1.norm", "sublayer.2.norm"),
        "a_2",
        "b_2",
    ),
}


def read_plain(checkpoint: Checkpoint) -> Transformer:
    """Return the network. Raise InputError if heed.toml and the tensors do not fit each other."""
    description = read_description(checkpoint)
    check_names(checkpoint, description)
    check_stacks(checkpoint, description.transformer)
    reader, names = StateReader(checkpoint), NAMES[description.kind]
    tied = read_matrices(reader, description)
    config = read_config(reader, description, tied)
    lengths = config.max_source_length, config.max_target_length
    layers = config.num_encoder_layers, config.num_decoder_layers
    for i, side in enumerate(SIDES):
        table = position_table(checkpoint, description.positions[i], lengths[i], config.d_model)
        reader.put(f"{side}.embedding.positions", table, description.positions[i])
        for layer in range(layers[i]):
            read_layer(reader, names, f"{side}.layers.{layer}", description.transformer)
        if config.final_norm:
            read_norm(reader, names, f"{side}.norm", f"{description.transformer}{side}.norm")
    checkpoint.ignore(*description.ignore)
    return reader.build(config, ADVICE)


def check_names(checkpoint: Checkpoint, description: Description) -> None:
    """Raise InputError naming the first key of heed.toml whose tensor the weights lack."""
    named = {
        "source_embedding": [description.source_embedding],
        "target_embedding": [description.target_embedding],
        "output": [description.output],
        "positions": [name for name in description.positions if name != SINUSOIDAL],
        "ignore": description.ignore,
    }
    if "output_bias" in checkpoint.config:
        named["output_bias"] = [description.output_bias]
    for key, names in named.items():
        for name in names:
            if name not in checkpoint:
                others = [other for other in checkpoint.names if ".layers." not in other]
                raise InputError(
                    f"{description.path}: {key} is {name!r}, but the weights have no such tensor;"
                    f" outside of layers they have {shortened(others, most=12)}"
                )


def check_stacks(checkpoint: Checkpoint, start: str) -> None:
    """Raise InputError if the weights have no encoder or no decoder whose names begin so."""
    for side in SIDES:
        if not count_layers(checkpoint, f"{start}{side}.layers."):
            marker = "encoder.layers.0."
            starts = {name.partition(marker)[0] for name in checkpoint.names if marker in name}
            known = " or ".join(repr(start) for start in sorted(starts))
            raise InputError(
                f"{checkpoint.folder / OWN}: transformer is {start!r}, but no tensor's name begins"
                f" with {start}{side}.layers.0.; give {known or 'another kind of model'}"
            )


def count_layers(checkpoint: Checkpoint, start: str) -> int:
    names = [name.removeprefix(start) for name in checkpoint.names if name.startswith(start)]
    return len({name.partition(".")[0] for name in names})


def read_matrices(reader: StateReader, description: Description) -> Tied:
    """Read the embeddings and the output projection with its bias."""
    names = {
        SOURCE: description.source_embedding,
        TARGET: description.target_embedding,
        OUTPUT: description.output,
    }
    for name in names.values():
        matrix(reader.checkpoint, name)
    tied = reader.matrices(names)
    if description.output_bias in reader.checkpoint:
        reader.copy("generator.bias", description.output_bias)
    return tied


def read_config(reader: StateReader, description: Description, tied: Tied) -> TransformerConfig:
    checkpoint, start = reader.checkpoint, description.transformer
    names = NAMES[description.kind]
    source_vocab_size, d_model = matrix(checkpoint, description.source_embedding).shape
    check_ids(description, source_vocab_size)
    scale = description.embedding_scale
    computed = description.positions == (SINUSOIDAL, SINUSOIDAL)
    up = f"{start}encoder.layers.0.{names.up}.weight"
    try:
        return TransformerConfig(
            source_vocab_size=source_vocab_size,
            target_vocab_size=len(matrix(checkpoint, description.output)),
            d_model=d_model,
            d_ff=len(matrix(checkpoint, up)),
            num_heads=description.num_heads,
            num_encoder_layers=count_layers(checkpoint, f"{start}encoder.layers."),
            num_decoder_layers=count_layers(checkpoint, f"{start}decoder.layers."),
            norm=names.norm,
            norm_epsilon=description.norm_epsilon,
            norm_first=description.norm_first,
            final_norm=f"{start}encoder.norm.{names.weight}" in checkpoint,
            embedding_scale=0.0 if scale == SQRT else float(scale),
            positions=Positions.sinusoidal if computed else Positions.learned,
            activation=Activation(description.activation),
            tied=tied,
            dropout=0.0,
            max_source_length=description.max_source_length,
            max_target_length=description.max_target_length,
            pad_id=description.pad_id,
            bos_id=description.start_id,
            eos_id=description.eos_id,
        )
    except InputError as error:
        raise InputError(f"{description.path}: {error}") from error


def check_ids(description: Description, rows: int) -> None:
    for key in ("source_prefix_ids", "source_suffix_ids"):
        ids: list[int] = getattr(description, key)
        if wrong := [i for i in ids if i >= rows]:
            raise InputError(
                f"{description.path}: {key} has {wrong[0]}, but the source has ids 0 to {rows - 1}"
            )


def matrix(checkpoint: Checkpoint, name: str) -> Tensor:
    """Return a tensor of two axes. Raise InputError if it has others."""
    tensor = checkpoint.tensor(name)
    if tensor.dim() != 2:
        raise InputError(
            f"{checkpoint.folder}: tensor {name} has shape {tuple(tensor.shape)}: it must be a"
            " matrix"
        )
    return tensor


def position_table(checkpoint: Checkpoint, name: str, length: int, d_model: int) -> Tensor:
    """Return (length, M): computed, or the first rows of a tensor.

    Modules store (rows, M), or with an axis for the batch (1, rows, M) or (rows, 1, M).
    """
    if name == SINUSOIDAL:
        return sinusoidal_positions(length, d_model)
    table = checkpoint.tensor(name)
    shape = [size for size in table.shape[:-1] if size != 1] or [1]
    if not table.dim() or len(shape) > 1 or table.size(-1) != d_model or shape[0] < length:
        raise InputError(
            f"{checkpoint.folder}: the positions {name} have shape {tuple(table.shape)}, but"
            f" {OWN} describes at least {length} rows of {d_model}: correct positions,"
            " max_source_length or max_target_length"
        )
    return table.reshape(-1, d_model)[:length]


def read_layer(reader: StateReader, names: Names, ours: str, start: str) -> None:
    theirs = start + ours
    attentions = {"self": "self_attn"}
    if ours.startswith("decoder"):
        attentions["cross"] = names.cross_attention
    for kind, name in attentions.items():
        read = read_packed if names.packed else read_linears
        read(reader, f"{ours}.{kind}_attention", f"{theirs}.{name}")
    reader.linear(f"{ours}.feed_forward.up", f"{theirs}.{names.up}")
    reader.linear(f"{ours}.feed_forward.down", f"{theirs}.{names.down}")
    for kind, norm in zip((*attentions, "feed_forward"), names.sublayer_norms, strict=False):
        read_norm(reader, names, f"{ours}.{kind}_sublayer.norm", f"{theirs}.{norm}")


def read_linears(reader: StateReader, ours: str, theirs: str) -> None:
    """Read the projections of an attention of The Annotated Transformer: a list of four."""
    for i, part in enumerate((*PROJECTIONS, "output")):
        reader.linear(f"{ours}.{part}", f"{theirs}.linears.{i}")


def read_packed(reader: StateReader, ours: str, theirs: str) -> None:
    """Read the projections of a torch.nn.MultiheadAttention: three in one matrix, and the output.

    A bias that the checkpoint lacks is zero.
    """
    weights = matrix(reader.checkpoint, f"{theirs}.in_proj_weight")
    name = f"{theirs}.in_proj_bias"
    zeros = torch.zeros(len(weights))
    biases = reader.checkpoint.tensor(name).flatten() if name in reader.checkpoint else zeros
    packed = zip(PROJECTIONS, weights.tensor_split(3), biases.tensor_split(3), strict=True)
    for part, weight, bias in packed:
        reader.put(f"{ours}.{part}.weight", weight, f"{theirs}.in_proj_weight")
        reader.put(f"{ours}.{part}.bias", bias, name)
    reader.linear(f"{ours}.output", f"{theirs}.out_proj")


def read_norm(reader: StateReader, names: Names, ours: str, theirs: str) -> None:
    """Read a norm. A bias that the checkpoint lacks is zero."""
    weight, bias = f"{theirs}.{names.weight}", f"{theirs}.{names.bias}"
    reader.copy(f"{ours}.weight", weight)
    if bias in reader.checkpoint:
        reader.copy(f"{ours}.bias", bias)
    else:
        reader.put(f"{ours}.bias", torch.zeros_like(reader.state[f"{ours}.weight"]), weight)
