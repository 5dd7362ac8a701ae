"""Choose what int8 may compute, by what it does to the output of the network.

The error of one product says little: softmax amplifies a small error of queries and keys, and a
norm hides a large one. Small errors of products are almost independent: the damage of several is
about the sum of their damages.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from model.export.files.weights import int8_modules, linear_layers, stored_name
from model.export.precision.damage import Damage
from model.network.transformer import Transformer

# Most damage, as a share of the entropy of the network's predictions: int8 changes certain
# predictions less. Random ids are unlike texts, and more precision would not help there.
ON_TEXTS, ON_RANDOM_IDS = 1e-4, 1e-3
LEAST = 2e-6  # nats a token: the limit of a network that is certain of everything
WIDE = 1 << 16  # weights from which a product with 16 bits of activations is as fast as fp32
STRICTER = 0.75  # factor of the allowed sum after the whole did more damage than is tolerable
MERGED = ("query", "key", "value")  # one product in the step's graph of a self-attention
LAYER = re.compile(r"\.layers\.\d+\.")
Products = tuple[str, ...]  # modules that are int8 together, or not at all
Damages = dict[tuple[Products, ...], float]  # of groups of units


@dataclass(slots=True)
class Chosen:
    """The modules that int8 computes, and the damage that it does."""

    int8: set[str]
    wide: set[str]  # linear layers of int8 that read 16 bits of their activations
    whole: float  # damage if all modules were int8, with 8 bits of activations
    chosen: float


def tolerable_damage(damage: Damage, tolerance: float) -> float:
    """Return the most damage that is tolerable: `tolerance` of the entropy."""
    return max(LEAST, tolerance * damage.entropy)


def choose(model: Transformer, damage: Damage, passes: int, tolerable: float) -> Chosen:
    """Let large products read 16 bits of their activations, the most damaging for their size first,
    until the damage of all is at most `tolerable`. A product that then still does too much leaves
    int8; a small one does so at once.

    The modules of a place, such as the keys of all layers, are measured together first. After
    `passes` they are not measured one by one any more.
    """
    modules = int8_modules(model)
    whole = damage.of(modules)
    choice = Chosen({*modules}, set(), whole, whole)
    if whole <= tolerable:
        return choice
    units, size = units_of(model, modules), partial(size_of, model)
    damages: Damages = {group: damage.of(modules_of(group)) for group in group_by_place(units)}
    large = {name for unit in units if size(unit) >= WIDE for name in unit}
    large &= {*linear_layers(model)}
    allowed = tolerable
    while choice.chosen > tolerable and allowed > 0:
        reduce_damages(damages, allowed, choice, damage, size, large, passes)
        choice.chosen = damage.of(choice.int8, choice.wide)
        allowed = STRICTER * min(allowed, sum(damages.values()))
    return choice


def reduce_damages(
    damages: Damages,
    allowed: float,
    choice: Chosen,
    damage: Damage,
    size: Callable[[Collection[str]], int],
    large: set[str],
    passes: int,
) -> None:
    """Reduce the sum of the damages to `allowed`.

    The worst group is measured unit by unit. Its `large` modules become wide. If none is left to
    become so, the group leaves int8.
    """
    while sum(damages.values()) > allowed:
        worst = max(damages, key=lambda group: damages[group] / size(modules_of(group)))
        names = modules_of(worst)
        del damages[worst]
        if len(worst) > 1 and damage.passes < passes:
            damages |= {(unit,): damage.of(unit, choice.wide) for unit in worst}
        elif narrow := names & large - choice.wide:
            choice.wide |= narrow
            damages[worst] = damage.of(names, choice.wide)
        else:
            choice.int8 -= names
            choice.wide -= names


def units_of(model: Transformer, modules: Sequence[str]) -> list[Products]:
    """Return the modules that share a matrix, or a product of the graphs."""
    units: defaultdict[str, list[str]] = defaultdict(list)
    for name in modules:
        attention, _, part = name.rpartition(".")
        merged = attention.endswith("self_attention") and part in MERGED
        units[attention if merged else stored_name(model, name)].append(name)
    return [tuple(names) for names in units.values()]


def group_by_place(units: Sequence[Products]) -> list[tuple[Products, ...]]:
    """Return the units that have the same place in each layer."""
    groups: defaultdict[str, list[Products]] = defaultdict(list)
    for unit in units:
        groups[LAYER.sub(".", unit[0])].append(unit)
    return [tuple(group) for group in groups.values()]


def size_of(model: Transformer, modules: Collection[str]) -> int:
    """Return the number of weights of modules; a matrix that several of them share counts once."""
    names = {stored_name(model, name) for name in modules}
    return sum(model.get_parameter(name).numel() for name in names)


def modules_of(group: tuple[Products, ...]) -> set[str]:
    return {name for unit in group for name in unit}
