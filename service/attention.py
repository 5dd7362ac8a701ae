"""Which attention weights are wanted, reduced how, and the labelled blocks they come in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from service.arrays import FloatArray
from service.bundle import Config
from service.tokenizer import Token

AttentionKind = Literal["encoder", "decoder", "cross"]
HeadReduction = Literal["none", "mean", "max"]
LayerReduction = Literal["none", "mean", "max", "rollout"]
AlignmentMethod = Literal["argmax", "threshold"]

AXES: dict[AttentionKind, tuple[str, str]] = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}
PAIR = 64  # bytes of an aligned pair, as numbers and as text
REDUCE: dict[str, Callable[..., FloatArray]] = {"mean": np.mean, "max": np.max}


@dataclass(frozen=True, slots=True)
class Selection:
    """Layers by kind and heads, as indices from 0 within the model; heads are reduced before
    layers. `rows` is a slice of the target's steps, those of decoder and cross."""

    layers: dict[AttentionKind, list[int]]
    heads: list[int]
    reduce_heads: HeadReduction = "none"
    reduce_layers: LayerReduction = "none"
    rows: tuple[int, int] | None = None
    alignment: AlignmentMethod | None = None
    threshold: float = 0.0
    decimals: int | None = None

    def nbytes(self, source: int, steps: int, read: int) -> int:
        """Of the float32 weights, and of an alignment, for a source of so many tokens, at most so
        many steps of its target, and what the decoder reads for them."""
        rows = {"source": source, "target": self._most_rows(steps)}
        columns = {"source": source, "target": read}
        heads = len(self.heads) if self.reduce_heads == "none" else 1
        total = 0
        for kind, layers in self.layers.items():
            matrices = heads * (len(layers) if self.reduce_layers == "none" else 1)
            queries, keys = rows[AXES[kind][0]], columns[AXES[kind][1]]
            total += 4 * matrices * queries * keys
            if self.alignment and kind == "cross":
                total += PAIR * matrices * queries * (1 if self.alignment == "argmax" else keys)
        return total

    def pass_nbytes(self, config: Config, source: int, read: int) -> int:
        """Of the weights that a pass computes to select from: every layer and head."""
        encoder = config.num_encoder_layers * source**2
        decoder = config.num_decoder_layers * read * (source + read)
        passes = [encoder if kind == "encoder" else decoder for kind in self.layers]
        return 4 * config.num_heads * max(passes, default=0)

    def _most_rows(self, target_length: int) -> int:
        if self.rows is None:
            return target_length
        start, stop = self.rows
        if start < 0 <= stop:  # of a longer target they are fewer
            target_length = min(target_length, -start)
        return len(range(target_length)[start:stop])

    def steps(self, count: int) -> slice:
        """Which of so many steps are wanted."""
        return slice(*slice(*(self.rows or (None, None))).indices(count))

    def pick(
        self, kind: AttentionKind, weights: NDArray[np.float32], rows: slice = slice(None)
    ) -> NDArray[np.float32]:
        """All layers and heads (L, H, queries, keys) -> what is wanted of those rows, less the axes
        that are reduced."""
        layers = self.layers[kind]
        if self.reduce_layers == "rollout":
            layers = sorted(layers)
        picked = weights[np.ix_(layers, self.heads)]
        if self.reduce_layers != "rollout":  # which needs every row
            picked = picked[:, :, rows]
        if self.reduce_heads != "none":
            picked = REDUCE[self.reduce_heads](picked, axis=1)
        if self.reduce_layers == "rollout":
            picked = rollout(picked)[rows]
        elif self.reduce_layers != "none":
            picked = REDUCE[self.reduce_layers](picked, axis=0)
        return np.ascontiguousarray(picked)

    def block(
        self,
        kind: AttentionKind,
        picked: NDArray[np.float32],
        rows: list[Token],
        columns: list[Token],
        forced: int,
    ) -> dict[str, Any]:
        """As responses.AttentionBlock has it; `rows` label all steps, of which `picked` has some,
        after so many tokens of the target that were forced."""
        steps = self.steps(len(rows))
        if kind != "encoder":
            rows = rows[steps]
        reduced = {"layer": self.reduce_layers != "none", "head": self.reduce_heads != "none"}
        how = {"reduce_layers": self.reduce_layers, "reduce_heads": self.reduce_heads}
        block: dict[str, Any] = {
            "kind": kind,
            "layers": self.layers[kind],
            "heads": self.heads,
            **{field: reduction for field, reduction in how.items() if reduction != "none"},
            "axes": [*(axis for axis, gone in reduced.items() if not gone), *AXES[kind]],
            "shape": list(picked.shape),
            "rows": rows,
            "columns": columns,
            "data": picked if self.decimals is None else picked.round(self.decimals),
        }
        if self.alignment and kind == "cross":
            threshold = None if self.alignment == "argmax" else self.threshold
            block["alignment"] = align(picked, rows, columns, threshold, forced + steps.start)
        return block


NO_ATTENTION = Selection({}, [])


def rollout(weights: FloatArray) -> FloatArray:
    """(L, N, N), heads reduced, from the lowest layer -> (N, N): what each position holds of each
    input if a layer passes on half of what it reads and half of what it was.

    Abnar and Zuidema, "Quantifying Attention Flow in Transformers" (2020), section 3: the layers'
    0.5 (W + I), rows scaled to sum to 1, multiplied.
    """
    identity = np.eye(weights.shape[-1], dtype=weights.dtype)
    mixed = weights + identity
    mixed /= mixed.sum(-1, keepdims=True)
    flow = identity
    for layer in mixed:
        flow = layer @ flow
    return flow


def align(
    weights: FloatArray,
    rows: Sequence[Token],
    columns: Sequence[Token],
    threshold: float | None,
    first: int,
) -> dict[str, Any] | list[Any]:
    """(..., T, S) of cross-attention -> for every matrix, nested like them, the pairs of a source
    and a target token that belong together: those of at least `threshold`, or for each target token
    its largest. Special tokens belong to none. Row 0 is the `first` token of the target."""
    if weights.ndim > 2:
        return [align(matrix, rows, columns, threshold, first) for matrix in weights]
    targets = np.array([token.start is not None for token in rows], bool)
    sources = np.array([token.start is not None for token in columns], bool)
    inside = targets[:, None] & sources
    if threshold is None:
        best = np.where(sources, weights, -1.0).argmax(-1, keepdims=True)  # (T, 1)
        chosen = inside & (np.arange(len(columns)) == best)
    else:
        chosen = inside & (weights >= threshold)
    pairs = np.ascontiguousarray(np.argwhere(chosen)[:, ::-1] + (0, first))
    return {"pairs": pairs, "pharaoh": " ".join(f"{s}-{t}" for s, t in pairs.tolist())}
