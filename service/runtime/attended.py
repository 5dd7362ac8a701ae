"""Attention weights as graphs return them, without the padding of a batch.

Axes: B sources, L layers, H heads, T queries, S keys.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from service.arrays import FloatArray
from service.attention import AttentionMeasure


class AttendedRow(NamedTuple):
    """Attention weights (L, H, T, S) of one sequence and, if a gated graph computed them, the value
    norms (L, H, S): |W v| times the head's gate, where v is a head's value and W its slice of the
    output projection. A head that is switched off gives nothing: its norms are 0."""

    weights: FloatArray
    norms: FloatArray | None = None

    def measured(self, measure: AttentionMeasure) -> FloatArray:
        """Return the weights, or weights times norms, (L, H, T, S). Kobayashi et al., "Attention is
        Not Only a Weight: Analyzing Transformers with Vector Norms" (2020)."""
        if measure == "weight":
            return self.weights
        assert self.norms is not None
        return self.weights * self.norms[:, :, None]


class AttendedBatch(NamedTuple):
    """What a pass computes of one kind of attention: of each layer the weights (B, H, T, S) and, if
    the graph is gated, the value norms (B, H, S) without the gates (B, L, H)."""

    weights: Sequence[FloatArray]
    norms: Sequence[FloatArray] = ()
    gates: FloatArray | None = None

    def of(self, row: int, queries: int, keys: int) -> AttendedRow:
        """Return the attention of one row without padding."""
        weights = np.stack([layer[row, :, :queries, :keys] for layer in self.weights])
        if self.gates is None:
            return AttendedRow(weights)
        norms = np.stack([layer[row, :, :keys] for layer in self.norms])  # (L, H, keys)
        return AttendedRow(weights, norms * self.gates[row, :, :, None])
