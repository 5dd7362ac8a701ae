"""Measure activations to choose int8 scales, and what int8 may compute.

Rows that hardly differ in size share one constant scale.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from model.data.pairs import pad
from model.export.checks.samples import IdPairs
from model.export.files.weights import int8_modules, linear_layers
from model.export.precision.choose import ON_RANDOM_IDS, choose, limit_of, size_of
from model.export.precision.damage import Damage
from model.export.precision.gptq import gptq
from model.export.precision.int8_products import Scales, Weights
from model.network.config import InputError
from model.network.transformer import Transformer

LIKE = 4.0  # rows share one scale if the largest is at most this many times the median
MARGIN = 1.15  # room above the largest row that calibration saw
# Multiplications of a pass that measures damage, and of all passes that measure single modules:
# about a second, and a minute, of two cores.
A_PASS, ALL_PASSES = 5e10, 3e12
MOST_INPUTS = 1 << 27  # numbers that exist at once: half a gigabyte


@dataclass(frozen=True, slots=True)
class Calibration:
    """Scales of activations, matrices that are not rounded to the nearest, the modules that stay
    fp32, those of the others that read 16 bits of their activations, and in a sentence what int8
    changes."""

    scales: Scales
    weights: Weights
    fp32: set[str]
    wide: set[str]
    summary: str


def calibrate(model: Transformer, pairs: IdPairs, tolerance: float = ON_RANDOM_IDS) -> Calibration:
    """Measure the inputs of each linear layer on `pairs`, and what int8 does to the log-probs.

    `tolerance` is the most damage allowed, as a share of the entropy of the log-probs.

    Raise InputError if a layer receives NaN or infinity.
    """
    scales = constant_scales(largest_inputs(model, pairs))
    measured, passes = affordable(model, pairs)
    damage = Damage(model, scales, measured)
    tolerable = limit_of(damage, tolerance)
    if damage.of(int8_modules(model)) > tolerable:
        fitted, unseen = pairs[::2], pairs[1::2] or pairs  # its own pairs flatter a rounding
        measured, passes = affordable(model, unseen)
        damage = Damage(model, scales, measured, rounded_weights(model, fitted))
        tolerable = limit_of(damage, tolerance)
    choice = choose(model, damage, passes, tolerable)
    kept = {name: each for name, each in scales.items() if name in choice.int8}
    left, wide = {*int8_modules(model)} - choice.int8, choice.wide
    whole = size_of(model, int8_modules(model))
    summary = (
        f"{size_of(model, left) / whole:.0%} of the weights stay fp32,"
        f" {size_of(model, wide) / whole:.0%} multiply activations of 16 bits; int8 changes"
        f" predictions by {choice.chosen:.1e} nats a token, at most {tolerable:.1e} are"
        f" tolerable, all products with 8 bits would change them by {choice.whole:.1e}"
    )
    return Calibration(kept, damage.weights, left, wide, summary)


def affordable(model: Transformer, pairs: IdPairs) -> tuple[IdPairs, int]:
    """Return the first pairs, one at least, that a pass computes with A_PASS multiplications, and
    how many passes over them take ALL_PASSES."""
    weights = sum(model.get_parameter(f"{name}.weight").numel() for name in linear_layers(model))
    longest = max(max(len(source), len(target)) for source, target in pairs)
    measured = pairs[: max(1, int(A_PASS / weights / longest))]
    return measured, int(ALL_PASSES / weights / longest / len(measured))


def constant_scales(received: dict[str, Tensor]) -> dict[str, float]:
    """Return the value behind the constant scale of each layer that has one, given the largest
    absolute value of each of its rows (R,)."""
    scales: dict[str, float] = {}
    for name, sizes in received.items():
        if not sizes.isfinite().all():
            raise InputError(
                f"int8 cannot be calibrated: {name} receives NaN or infinity; the weights are"
                " damaged or too large, so export another training run"
            )
        if 0 < sizes.max() <= LIKE * sizes.median():
            scales[name] = MARGIN * sizes.max().item()
    return scales


def largest_inputs(model: Transformer, pairs: IdPairs) -> dict[str, Tensor]:
    """Return, for each linear layer, the largest absolute value of each row that it reads."""
    return of_inputs(model, pairs, linear_layers(model), lambda rows: rows.abs().amax(-1))


def rounded_weights(model: Transformer, pairs: IdPairs) -> dict[str, Tensor]:
    """Return int8 (N, K) of the matrices of linear layers, by name, rounded so that the products
    with what the layers read on `pairs` change least. Without a matrix whose rows are looked up
    too, as those of a tied embedding: the nearest numbers serve both."""
    names = [name for name in linear_layers(model) if f"{name}.weight" not in model.tied_names]
    return {
        f"{name}.weight": gptq(model.get_parameter(f"{name}.weight"), inputs)
        for some in batches_of(model, pairs, names)
        for name, inputs in of_inputs(model, pairs, some, lambda rows: rows.float()).items()
    }


def batches_of(model: Transformer, pairs: IdPairs, names: Iterable[str]) -> Iterator[list[str]]:
    """Yield linear layers that read at most MOST_INPUTS numbers together, but at least one."""
    rows = max(sum(map(len, ids)) for ids in zip(*pairs, strict=True))
    batch: list[str] = []
    held = 0
    for name in names:
        size = rows * model.get_parameter(f"{name}.weight").size(1)
        if batch and held + size > MOST_INPUTS:
            yield batch
            batch, held = [], 0
        batch.append(name)
        held += size
    yield batch


def of_inputs(
    model: Transformer, pairs: IdPairs, names: Iterable[str], found: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Return what is `found` (R, ...) of the rows (R, K) that each of these linear layers reads."""
    parts: dict[str, list[Tensor]] = {name: [] for name in names}

    def record(kept: list[Tensor]) -> Callable[[nn.Module, tuple[Tensor]], None]:
        return lambda _, inputs: kept.append(found(inputs[0].flatten(0, -2)))

    hooks = [
        model.get_submodule(name).register_forward_pre_hook(record(kept))
        for name, kept in parts.items()
    ]
    run_hooked(model, pairs, hooks)
    return {name: torch.cat(kept) for name, kept in parts.items()}


@torch.no_grad()
def run_hooked(model: Transformer, pairs: IdPairs, hooks: Iterable[RemovableHandle]) -> None:
    """Run the model on the pairs, then remove the hooks that watch it."""
    try:
        for source, target in pairs:  # one by one, because padding must not be measured
            model(*pad([source], model.config.pad_id), *pad([target], model.config.pad_id))
    finally:
        for hook in hooks:
            hook.remove()
