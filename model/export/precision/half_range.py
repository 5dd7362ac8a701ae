"""Check that a network's numbers stay within half precision, before it is exported at fp16.

ONNX Runtime's CPU provider cannot show it: it computes most operators of fp16 graphs in float32,
and does not round between them.
"""

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from model.export.checks.samples import IdPairs
from model.export.files.tensor_file import pieces_of
from model.export.precision.calibrate import run_hooked
from model.network.config import InputError
from model.network.transformer import Transformer

LARGEST = torch.finfo(torch.float16).max
MARGIN = 2.0  # room above the numbers that the pairs give
ADVICE = "give --precision fp32, int8 or both"


@torch.no_grad()
def check_half_range(model: Transformer, pairs: IdPairs) -> None:
    """Raise InputError naming a weight that float16 cannot hold, or a module that reads or computes
    such a number for `pairs`."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and max(map(largest, pieces_of(tensor))) > LARGEST:
            raise InputError(f"{name} has weights above {LARGEST:,.0f}, where fp16 ends: {ADVICE}")
    found = largest_numbers(model, pairs)
    name = max(found, key=lambda each: found[each])
    if not found[name] * MARGIN <= LARGEST:
        raise InputError(
            f"{name} has numbers of {found[name]:,.0f}, and other texts may have larger ones, but"
            f" fp16 ends at {LARGEST:,.0f}: {ADVICE}"
        )


def largest_numbers(model: Transformer, pairs: IdPairs) -> dict[str, float]:
    """Return the largest absolute number that each innermost module reads or computes."""
    found: defaultdict[str, float] = defaultdict(float)
    hooks = [
        module.register_forward_hook(range_recorder(found, name))
        for name, module in model.named_modules()
        if not [*module.children()]
    ]
    run_hooked(model, pairs, hooks)
    return found


def range_recorder(found: dict[str, float], name: str) -> Any:
    def record(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        for each in (*inputs, output):
            if isinstance(each, Tensor) and each.is_floating_point():
                found[name] = max(found[name], largest(each))

    return record


def largest(tensor: Tensor) -> float:
    """Return the largest absolute number; infinity if one is not a number."""
    found = tensor.abs().max().item()
    return math.inf if math.isnan(found) else found
