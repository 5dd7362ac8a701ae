"""Gates of the heads that entries switch off: 0 for such a head, 1 for every other."""

from collections.abc import Sequence

import numpy as np

from service.arrays import FloatArray
from service.bundle.manifest import Config
from service.wire import Entry


def encoder_gates(entries: Sequence[Entry], config: Config) -> FloatArray:
    """Return (B, L, H)."""
    gates = np.ones((len(entries), config.num_encoder_layers, config.num_heads), np.float32)
    for row, entry in enumerate(entries):
        for head in entry.ablated:
            if head.kind == "encoder":
                gates[row, head.layer, head.head] = 0.0
    return gates


def decoder_gates(entries: Sequence[Entry], config: Config) -> FloatArray:
    """Return (B, K, L, H), of the K kinds of attention in the decoder."""
    kinds = config.decoder_kinds
    shape = len(entries), len(kinds), config.num_decoder_layers, config.num_heads
    gates = np.ones(shape, np.float32)
    for row, entry in enumerate(entries):
        for head in entry.ablated:
            if head.kind != "encoder":
                gates[row, kinds.index(head.kind), head.layer, head.head] = 0.0
    return gates
