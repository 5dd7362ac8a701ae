"""Reference inputs and torch's outputs for the self-check.

Their lengths differ from those the graphs were traced with.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.data.pairs import pad
from model.export.checks.samples import IdArray, ordinary_ids, random_rows
from model.network.attention import TORCH_KERNEL, KeysValues, MultiHeadAttention, TorchKernel
from model.network.config import InputError
from model.network.gates import (
    cross_attentions,
    decoder_attentions,
    decoder_gates,
    encoder_attentions,
    encoder_gates,
)
from model.network.transformer import LayerCache, Transformer

SOURCE_LENGTHS, TARGET_LENGTHS = [9, 4, 1], [3, 8, 1]  # or the model's limit if that is less
LOG_PROBS = ("log_probs", "encoder_gated_log_probs", "decoder_gated_log_probs")
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
    kinds = 2 if decoder_attentions(model) else 1  # of attention in the decoder
    gates = {
        "encoder_gates": alternating(config.num_encoder_layers, config.num_heads),  # (L, H)
        "decoder_gates": alternating(
            kinds, config.num_decoder_layers, config.num_heads
        ),  # (K, L, H)
    }
    answers = torch_answers(model, sources, targets)
    answers |= gated_answers(model, sources, targets, gates)
    for name, tensor in answers.items():
        if not tensor.isfinite().all():
            raise InputError(
                f"the model computes NaN or infinity ({name}): a weight is damaged, or too large"
                " for --weights fp16"
            )
    ordinary = ordinary_ids(config.target_vocab_size, config)
    log_prob_ids = some_ids(answers["log_probs"], ordinary, random)
    for name in LOG_PROBS:
        answers[name] = answers[name].gather(-1, log_prob_ids)  # (B, T, V) -> (B, T, K)
    inputs = gates | {
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


def alternating(*shape: int) -> Tensor:
    """Return gates of 0.5 and 1 in turn: none hides what its head computes, as 0 would."""
    return 0.5 + 0.5 * (torch.arange(prod(shape)) % 2).view(shape)


def torch_answers(
    model: Transformer, sources: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]
) -> dict[str, Tensor]:
    """Return memory, log-probs, and all attention weights and value norms, for padded ids and their
    lengths."""
    memory, attended = model.encoder(*sources)
    cross = model.decoder.cross(memory)
    decoded = model.decoder(*targets, cross, sources[1])
    answers = {"memory": memory, "log_probs": model.log_probs(decoded.hidden)}
    encoder = [layer.cache for layer in attended]
    for kind, layers in (
        ("encoder_attention", [layer.weights for layer in attended]),
        ("decoder_attention", decoded.decoder_attention),
        ("cross_attention", decoded.cross_attention),
        ("encoder_value_norms", norms(encoder_attentions(model), encoder)),
        ("decoder_value_norms", norms(decoder_attentions(model), decoded.cache)),
        ("cross_value_norms", norms(cross_attentions(model), cross)),
    ):
        answers |= {f"{kind}_{layer}": each for layer, each in enumerate(layers)}
    return answers


def norms(attentions: Sequence[MultiHeadAttention], layers: Sequence[LayerCache]) -> list[Tensor]:
    """Return the value norms (B, H, S) of each layer that has attention."""
    pairs = zip(attentions, layers, strict=False)
    return [
        attention.value_norms(kept.values)
        for attention, kept in pairs
        if isinstance(kept, KeysValues)
    ]


def gated_answers(
    model: Transformer,
    sources: tuple[Tensor, Tensor],
    targets: tuple[Tensor, Tensor],
    gates: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return log-probs (B, T, V) with the gates of the encoder (L, H), and with those of the
    decoder (K, L, H)."""
    of_encoder, of_decoder = (each.expand(len(sources[0]), *each.shape) for each in gates.values())
    open_memory, _ = model.encoder(*sources)
    memory, _ = model.encoder(*sources, TorchKernel(encoder_gates(model, of_encoder)))
    runs = {
        "encoder_gated_log_probs": (memory, TORCH_KERNEL),
        "decoder_gated_log_probs": (
            open_memory,
            TorchKernel(decoder_gates(model, of_decoder)),
        ),
    }
    return {
        name: model.log_probs(
            model.decoder(*targets, model.decoder.cross(read), sources[1], kernel).hidden
        )
        for name, (read, kernel) in runs.items()
    }
