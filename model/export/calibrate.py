"""Measure activations to choose int8 scales.

Rows that hardly differ in size share one constant scale.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from model.data.pairs import pad
from model.export.quantize import Scales
from model.export.samples import ordinary_ids, random_rows
from model.network.config import InputError
from model.network.transformer import Transformer

LIKE = 4.0  # rows share one scale if the largest is at most this many times the median
MARGIN = 1.15  # room above the largest row that calibration saw
SAMPLES = 32
LONGEST = 24  # ids of a sample

RowSizes = dict[str, list[Tensor]]  # largest absolute value of each row, by the layer's name


@torch.no_grad()
def calibrate(model: Transformer) -> Scales:
    """Measure the inputs of each linear layer for random sources and their decoded targets.

    Raises InputError if a layer receives NaN or infinity.
    """
    scales: Scales = {}
    for name, chunks in row_sizes(model).items():
        sizes = torch.cat(chunks)  # (rows,)
        if not sizes.isfinite().all():
            raise InputError(
                f"int8 cannot be calibrated: {name} receives NaN or infinity; the weights are"
                " damaged or too large, so export another training run"
            )
        if 0 < sizes.max() <= LIKE * sizes.median():
            scales[name] = MARGIN * sizes.max().item()
    return scales


def row_sizes(model: Transformer) -> RowSizes:
    pairs = samples(model)  # before the hooks are set: they would record the search as well
    sizes: RowSizes = {}
    hooks = [
        module.register_forward_pre_hook(partial(record, sizes, name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        for source, target in pairs:  # one by one, because padding must not be measured
            model(*pad([source], model.config.pad_id), *pad([target], model.config.pad_id))
    finally:
        for hook in hooks:
            hook.remove()
    return sizes


def record(sizes: RowSizes, name: str, _: nn.Module, inputs: tuple[Tensor]) -> None:
    sizes.setdefault(name, []).append(inputs[0].abs().amax(-1).flatten())


def samples(model: Transformer, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Return random sources, and the decoder inputs that greedy search makes of them."""
    config = model.config
    random = np.random.default_rng(seed)
    longest = min(LONGEST, config.max_source_length)
    lengths = random.integers(1, longest + 1, SAMPLES).tolist()
    sources = random_rows(ordinary_ids(config.source_vocab_size, config), lengths, random)
    most = min(LONGEST, config.max_target_length - 1)  # bos takes one position
    inputs = decoder_inputs(model, *pad(sources, config.pad_id), max(1, most))
    return list(zip(sources, inputs, strict=True))


@torch.no_grad()
def decoder_inputs(
    model: Transformer, source_ids: Tensor, source_length: Tensor, longest: int
) -> list[list[int]]:
    """Decode greedily with a KV cache: without one, a large model takes minutes.

    Returns for each source bos and the tokens after it, without the last.
    """
    eos_id, rows = model.config.eos_id, len(source_ids)
    memory, _ = model.encoder(source_ids, source_length)
    cross, cache = model.decoder.cross(memory), model.empty_cache(rows, longest)
    inputs = torch.full((rows, 1), model.config.bos_id)  # (B, T)
    for position in range(longest - 1):
        last, places = inputs[:, -1], torch.full((rows,), position)
        step = model.decoder.step(last, places, cache, cross, source_length)
        cache, token = step.cache, model.generator(step.hidden).argmax(-1)  # (B,)
        inputs = torch.cat([inputs, token.unsqueeze(1)], 1)
        if (inputs[:, 1:] == eos_id).any(1).all():
            break
    targets = inputs[:, 1:].tolist()
    ends = [ids.index(eos_id) if eos_id in ids else len(ids) for ids in targets]
    return [[model.config.bos_id, *ids[:end]] for ids, end in zip(targets, ends, strict=True)]
