"""Measure activations to choose int8 scales, and the products that int8 would spoil.

Rows that hardly differ in size share one constant scale.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from model.data.pairs import pad
from model.export.product_error import spoiled_products
from model.export.quantize import Scales
from model.export.samples import ordinary_ids, random_rows
from model.network.config import InputError
from model.network.transformer import Transformer

LIKE = 4.0  # rows share one scale if the largest is at most this many times the median
MARGIN = 1.15  # room above the largest row that calibration saw
SAMPLES = 32
LONGEST = 24  # ids of a sample
ROWS = 2  # rows of a sample that each product's error is measured on


@dataclass(frozen=True, slots=True)
class Calibration:
    """Scales of activations, and the linear layers whose products stay fp32."""

    scales: Scales
    fp32: set[str]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of one linear layer: the largest absolute value of each row, and a few rows."""

    sizes: list[Tensor] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)

    def record(self, _: nn.Module, inputs: tuple[Tensor]) -> None:
        rows = inputs[0].flatten(0, -2)  # (R, K)
        self.sizes.append(rows.abs().amax(-1))
        self.rows.append(rows[:: -(-len(rows) // ROWS)].clone())  # a view would keep them all


@torch.no_grad()
def calibrate(model: Transformer) -> Calibration:
    """Measure the inputs of each linear layer for random sources and their decoded targets.

    A product that a constant scale spoils has a scale for each row; one that this spoils too stays
    fp32. Raises InputError if a layer receives NaN or infinity.
    """
    received = linear_inputs(model)
    scales = constant_scales(received)
    rows = {name: torch.cat(inputs.rows) for name, inputs in received.items()}
    spoiled = spoiled_products(model, rows, scales)
    scales = {name: largest for name, largest in scales.items() if name not in spoiled}
    fp32 = spoiled_products(model, {name: rows[name] for name in sorted(spoiled)}, scales)
    return Calibration(scales, fp32)


def constant_scales(received: dict[str, Inputs]) -> Scales:
    scales: Scales = {}
    for name, inputs in received.items():
        sizes = torch.cat(inputs.sizes)  # (R,)
        if not sizes.isfinite().all():
            raise InputError(
                f"int8 cannot be calibrated: {name} receives NaN or infinity; the weights are"
                " damaged or too large, so export another training run"
            )
        if 0 < sizes.max() <= LIKE * sizes.median():
            scales[name] = MARGIN * sizes.max().item()
    return scales


def linear_inputs(model: Transformer) -> dict[str, Inputs]:
    """Return the inputs of each linear layer by its name."""
    pairs = samples(model)  # before the hooks are set: they would record the search as well
    linear = {n: module for n, module in model.named_modules() if isinstance(module, nn.Linear)}
    received = {name: Inputs() for name in linear}
    hooks = [linear[name].register_forward_pre_hook(received[name].record) for name in linear]
    run_hooked(model, pairs, hooks)
    return received


def run_hooked(
    model: Transformer,
    pairs: Sequence[tuple[list[int], list[int]]],
    hooks: Iterable[RemovableHandle],
) -> None:
    """Run the model on pairs of source and decoder input, then remove the hooks that watch it."""
    try:
        for source, target in pairs:  # one by one, because padding must not be measured
            model(*pad([source], model.config.pad_id), *pad([target], model.config.pad_id))
    finally:
        for hook in hooks:
            hook.remove()


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
