"""Measure activations to choose int8 scales, and what int8 may compute.

Rows that hardly differ in size share one constant scale.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from model.data.pairs import pad
from model.export.checks.samples import IdPairs
from model.export.files.weights import int8_modules, linear_layers
from model.export.precision.choose import ON_RANDOM_IDS, choose, size_of
from model.export.precision.damage import Damage
from model.export.precision.int8_products import Scales
from model.network.config import InputError
from model.network.transformer import Transformer

LIKE = 4.0  # rows share one scale if the largest is at most this many times the median
MARGIN = 1.15  # room above the largest row that calibration saw
# Multiplications of a pass that measures damage, and of all passes that measure single modules:
# about a second, and a minute, of two cores.
A_PASS, ALL_PASSES = 5e10, 3e12


@dataclass(frozen=True, slots=True)
class Calibration:
    """Scales of activations, the modules that stay fp32, those of the others that read 16 bits of
    their activations, and in a sentence what int8 changes."""

    scales: Scales
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
    choice = choose(model, Damage(model, scales, measured), passes, tolerance)
    kept = {name: each for name, each in scales.items() if name in choice.int8}
    left, wide = {*int8_modules(model)} - choice.int8, choice.wide
    whole = size_of(model, int8_modules(model))
    summary = (
        f"{size_of(model, left) / whole:.0%} of the weights stay fp32,"
        f" {size_of(model, wide) / whole:.0%} multiply activations of 16 bits; int8 changes"
        f" predictions by {choice.chosen:.1e} nats a token, at most {choice.tolerable:.1e} are"
        f" tolerable, all products with 8 bits would change them by {choice.whole:.1e}"
    )
    return Calibration(kept, left, wide, summary)


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
    sizes: dict[str, list[Tensor]] = {}
    hooks: list[RemovableHandle] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            found = sizes.setdefault(name, [])
            hooks.append(module.register_forward_pre_hook(recorder(found)))
    run_hooked(model, pairs, hooks)
    return {name: torch.cat(found) for name, found in sizes.items()}


def recorder(found: list[Tensor]) -> Callable[[nn.Module, tuple[Tensor]], None]:
    return lambda _, inputs: found.append(inputs[0].flatten(0, -2).abs().amax(-1))


@torch.no_grad()
def run_hooked(model: Transformer, pairs: IdPairs, hooks: Iterable[RemovableHandle]) -> None:
    """Run the model on the pairs, then remove the hooks that watch it."""
    try:
        for source, target in pairs:  # one by one, because padding must not be measured
            model(*pad([source], model.config.pad_id), *pad([target], model.config.pad_id))
    finally:
        for hook in hooks:
            hook.remove()
