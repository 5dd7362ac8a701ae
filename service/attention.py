"""Which attention weights are wanted, and the labelled blocks they come back in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.bundle import Config
from service.errors import Fault, Invalid
from service.tokenizer import Token

Kind = Literal["encoder", "decoder", "cross"]
Indices = Literal["all"] | list[int]

AXES: dict[Kind, tuple[str, str]] = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}


@dataclass(frozen=True, slots=True)
class Block:
    """Weights of one kind, without padding: data[layer, head, query, key]; rows are the queries.

    Row i of decoder and cross is the step that predicted the i-th token, which labels it.
    """

    kind: Kind
    layers: list[int]
    heads: list[int]
    axes: list[str]
    shape: list[int]
    rows: list[Token]
    columns: list[Token]
    data: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Selection:
    """Layers by kind and heads, as indices from 0 within the model."""

    layers: dict[Kind, list[int]]
    heads: list[int]

    def nbytes(self, source_length: int, target_length: int) -> int:
        """Of the float32 weights it selects for one source and target."""
        length = {"source": source_length, "target": target_length}
        sizes = (
            len(layers) * length[AXES[kind][0]] * length[AXES[kind][1]]
            for kind, layers in self.layers.items()
        )
        return 4 * len(self.heads) * sum(sizes)

    def pick(self, kind: Kind, weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """All layers and heads (L, H, queries, keys) -> the selected ones."""
        return weights[np.ix_(self.layers[kind], self.heads)]

    def block(
        self, kind: Kind, picked: NDArray[np.float32], rows: list[Token], columns: list[Token]
    ) -> Block:
        axes, shape = ["layer", "head", *AXES[kind]], list(picked.shape)
        return Block(kind, self.layers[kind], self.heads, axes, shape, rows, columns, picked)


NOTHING = Selection({}, [])


def select(kinds: Sequence[Kind], layers: Indices, heads: Indices, config: Config) -> Selection:
    """Negative indices count from the end. Raises Invalid naming the range of each index."""
    depth: dict[Kind, int] = {
        "encoder": config.num_encoder_layers,
        "decoder": config.num_decoder_layers,
        "cross": config.num_decoder_layers,
    }
    if len(set(kinds)) < len(kinds):
        raise Invalid.at("/attention/kinds", "names a kind twice")
    chosen: dict[Kind, list[int]] = {
        kind: resolve(layers, depth[kind], f"{kind} layer", "layers") for kind in kinds
    }
    return Selection(chosen, resolve(heads, config.num_heads, "head", "heads"))


def resolve(indices: Indices, size: int, what: str, field: str) -> list[int]:
    if indices == "all":
        return list(range(size))
    faults = [
        Fault(f"/attention/{field}/{i}", f"there is no {what} {index}: give {-size} to {size - 1}")
        for i, index in enumerate(indices)
        if not -size <= index < size
    ]
    if faults:
        raise Invalid.of(faults)
    resolved = [index % size for index in indices]
    if len(set(resolved)) < len(resolved):
        raise Invalid.at(f"/attention/{field}", f"names a {what} twice")
    return resolved
