"""Random ids for calibration and parity, in the place of real texts."""

import numpy as np
from numpy.typing import NDArray

from model.network.config import InputError, TransformerConfig

IdArray = NDArray[np.int64]


def ordinary_ids(vocab_size: int, config: TransformerConfig) -> IdArray:
    """Return all ids but pad, bos and eos, wherever those lie in the vocabulary.

    Raises InputError if there are none.
    """
    ids = np.setdiff1d(np.arange(vocab_size), config.specials)
    if not ids.size:
        raise InputError(
            f"a vocabulary of {vocab_size} has no token but pad, bos and eos: export a model with"
            " at least one other token, which the graphs are tested with"
        )
    return ids


def random_rows(ids: IdArray, lengths: list[int], random: np.random.Generator) -> list[list[int]]:
    """Return one row of random `ids` for each of the lengths."""
    return [ids[random.integers(0, len(ids), length)].tolist() for length in lengths]
