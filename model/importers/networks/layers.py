"""Read the layers of a model of your own, whose parts have the names of torch or of The Annotated
Transformer, or get them by the patterns of heed.toml."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from model.importers.networks.state import StateReader
from model.network.config import InputError, NormKind
from model.network.tying import SOURCE_WEIGHT

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
        for name in (f"{ours}.weight", f"{ours}.bias"):
            if (tensor := self.reader.state.get(name)) is not None and tensor.numel() == 1:
                size = self.reader.state[SOURCE_WEIGHT].size(
                    -1
                )  # some norms have one number for all
                self.reader.state[name] = tensor.expand(size).contiguous()

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
