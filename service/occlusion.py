"""Occlusion: replace parts of a source, and see what its target loses.

Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks" (2014); of words: Li,
Monroe and Jurafsky, "Understanding Neural Networks through Representation Erasure" (2016).

Axes: N parts of a source, S its tokens, T tokens of a target. A source has N + 2 rows: as it is,
without each part, and without all of them.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from service.arrays import FloatArray, IntArray
from service.attention import AttentionKind, Head
from service.text.tokens import Token, Tokens
from service.text.words import WordSpan, find_words

Unit = Literal["token", "word"]
Of = Literal["source", "heads"]


class Parts(NamedTuple):
    """The parts of a source that are replaced, and the indices of the tokens of each."""

    labels: Sequence[Token | WordSpan]
    tokens: Sequence[list[int]]


class Pair(NamedTuple):
    """A source and its target, of which `prefix` tokens were not generated; its foil, if any. A
    target that is to be decoded is empty. With `heads`, these are switched off in the place of
    parts of the source: the rows are the source as it is, and without each head."""

    source: Tokens
    parts: Parts
    target: Tokens
    prefix: int
    foil: Tokens | None
    heads: Sequence[Head] = ()

    @property
    def rows(self) -> int:
        """N + 2, or 1 more than heads."""
        return len(self.heads) + 1 if self.heads else len(self.parts.tokens) + 2

    @property
    def targets(self) -> list[Tokens]:
        """The targets that are scored for each row."""
        return [self.target] if self.foil is None else [self.target, self.foil]


def parts_of(source: Tokens, unit: Unit) -> Parts:
    """Return the tokens or the words of a source; special tokens belong to neither."""
    if unit == "word":
        words = [word for word in find_words(source) if word.tokens]
        return Parts(words, [word.tokens for word in words])
    tokens = [(i, each) for i, each in enumerate(source.tokens) if each.start is not None]
    return Parts([each for _, each in tokens], [[i] for i, _ in tokens])


def occlude(source: Tokens, parts: Parts, replacement: int) -> IntArray:
    """Return the rows (N + 2, S) of a source, with the id `replacement` in the place of tokens.
    Special tokens stay."""
    replaced = np.zeros((len(parts.tokens) + 2, len(source)), bool)
    for row, tokens in enumerate(parts.tokens, 1):
        replaced[row, tokens] = True
    replaced[-1] = [token.start is not None for token in source.tokens]
    return np.where(replaced, replacement, source.ids)


def head_losses(log_probs: FloatArray, heads: Sequence[Head]) -> dict[AttentionKind, FloatArray]:
    """Return the log-prob (L, H) that a whole target loses without each head, by kind, given the
    log-probs of all rows. The heads are all that a model has, in order."""
    totals = log_probs.sum(1)
    lost = totals[0] - totals[1:]
    width = 1 + max(head.head for head in heads)
    found: dict[AttentionKind, FloatArray] = {}
    kinds: list[AttentionKind] = [head.kind for head in heads]
    for kind in dict.fromkeys(kinds):
        found[kind] = lost[[head.kind == kind for head in heads]].reshape(-1, width)
    return found


def losses(log_probs: FloatArray) -> FloatArray:
    """Return the log-prob (T, N) that each token loses without each part, given the log-probs of
    all rows: (N + 2, T). Negative: the token is more probable without it."""
    return (log_probs[0] - log_probs[1:-1]).T


def source_shares(log_probs: FloatArray) -> FloatArray:
    """Return the source share (T,) of each token: 1 - min(1, q / p), where p is its probability
    given the source, and q that without all parts of it.

    It lies in [0, 1]. A token with 0 is as probable without the source.
    """
    return -np.expm1(np.minimum(log_probs[-1] - log_probs[0], 0)) + 0.0  # not -0.0


def first_difference(target_ids: Sequence[int], foil_ids: Sequence[int]) -> int | None:
    """Return the first index where two targets differ; None if they are the same."""
    pairs = enumerate(zip(target_ids, foil_ids, strict=False))
    shorter = min(len(target_ids), len(foil_ids))
    same = len(target_ids) == len(foil_ids)
    return next((i for i, (one, other) in pairs if one != other), None if same else shorter)


def leads(log_probs: FloatArray, foil: FloatArray, first: int | None) -> FloatArray:
    """Return the lead of a target over a foil in all rows: (2, N + 2), of which `losses` makes what
    is lost of it.

    The lead is the log-prob of the target minus that of the foil. Row 0 has the lead of the token
    at `first`, where the two first differ, so that both follow the same tokens (Yin and Neubig,
    "Interpreting Language Models with Contrastive Explanations", 2022, with log-probs in the place
    of probabilities). Row 1 has that of the whole target. A target that ended before `first` counts
    as 0 there. `log_probs` (N + 2, T) and `foil` (N + 2, T') are those of all tokens.
    """
    if first is None:
        return np.zeros((2, len(log_probs)), np.float32)
    parts = slice(first, first + 1), slice(first, None)
    return np.stack([log_probs[:, part].sum(1) - foil[:, part].sum(1) for part in parts])
