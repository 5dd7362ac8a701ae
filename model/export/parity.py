"""Reference inputs and torch's outputs for the self-check.

Their lengths differ from those the graphs were traced with.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.data.pairs import pad
from model.export.samples import ordinary_ids, random_rows
from model.network.config import InputError
from model.network.transformer import Transformer

SOURCE_LENGTHS, TARGET_LENGTHS = [9, 4, 1], [3, 8, 1]  # or the model's limit if that is less


@torch.no_grad()
def parity(model: Transformer) -> dict[str, NDArray[np.generic]]:
    """Return example inputs and torch's outputs for parity.npz; padding is not compared.

    Raises InputError if torch computes NaN or infinity.
    """
    config = model.config
    random = np.random.default_rng(0)

    def ragged(lengths: list[int], longest: int, vocab_size: int) -> tuple[Tensor, Tensor]:
        fitting = [min(length, longest) for length in lengths]
        return pad(random_rows(ordinary_ids(vocab_size, config), fitting, random), config.pad_id)

    sources = ragged(SOURCE_LENGTHS, config.max_source_length, config.source_vocab_size)
    targets = ragged(TARGET_LENGTHS, config.max_target_length, config.target_vocab_size)
    targets[0][:, 0] = config.bos_id
    answers = torch_answers(model, sources, targets)
    for name, tensor in answers.items():
        if not tensor.isfinite().all():
            raise InputError(
                f"the model computes NaN or infinity ({name}): a weight is damaged, or too large"
                " for --weights fp16"
            )
    inputs = {
        "source_ids": sources[0],
        "source_length": sources[1],
        "decoder_input_ids": targets[0],
        "decoder_length": targets[1],
    }
    return {name: tensor.numpy() for name, tensor in (inputs | answers).items()}


def torch_answers(
    model: Transformer, sources: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]
) -> dict[str, Tensor]:
    """Return memory, log-probs and all attention weights for padded ids and their lengths."""
    memory, encoder_attention = model.encoder(*sources)
    decoded = model.decoder(*targets, model.decoder.cross(memory), sources[1])
    answers = {"memory": memory, "log_probs": model.log_probs(decoded.hidden)}
    for kind, layers in (
        ("encoder_attention", encoder_attention),
        ("decoder_attention", decoded.decoder_attention),
        ("cross_attention", decoded.cross_attention),
    ):
        answers |= {f"{kind}_{layer}": weights for layer, weights in enumerate(layers)}
    return answers
