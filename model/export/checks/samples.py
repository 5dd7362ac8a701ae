"""Sources, and what a model decodes from them: for calibration, parity and proofs."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from model.data.pairs import pad
from model.network.config import InputError, TransformerConfig
from model.network.transformer import Transformer

IdArray = NDArray[np.int64]
IdPair = tuple[list[int], list[int]]  # ids that the encoder and the decoder read
IdPairs = Sequence[IdPair]
SAMPLES = 32
LONGEST = 24  # ids of a random sample
ROWS = 32  # sources that are decoded at once


def ordinary_ids(vocab_size: int, config: TransformerConfig) -> IdArray:
    """Return all ids but pad, bos and eos, wherever those lie in the vocabulary.

    Raise InputError if there are none.
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


def samples(model: Transformer, seed: int = 0) -> IdPairs:
    """Return random sources, and the decoder inputs that greedy search makes of them."""
    config = model.config
    random = np.random.default_rng(seed)
    longest = min(LONGEST, config.max_source_length)
    lengths = random.integers(1, longest + 1, SAMPLES).tolist()
    sources = random_rows(ordinary_ids(config.source_vocab_size, config), lengths, random)
    most = min(LONGEST, config.max_target_length - 1)  # bos takes one position
    return decode(model, sources, [config.bos_id], max(1, most))


@torch.no_grad()
def decode(
    model: Transformer, sources: Sequence[list[int]], start: list[int], longest: int
) -> IdPairs:
    """Return each source with `start` and the tokens that greedy search puts after it, but eos.

    At most `longest` tokens are decoded, of which the last is not in the pair: no step reads it.
    """
    pairs: dict[int, tuple[list[int], list[int]]] = {}
    by_length = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for first in range(0, len(by_length), ROWS):
        places = by_length[first : first + ROWS]
        rows = [sources[i] for i in places]
        targets = decode_rows(model, rows, start, longest)
        pairs |= {i: (sources[i], target) for i, target in zip(places, targets, strict=True)}
    return [pairs[i] for i in range(len(sources))]


def decode_rows(
    model: Transformer, sources: Sequence[list[int]], start: list[int], longest: int
) -> list[list[int]]:
    """Decode greedily with a KV cache: without one, a large model takes minutes."""
    eos_id, rows = model.config.eos_id, len(sources)
    source_ids, source_length = pad(sources, model.config.pad_id)
    memory, _ = model.encoder(source_ids, source_length)
    last = len(start) + longest - 2  # the position whose token no step reads
    cross, cache = model.decoder.cross(memory), model.empty_cache(rows, last + 1)
    inputs = torch.tensor([start] * rows)  # (B, T)
    for position in range(last):
        places = torch.full((rows,), position)
        step = model.decoder.step(inputs[:, position], places, cache, cross, source_length)
        cache = step.cache
        if position + 1 < len(start):
            continue
        token = model.generator(step.hidden).argmax(-1)  # (B,)
        inputs = torch.cat([inputs, token.unsqueeze(1)], 1)
        if (inputs[:, len(start) :] == eos_id).any(1).all():
            break
    targets = inputs[:, len(start) :].tolist()
    ends = [ids.index(eos_id) if eos_id in ids else len(ids) for ids in targets]
    return [[*start, *ids[:end]] for ids, end in zip(targets, ends, strict=True)]
