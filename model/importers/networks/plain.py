"""Read models of your own: torch.nn.Transformer inside a module, or The Annotated Transformer.

Their parts have the names of torch or of The Annotated Transformer, or get them by the patterns of
heed.toml.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from model.importers.checkpoint import OWN, Checkpoint
from model.importers.description import SINUSOIDAL, SQRT, Description, read_description
from model.importers.files.names import grouped, matches, rename, shortened
from model.importers.networks.state import StateReader
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
from model.network.tying import OUTPUT_WEIGHT, SOURCE_WEIGHT, TARGET_WEIGHT

SIDES = ("encoder", "decoder")
NUMBER = re.compile(r"\.\d+\.")  # in the name of a tensor of a layer
PROJECTIONS = ("query", "key", "value")  # in the order of both kinds
Read = Callable[[str], Tensor]


@dataclass(frozen=True, slots=True)
class Names:
    """The names that a kind of layer gives its parts. Norms are in the order of the sublayers."""

    norm: NormKind
    packed: bool  # the projections of queries, keys and values may be one matrix
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


class Storage(NamedTuple):
    """One way to store a tensor: the tensors that make a whole, and which of its equal pieces."""

    names: list[str]
    piece: int = 0
    pieces: int = 1


@dataclass(slots=True)
class Layers:
    """The tensors of the layers: `stored` gives their names in the checkpoint, `missing` those that
    it lacks."""

    reader: StateReader
    names: Names
    stored: Mapping[str, str]
    num_heads: int
    missing: dict[str, None] = field(default_factory=dict[str, None])  # in the order of reading

    def numbers(self, start: str) -> list[int]:
        """Return the numbers of the layers with this prefix, counted from 0 or 1.

        Raise InputError if a number in between is missing.
        """
        rests = (name.removeprefix(start) for name in self.stored if name.startswith(start))
        found = sorted({int(n) for rest in rests if (n := rest.partition(".")[0]).isdigit()})
        first = min(found[:1], default=0)
        if found != list(range(first, first + len(found))) or first > 1:
            raise InputError(
                f"{self.reader.checkpoint.folder} has the layers {start}{found}, of which some are"
                " missing: layers are numbered from 0 or 1"
            )
        return found

    def read(self, ours: str, theirs: str) -> None:
        """Read a layer of the encoder or decoder."""
        attentions = {"self": "self_attn"}
        if ours.startswith("decoder"):
            attentions["cross"] = self.names.cross_attention
        for kind, name in attentions.items():
            read = self.read_packed if self.names.packed else self.read_list
            read(f"{ours}.{kind}_attention", f"{theirs}.{name}")
        self.linear(f"{ours}.feed_forward.up", f"{theirs}.{self.names.up}")
        self.linear(f"{ours}.feed_forward.down", f"{theirs}.{self.names.down}")
        kinds = zip((*attentions, "feed_forward"), self.names.sublayer_norms, strict=False)
        for kind, norm in kinds:
            self.norm(f"{ours}.{kind}_sublayer.norm", f"{theirs}.{norm}")

    def read_packed(self, ours: str, theirs: str) -> None:
        """Read the projections of an attention: three or two in one matrix, one in each matrix, or
        one matrix for each head."""
        read = cache(self.reader.checkpoint.tensor)  # one matrix may hold all projections
        for i, part in enumerate(PROJECTIONS):
            self.pair(f"{ours}.{part}", lambda p, i=i: self.choices(theirs, i, p), read)
        self.linear(f"{ours}.output", f"{theirs}.out_proj")

    def choices(self, attention: str, i: int, parameter: str) -> list[Storage]:
        own = f"{'qkv'[i]}_proj.{parameter}"
        heads = [f"{attention}.heads.{head}.{own}" for head in range(self.num_heads)]
        choices = [
            Storage([f"{attention}.in_proj_{parameter}"], i, 3),
            Storage([f"{attention}.in_proj.{parameter}"], i, 3),
            Storage([f"{attention}.{own}"]),
            Storage(heads),
        ]
        return [*choices, Storage([f"{attention}.kv_proj.{parameter}"], i - 1, 2)] if i else choices

    def read_list(self, ours: str, theirs: str) -> None:
        """Read the projections of an attention of The Annotated Transformer: a list of four."""
        for i, part in enumerate((*PROJECTIONS, "output")):
            self.linear(f"{ours}.{part}", f"{theirs}.linears.{i}")

    def linear(self, ours: str, theirs: str) -> None:
        read = self.reader.checkpoint.tensor
        self.pair(ours, lambda parameter: [Storage([f"{theirs}.{parameter}"])], read)

    def norm(self, ours: str, theirs: str) -> None:
        names = {"weight": self.names.weight, "bias": self.names.bias}
        read = self.reader.checkpoint.tensor
        self.pair(ours, lambda parameter: [Storage([f"{theirs}.{names[parameter]}"])], read)
        state = self.reader.state
        for name in (f"{ours}.weight", f"{ours}.bias"):  # some norms have one number for all
            if name in state and state[name].numel() == 1:
                state[name] = state[name].expand(state[SOURCE_WEIGHT].size(-1)).contiguous()

    def pair(self, ours: str, choices: Callable[[str], list[Storage]], read: Read) -> None:
        """Read a weight and its bias by the first choices that the checkpoint has. A bias that it
        lacks is zero."""
        weight, bias = (self.find(choices(parameter), read) for parameter in ("weight", "bias"))
        if weight is None:
            self.missing[choices("weight")[0].names[0]] = None
            return
        tensor, name = weight
        self.reader.put(f"{ours}.weight", tensor, name)
        tensor, name = bias or (torch.zeros(len(tensor)), name)
        self.reader.put(f"{ours}.bias", tensor, name)

    def find(self, choices: list[Storage], read: Read) -> tuple[Tensor, str] | None:
        """Return a tensor and the name of the first one that it comes from."""
        for names, piece, pieces in choices:
            if all(name in self.stored for name in names):
                stored = [self.stored[name] for name in names]
                parts = [read(name) for name in stored]
                whole = torch.cat(parts) if len(parts) > 1 else parts[0]
                return torch.atleast_1d(whole).tensor_split(pieces)[piece], stored[0]
        return None


def read_plain(checkpoint: Checkpoint) -> Transformer:
    """Return the network. Raise InputError if heed.toml and the tensors do not fit each other."""
    description = read_description(checkpoint)
    check_names(checkpoint, description)
    reader = StateReader(checkpoint)
    tied = read_matrices(reader, description)
    layers = read_layers(reader, description)
    d_model = reader.state[SOURCE_WEIGHT].size(-1)
    lengths = description.max_source_length, description.max_target_length
    tables = {name: checkpoint.tensor(name) for name in {*description.positions} - {SINUSOIDAL}}
    for side, name, length in zip(SIDES, description.positions, lengths, strict=True):
        if name in tables:
            check_positions(checkpoint, name, length, d_model)
            table = tables[name].reshape(-1, d_model)[:length]
        else:
            table = sinusoidal_positions(length, d_model)
        reader.put(f"{side}.embedding.positions", table, name)
    checkpoint.ignore(*ignored(checkpoint, description))
    check_complete(layers, description)
    return reader.build(read_config(layers, description, tied))


def read_layers(reader: StateReader, description: Description) -> Layers:
    """Read both stacks, and the norms after them if there are any."""
    checkpoint, start = reader.checkpoint, description.transformer
    others = {*description.tensors(), *ignored(checkpoint, description)}
    names = [name for name in checkpoint.names if name not in others]
    try:
        stored = rename(names, description.names, start)
    except InputError as error:
        raise InputError(f"{description.path}: {error}") from error
    layers = Layers(reader, NAMES[description.kind], stored, description.num_heads)
    final_norm = has_final_norm(layers, description)
    for side in SIDES:
        numbers = layers.numbers(f"{start}{side}.layers.")
        if not numbers:
            raise InputError(f"{description.path}: {describe_stack(layers, description, side)}")
        for i, number in enumerate(numbers):
            layers.read(f"{side}.layers.{i}", f"{start}{side}.layers.{number}")
        if final_norm:
            layers.norm(f"{side}.norm", f"{start}{side}.norm")
    return layers


def has_final_norm(layers: Layers, description: Description) -> bool:
    return f"{description.transformer}encoder.norm.{layers.names.weight}" in layers.stored


def describe_stack(layers: Layers, description: Description, side: str) -> str:
    """Say how to name the layers of a stack that has none of the expected names."""
    marker, start = "encoder.layers.0.", description.transformer
    starts = {name.partition(marker)[0] for name in layers.stored if marker in name}
    said = f"transformer is {start!r}, but no tensor's name begins with {start}{side}.layers.0."
    if starts - {start}:
        return f"{said}; give {' or '.join(map(repr, sorted(starts)))}"
    others = grouped(layers.stored.values())
    return f"{said}; map these to names of torch.nn.Transformer under [names]: {others}"


def check_complete(layers: Layers, description: Description) -> None:
    """Raise InputError naming all tensors that are missing, and all that nothing reads."""
    unread = layers.reader.checkpoint.unread
    faults: list[str] = []
    if layers.missing:
        faults.append(f"have no {grouped(layers.missing)}")
    if unread:
        faults.append(f"have {grouped(unread)}, which nothing reads")
    if faults:
        raise InputError(
            f"{description.path} does not fit the weights, which {', and '.join(faults)}: map names"
            " to those of the kind under [names], and list tensors that the model does not need in"
            " ignore"
        )


def ignored(checkpoint: Checkpoint, description: Description) -> list[str]:
    return [
        name
        for name in checkpoint.names
        if any(matches(pattern, name) is not None for pattern in description.ignore)
    ]


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
            if not any(matches(name, stored) is not None for stored in checkpoint.names):
                others = [other for other in checkpoint.names if not NUMBER.search(other)]
                raise InputError(
                    f"{description.path}: {key} is {name!r}, but the weights have no such tensor;"
                    f" outside of layers they have {shortened(others, most=12)}"
                )


def read_matrices(reader: StateReader, description: Description) -> Tied:
    """Read the embeddings and the output projection with its bias."""
    names = {
        SOURCE_WEIGHT: description.source_embedding,
        TARGET_WEIGHT: description.target_embedding,
        OUTPUT_WEIGHT: description.output,
    }
    for name in names.values():
        check_matrix(reader.checkpoint, name)
    tied = reader.matrices(names)
    if description.output_bias in reader.checkpoint:
        reader.copy("generator.bias", description.output_bias)
    return tied


def read_config(layers: Layers, description: Description, tied: Tied) -> TransformerConfig:
    state = layers.reader.state
    source_vocab_size, d_model = state[SOURCE_WEIGHT].shape
    check_ids(description, source_vocab_size)
    scale = description.embedding_scale
    computed = description.positions == (SINUSOIDAL, SINUSOIDAL)
    encoder, decoder = (
        sum(name.startswith(f"{side}.layers.") and name.endswith(".up.weight") for name in state)
        for side in SIDES
    )
    if d_model % max(1, description.num_heads):
        raise InputError(
            f"{description.path}: d_model {d_model} is not a multiple of num_heads"
            f" {description.num_heads}: give the number that the model was trained with"
        )
    try:
        return TransformerConfig(
            source_vocab_size=source_vocab_size,
            target_vocab_size=len(state["generator.bias"]),
            d_model=d_model,
            d_ff=len(state["encoder.layers.0.feed_forward.up.weight"]),
            num_heads=description.num_heads,
            num_encoder_layers=encoder,
            num_decoder_layers=decoder,
            norm=layers.names.norm,
            norm_epsilon=description.norm_epsilon,
            norm_first=description.norm_first,
            final_norm=has_final_norm(layers, description),
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


def check_matrix(checkpoint: Checkpoint, name: str) -> None:
    if len(shape := checkpoint.shape(name)) != 2:
        raise InputError(
            f"{checkpoint.folder}: tensor {name} has shape {shape}: it must be a matrix"
        )


def check_positions(checkpoint: Checkpoint, name: str, length: int, d_model: int) -> None:
    """Raise InputError unless a tensor has `length` rows of `d_model`: (rows, M), or with an axis
    for the batch (1, rows, M) or (rows, 1, M)."""
    shape = checkpoint.shape(name)
    rows = [size for size in shape[:-1] if size != 1] or [1]
    if not shape or len(rows) > 1 or shape[-1] != d_model or rows[0] < length:
        raise InputError(
            f"{checkpoint.folder}: the positions {name} have shape {shape}, but {OWN} describes at"
            f" least {length} rows of {d_model}: correct positions, max_source_length or"
            " max_target_length"
        )
