"""Select attention weights, reduce them, align them, and label them for an answer.

Axes: L layers, H heads, T target length, S source length; rows are queries, columns are keys.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from service.arrays import FloatArray, IntArray
from service.bundle.alignment import AlignedHeads
from service.text.tokens import Token, Tokens
from service.text.words import WordSpan, find_words

AttentionKind = Literal["encoder", "decoder", "cross"]
HeadReduction = Literal["none", "mean", "max"]
LayerReduction = Literal["none", "mean", "max", "rollout"]
AlignmentMethod = Literal["argmax", "threshold", "model"]
AttentionMeasure = Literal["weight", "norm"]

AXES: dict[AttentionKind, tuple[str, str]] = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}
PAIR = 64  # bytes of one aligned pair in an answer, as numbers and as Pharaoh text
WORD_NBYTES = 64  # bytes of one word
REDUCE: dict[str, Callable[..., FloatArray]] = {"mean": np.mean, "max": np.max}


class Head(NamedTuple):
    """A head of a layer, both counted from 0."""

    kind: AttentionKind
    layer: int
    head: int


class Selection(NamedTuple):
    """Layers (by kind of attention) and heads as indices from 0; heads are reduced before layers.

    `rows` is a slice of the target's steps, as in Python, for decoder and cross-attention only. The
    alignment "model" is made of the attention that the bundle names, whichever is selected here. A
    tuple, since every entry is pickled with one.
    """

    layers: dict[AttentionKind, list[int]]
    heads: list[int]
    reduce_heads: HeadReduction = "none"
    reduce_layers: LayerReduction = "none"
    measure: AttentionMeasure = "weight"
    rows: tuple[int, int] | None = None
    alignment: AlignmentMethod | None = None
    threshold: float = 0.0
    decimals: int | None = None

    @property
    def aligns(self) -> bool:
        """Whether the model's own alignment is asked for."""
        return self.alignment == "model"

    def nbytes(self, source: int, steps: int, read: int) -> int:
        """Return the most bytes that the selected float32 weights and their alignment can take.

        `source` and `steps` count source and generated tokens, `read` the positions that the
        decoder reads: start ids after the first, target prefix and generated tokens.
        """
        rows = {"source": source, "target": self._most_rows(steps)}
        columns = {"source": source, "target": read}
        heads = len(self.heads) if self.reduce_heads == "none" else 1
        total = 0
        for kind, layers in self.layers.items():
            matrices = heads * (len(layers) if self.reduce_layers == "none" else 1)
            queries, keys = rows[AXES[kind][0]], columns[AXES[kind][1]]
            total += 4 * matrices * queries * keys
            if self.aligns and kind == "cross":
                total += (4 * source + WORD_NBYTES + 2 * PAIR) * read + WORD_NBYTES * source
            elif self.alignment and kind == "cross":
                total += PAIR * matrices * queries * (1 if self.alignment == "argmax" else keys)
        return total

    def _most_rows(self, target_length: int) -> int:
        if self.rows is None:
            return target_length
        start, stop = self.rows
        if start < 0 <= stop:  # e.g. [-3, 5]: a longer target has fewer selected rows
            target_length = min(target_length, -start)
        return len(range(target_length)[start:stop])

    def steps(self, count: int) -> slice:
        """Resolve `rows` for a target of `count` steps: start and stop lie in [0, count]."""
        if self.rows is None:
            return slice(0, count)
        start, stop, _ = slice(*self.rows).indices(count)
        return slice(start, stop)

    def pick(
        self, kind: AttentionKind, weights: FloatArray, rows: slice = slice(None)
    ) -> FloatArray:
        """Return the selected layers, heads and rows of (L, H, T, S), without the reduced axes."""
        if self.reduce_layers == "rollout":  # needs whole matrices, in the order of the layers
            picked = weights[np.ix_(sorted(self.layers[kind]), self.heads)]
            heads_reduced = REDUCE[self.reduce_heads](picked, axis=1)
            return np.ascontiguousarray(rollout(heads_reduced)[rows])
        picked = weights[np.ix_(self.layers[kind], self.heads)][:, :, rows]
        if self.reduce_heads != "none":
            picked = REDUCE[self.reduce_heads](picked, axis=1)
        if self.reduce_layers != "none":
            picked = REDUCE[self.reduce_layers](picked, axis=0)
        return np.ascontiguousarray(picked)

    def block(
        self,
        kind: AttentionKind,
        picked: FloatArray,
        rows: list[Token],
        columns: list[Token],
        prefix_length: int,
    ) -> dict[str, Any]:
        """Return one block of an answer, as in responses.AttentionBlock.

        `rows` label all steps, of which `picked` holds the selected ones; `prefix_length` tokens
        of the target came before the first step.
        """
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
            **({} if self.measure == "weight" else {"measure": self.measure}),
            "axes": [*(axis for axis, gone in reduced.items() if not gone), *AXES[kind]],
            "shape": list(picked.shape),
            "rows": rows,
            "columns": columns,
            "data": picked if self.decimals is None else picked.round(self.decimals),
        }
        if self.alignment and kind == "cross" and not self.aligns:
            threshold = None if self.alignment == "argmax" else self.threshold
            weights = picked if self.measure == "weight" else shares(picked)
            block["alignment"] = align(
                weights, rows, columns, threshold, prefix_length + steps.start
            )
        return block


NO_ATTENTION = Selection({}, [])


