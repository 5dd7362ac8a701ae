"""Measure activations to choose int8 scales, and what int8 may compute.

Rows that hardly differ in size share one constant scale.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from model.data.pairs import pad
from model.export.checks.samples import IdPairs
from model.export.files.weights import int8_modules, linear_layers, scales_of
from model.export.precision.choose import ON_RANDOM_IDS, choose, size_of, tolerable_damage
from model.export.precision.damage import Damage
from model.export.precision.gptq import gptq
from model.export.precision.int8_products import ByGptq, Scales
from model.network.config import InputError
from model.network.transformer import Transformer

LIKE = 4.0  # rows share one scale if the largest is at most this many times the median
MARGIN = 1.15  # room above the largest row that calibration saw
# Multiplications of a pass that measures damage, and of all passes that measure single modules:
# about a second, and a minute, of two cores.
A_PASS, ALL_PASSES = 5e10, 3e12
MOST_INPUTS = 1 << 27  # numbers that are kept at once for GPTQ: half a gigabyte
MOST_COLUMNS = 8192  # of a matrix that GPTQ rounds, or else it takes gigabytes, and minutes


@dataclass(frozen=True, slots=True)
class Calibration:
    """Scales of activations, matrices that GPTQ rounded, the modules that stay fp32, those of the
    others that read 16 bits of their activations, and in a sentence what int8 changes."""

    scales: Scales
    by_gptq: ByGptq
    fp32: set[str]
    wide: set[str]
    summary: str


def calibrate(model: Transformer, pairs: IdPairs, tolerance: float = ON_RANDOM_IDS) -> Calibration:
    """Measure the inputs of each linear layer on `pairs`, and what int8 does to the log-probs.

    `tolerance` is the most damage allowed, as a share of the entropy of the log-probs.

    Raise InputError if a layer receives NaN or infinity.
    """
    scales = constant_scales(largest_inputs(model, pairs))
    damage, passes = choose_rounding(model, scales, pairs, tolerance)
    tolerable = tolerable_damage(damage, tolerance)
    choice = choose(model, damage, passes, tolerable)
    kept = {name: each for name, each in scales.items() if name in choice.int8}
    by_gptq = {
        name: each
        for name, each in damage.by_gptq.items()
        if name.removesuffix(".weight") in choice.int8
    }
    left, wide = {*int8_modules(model)} - choice.int8, choice.wide
    whole = size_of(model, int8_modules(model))
    summary = (
        f"{size_of(model, left) / whole:.0%} of the weights stay fp32,"
        f" {size_of(model, wide) / whole:.0%} multiply activations of 16 bits; int8 changes"
        f" predictions by {choice.chosen:.1e} nats a token, at most {tolerable:.1e} are"
        f" tolerable, all products with 8 bits would change them by {choice.whole:.1e}"
    )
    return Calibration(kept, by_gptq, left, wide, summary)


def choose_rounding(
    model: Transformer, scales: Scales, pairs: IdPairs, tolerance: float
) -> tuple[Damage, int]:
    """Return the damage with the nearest int8 weights, or with those of GPTQ if the former is not
    tolerable and the latter is less; and how many passes may measure it."""
    modules = int8_modules(model)
    measured, passes = affordable(model, pairs)
    nearest = Damage(model, scales, measured)
    if nearest.of(modules) <= tolerable_damage(nearest, tolerance):
        return nearest, passes
    if not (names := layers_for_gptq(model)):
        return nearest, passes
    fitted, unseen = pairs[::2], pairs[1::2] or pairs  # on its own pairs, GPTQ looks better
    by_gptq = round_by_gptq(model, fitted, names)
    measured, passes = affordable(model, unseen)
    both = Damage(model, scales, measured), Damage(model, scales, measured, by_gptq)
    wide = linear_layers(model)  # so that the damage is that of the weights
    return min(both, key=lambda each: each.of(modules, wide)), passes


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
    return collect_inputs(model, pairs, linear_layers(model), lambda rows: rows.abs().amax(-1))


def layers_for_gptq(model: Transformer) -> list[str]:
    """Return the linear layers whose weights GPTQ may round: neither those of a tied embedding,
    whose rows are looked up too, nor those that were int8 in the checkpoint, with one scale."""
    names: list[str] = []
    for name in linear_layers(model):
        weight = model.get_parameter(f"{name}.weight")
        tied = f"{name}.weight" in model.tied_names
        if not tied and weight.size(1) <= MOST_COLUMNS and len(scales_of(weight).unique()) > 1:
            names.append(name)
    return names


def round_by_gptq(model: Transformer, pairs: IdPairs, names: Collection[str]) -> dict[str, Tensor]:
    """Return int8 (N, K) of the matrices of these linear layers, by the matrices' names, rounded
    for what the layers read on the pairs."""
    return {
        f"{name}.weight": gptq(model.get_parameter(f"{name}.weight"), inputs)
        for batch in batches_of(model, pairs, names)
        for name, inputs in collect_inputs(model, pairs, batch, lambda rows: rows).items()
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


def collect_inputs(
    model: Transformer, pairs: IdPairs, names: Iterable[str], measure: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Return what `measure` makes of the rows (R, K) that each of these linear layers reads."""
    parts: dict[str, list[Tensor]] = {name: [] for name in names}

    def record(kept: list[Tensor]) -> Callable[[nn.Module, tuple[Tensor]], None]:
        return lambda _, inputs: kept.append(measure(inputs[0].flatten(0, -2)))

    hooks = [
        model.get_submodule(name).register_forward_pre_hook(record(kept))
        for name, kept in parts.items()
    ]
    run_hooked(model, pairs, hooks)
    collected: dict[str, Tensor] = {}
    for name, kept in parts.items():
        collected[name] = torch.cat(kept)
        kept.clear()  # or all would be in memory twice
    return collected


@torch.no_grad()
def run_hooked(model: Transformer, pairs: IdPairs, hooks: Iterable[RemovableHandle]) -> None:
    """Run the model on the pairs, then remove the hooks that watch it."""
    try:
        for source, target in pairs:  # one by one, because padding must not be measured
            model(*pad([source], model.config.pad_id), *pad([target], model.config.pad_id))
    finally:
        for hook in hooks:
            hook.remove()
