"""Reference inputs and torch's outputs for the self-check.

Their lengths differ from those the graphs were traced with.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.data.pairs import pad
from model.export.checks.samples import IdArray, ordinary_ids, random_rows
from model.network.config import InputError
from model.network.transformer import Transformer

SOURCE_LENGTHS, TARGET_LENGTHS = [9, 4, 1], [3, 8, 1]  # or the model's limit if that is less
LARGEST_IDS, RANDOM_IDS = 16, 16  # at a position; a vocabulary may have 256,000


@torch.no_grad()
def parity(model: Transformer) -> dict[str, NDArray[np.generic]]:
    """Return example inputs and torch's outputs for parity.npz; padding is not compared.

    Raise InputError if torch computes NaN or infinity.
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
    log_probs = answers.pop("log_probs")  # (B, T, V)
    log_prob_ids = some_ids(log_probs, ordinary_ids(config.target_vocab_size, config), random)
    answers["log_probs"] = log_probs.gather(-1, log_prob_ids)  # (B, T, K)
    inputs = {
        "source_ids": sources[0],
        "source_length": sources[1],
        "decoder_input_ids": targets[0],
        "decoder_length": targets[1],
        "log_prob_ids": log_prob_ids,
    }
    return {name: tensor.numpy() for name, tensor in (inputs | answers).items()}


def some_ids(log_probs: Tensor, ordinary: IdArray, random: np.random.Generator) -> Tensor:
    """Return the ids to compare at each position (B, T, K): the largest first, in descending order.

    Random ones follow, to find an error in the rest of the vocabulary.
    """
    largest = log_probs.topk(min(LARGEST_IDS, log_probs.size(-1))).indices
    drawn = random.choice(ordinary, (*log_probs.shape[:-1], RANDOM_IDS))
    return torch.cat([largest, torch.from_numpy(drawn)], -1)


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
