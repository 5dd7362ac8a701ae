"""Normalisation of hidden states, as the configuration names it."""

import math

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from model.network.config import NormKind, TransformerConfig


class UnbiasedLayerNorm(nn.Module):
    """a (x - mean) / (std + epsilon) + b with the unbiased std, as in The Annotated Transformer.

    A constant row gives b, and a finite gradient.
    """

    def __init__(self, d_model: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)  # (..., M)
        length = vector_norm(centred, dim=-1, keepdim=True)  # (..., 1), its gradient at 0 is 0
        deviation = length / math.sqrt(x.size(-1) - 1)
        return self.weight * centred / (deviation + self.epsilon) + self.bias


def layer_norm(config: TransformerConfig) -> nn.Module:
    match config.norm:
        case NormKind.layer_norm:
            return nn.LayerNorm(config.d_model, config.norm_epsilon)
        case NormKind.unbiased_layer_norm:
            return UnbiasedLayerNorm(config.d_model, config.norm_epsilon)
        case NormKind.rms_norm:
            return nn.RMSNorm(config.d_model, config.norm_epsilon)