def rollout(weights: FloatArray) -> FloatArray:
    """Return the attention rollout (N, N) of (L, N, N): how much of each input each position holds.

    Each layer is 0.5 (W + I), where I stands for the residual connection, with rows scaled to sum
    to 1; the layers are multiplied from the lowest up. Abnar and Zuidema, "Quantifying Attention
    Flow in Transformers" (2020), section 3.
    """
    identity = np.eye(weights.shape[-1], dtype=weights.dtype)
    mixed = weights + identity
    mixed /= mixed.sum(-1, keepdims=True)
    flow = identity
    for layer in mixed:
        flow = layer @ flow
    return flow


def shares(norms: FloatArray) -> FloatArray:
    """Return norms (..., T, S) with rows scaled to sum to 1, as weights do. Rows of zeros stay."""
    totals = norms.sum(-1, keepdims=True)
    return np.divide(norms, totals, out=np.zeros_like(norms), where=totals > 0)


def align(
    weights: FloatArray,
    rows: Sequence[Token],
    columns: Sequence[Token],
    threshold: float | None,
    first: int,
) -> dict[str, Any] | list[Any]:
    """Return the aligned pairs of source and target tokens for every matrix of (..., T, S), as
    `pair_tokens` does. The result is nested like the leading axes."""
    if weights.ndim > 2:
        return [align(matrix, rows, columns, threshold, first) for matrix in weights]
    pairs = pair_tokens(weights, rows, columns, threshold, first)
    return {"pairs": pairs, "pharaoh": pharaoh(pairs)}


def align_texts(
    weights: FloatArray, source: Tokens, target: Tokens, steps: slice, prefix_length: int
) -> dict[str, Any]:
    """Return the aligned pairs of tokens and of words, by the model's alignment (T, S) of the
    tokens of a target after a prefix. Only these `steps` of it are aligned."""
    rows = target.tokens[prefix_length:][steps]
    pairs = pair_tokens(weights[steps], rows, source.tokens, first=prefix_length + steps.start)
    words = {"source": find_words(source), "target": find_words(target)}
    aligned = pair_words(pairs, *words.values())
    listed = {side: [*map(write_place, found)] for side, found in words.items()}
    both = {**listed, "pairs": aligned, "pharaoh": pharaoh(aligned)}
    return {"pairs": pairs, "pharaoh": pharaoh(pairs), "words": both}


def write_place(word: WordSpan) -> dict[str, Any]:
    return {"text": word.text, "start": word.start, "end": word.end}


def align_steps(alignment: AlignedHeads, cross: FloatArray, first: int, count: int) -> FloatArray:
    """Return the model's alignment (T, S) of `count` tokens of a target, given cross-attention
    (L, H, N, S) of N steps, of which the one at `first` predicts the first of these tokens.

    With shift 1, a token has the row of the step that reads it. If there is none, because the
    target takes all positions, its last token keeps the row of the step that predicts it.
    """
    steps = np.minimum(np.arange(first, first + count) + alignment.shift, cross.shape[2] - 1)
    picked = cross[np.ix_(alignment.layers, alignment.heads)]  # (l, h, N, S)
    return picked[:, :, steps].mean((0, 1))


def pair_tokens(
    weights: FloatArray,
    rows: Sequence[Token],
    columns: Sequence[Token],
    threshold: float | None = None,
    first: int = 0,
) -> IntArray:
    """Return the aligned pairs (N, 2) of source and target tokens by their weights (T, S).

    With a `threshold`, a target token is aligned to every source token whose weight reaches it;
    without one, to the source token with the largest weight. Special tokens are never aligned.
    `first` is the index, within the target, of the token in row 0.
    """
    targets = np.array([token.start is not None for token in rows], bool)
    sources = np.array([token.start is not None for token in columns], bool)
    inside = targets[:, None] & sources
    if threshold is None:
        best = np.where(sources, weights, -1.0).argmax(-1, keepdims=True)  # (T, 1)
        chosen = inside & (np.arange(len(columns)) == best)
    else:
        chosen = inside & (weights >= threshold)
    return np.ascontiguousarray(np.argwhere(chosen)[:, ::-1] + (0, first))


def pair_words(pairs: IntArray, source: Sequence[WordSpan], target: Sequence[WordSpan]) -> IntArray:
    """Return the aligned pairs (N, 2) of words: those that hold the tokens of a pair.

    `source` and `target` are the words of both texts (service.text.words), whose tokens have the
    indices of the pairs. A word may be in any number of pairs, and sorts by the target's.
    """
    sources, targets = words_of_tokens(source), words_of_tokens(target)
    found = {
        (here, there)
        for token, aligned in pairs.tolist()
        for there in targets.get(aligned, ())
        for here in sources.get(token, ())
    }
    by_target = sorted(found, key=lambda pair: pair[::-1])
    return np.array(by_target, np.int64).reshape(-1, 2)


def words_of_tokens(words: Sequence[WordSpan]) -> dict[int, list[int]]:
    """Return the indices of the words that hold each token."""
    holders: dict[int, list[int]] = {}
    for index, word in enumerate(words):
        for token in word.tokens:
            holders.setdefault(token, []).append(index)
    return holders


def pharaoh(pairs: IntArray) -> str:
    """Return pairs as the text that programs for alignments read: 0-0 1-2."""
    return " ".join(f"{s}-{t}" for s, t in pairs.tolist())
