"""How large activations become: where rows hardly differ in size, int8 gives them one scale."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model.data.pairs import pad
from model.export.quantize import Scales
from model.network.transformer import Transformer
from model.search import greedy_search

LIKE = 4.0  # times the median row: rows up to this size share one scale
MARGIN = 1.15  # room above the largest row that calibration saw


@torch.no_grad()
def calibrate(model: Transformer) -> Scales:
    """Runs random sources, and what the model makes of them, through torch."""
    rows: dict[str, list[Tensor]] = {}
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}

    def watch(name: str) -> Any:
        def see(_: nn.Module, inputs: tuple[Tensor]) -> None:
            rows.setdefault(name, []).append(inputs[0].abs().amax(-1).flatten())

        return see

    pairs = samples(model)
    hooks = [each.register_forward_pre_hook(watch(name)) for name, each in linears.items()]
    for source, target in pairs:  # one by one: padding is no activation
        model(*(torch.tensor(x) for x in ([source], [len(source)], [target], [len(target)])))
    for hook in hooks:
        hook.remove()
    scales: Scales = {}
    for name, linear in linears.items():
        sizes = torch.cat(rows[name])
        if 0 < sizes.max() <= LIKE * sizes.median():
            weight = linear.weight.detach().numpy()
            scales[weight.tobytes()] = MARGIN * sizes.max().item()
    return scales


def samples(model: Transformer, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Random sources, and decoder inputs that the model makes of them."""
    config = model.config
    random = np.random.default_rng(seed)
    longest = min(24, config.max_source_length), min(24, config.max_target_length - 1)
    first = max(config.specials) + 1
    lengths = random.integers(1, longest[0] + 1, 32).tolist()
    sources = [random.integers(first, config.source_vocab_size, n).tolist() for n in lengths]
    found = greedy_search(model, *pad(sources, config.pad_id), longest[1])
    return [
        (source, [config.bos_id, *hypothesis.token_ids[:-1]])
        for source, hypothesis in zip(sources, found, strict=True)
    ]
