"""Inputs that no trace has seen, and what torch answers to them."""

import numpy as np
import torch

from model.data.pairs import pad
from model.network.transformer import Transformer


@torch.no_grad()
def parity(model: Transformer) -> dict[str, np.ndarray]:
    """Inputs of ragged lengths that no trace has seen, and what torch answers to them.

    Values at padding mean nothing and are not to be compared.
    """
    config = model.config
    random = np.random.default_rng(0)

    def ragged(lengths: list[int], vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = max(config.specials) + 1
        return pad([random.integers(first, vocab_size, n).tolist() for n in lengths], config.pad_id)

    longest = min(9, config.max_source_length), min(8, config.max_target_length)
    source_ids, source_length = ragged([longest[0], 4, 1], config.source_vocab_size)
    target_ids, target_length = ragged([3, longest[1], 1], config.target_vocab_size)
    target_ids[:, 0] = config.bos_id
    memory, encoder_attention = model.encoder(source_ids, source_length)
    cross = model.decoder.cross(memory)
    decoded = model.decoder(target_ids, target_length, cross, source_length)
    tensors = {
        "source_ids": source_ids,
        "source_length": source_length,
        "decoder_input_ids": target_ids,
        "decoder_length": target_length,
        "memory": memory,
        "log_probs": model.log_probs(decoded.hidden),
    }
    for kind, layers in (
        ("encoder_attention", encoder_attention),
        ("decoder_attention", decoded.decoder_attention),
        ("cross_attention", decoded.cross_attention),
    ):
        tensors |= {f"{kind}_{layer}": weights for layer, weights in enumerate(layers)}
    return {name: tensor.numpy() for name, tensor in tensors.items()}
