"""Attention weights as graphs return them, without the padding of a batch.

Axes: B sources, L layers, H heads, T queries, S keys.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from service.arrays import FloatArray


class Attended(NamedTuple):
    """Attention weights (L, H, T, S) of one sequence and, if a gated graph computed them, the value
    norms (L, H, S): |W v| times the head's gate, where v is a head's value and W its slice of the
    output projection. A head that is switched off gives nothing: its norms are 0."""

    weights: FloatArray
    norms: FloatArray | None = None

    @classmethod
    def of(
        cls,
        weights: Sequence[FloatArray],
        norms: Sequence[FloatArray],
        gates: FloatArray | None,
        row: int,
        queries: int,
        keys: int,
    ) -> "Attended":
        """Take one row of each layer's (B, H, T, S) and (B, H, S), without padding. `gates`
        (B, L, H) are those of a gated graph, whose norms do not have them."""
        stacked = np.stack([layer[row, :, :queries, :keys] for layer in weights])  # (L, H, T, S)
        if gates is None:
            return cls(stacked)
        lengths = np.stack([layer[row, :, :keys] for layer in norms])  # (L, H, keys)
        return cls(stacked, lengths * gates[row, :, :, None])

    @property
    def weighted_norms(self) -> FloatArray:
        """Weights times norms (L, H, T, S). Kobayashi et al., "Attention is Not Only a Weight:
        Analyzing Transformers with Vector Norms" (2020)."""
        assert self.norms is not None
        return self.weights * self.norms[:, :, None]
