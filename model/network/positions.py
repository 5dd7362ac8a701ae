"""Sinusoidal and rotary positions."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding


def angles(length: int, size: int) -> Tensor:
    """(length, size / 2) radians: position x 10000^(-2i / size), rounded up for odd sizes."""
    frequency = 1e4 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)  # (size / 2,)
    return torch.arange(length, dtype=torch.float64).unsqueeze(1) * frequency


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """(length, M): sines in the even columns, cosines in the odd ones (Vaswani et al. 2017, 3.5).

    An odd M ends with a sine.
    """
    radians = angles(length, d_model)  # (length, M / 2)
    pairs = torch.stack([radians.sin(), radians.cos()], dim=-1)  # (length, M / 2, 2)
    return pairs.flatten(1)[:, :d_model].float()  # (length, M)


class Rotary(nn.Module):
    """Rotate queries and keys by angles that grow with their positions (Su et al. 2021, 3.4.2).

    The product of a query and a key then depends on the distance between them. Component i of a
    head is paired with component i + D / 2.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, length: int, d_qk: int) -> None:
        super().__init__()
        radians = angles(length, d_qk)  # (length, D / 2)
        self.register_buffer("cos", radians.cos().float())
        self.register_buffer("sin", radians.sin().float())

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """(..., D), positions that broadcast to (...) -> (..., D)."""
        cos, sin = (embedding(position, table).to(x.dtype) for table in (self.cos, self.sin))
        first, second = x.chunk(2, dim=-1)  # (..., D / 2)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@dataclass(frozen=True, slots=True)
class Position:
    """Positions for one pass through the layers.

    `positions` are (T,) for whole sequences, which all begin at 0, and (R,) for a step, whose rows
    each have a position of their own. Without `rotary`, self-attention does not use them: only the
    sines added to the embeddings carry positions.
    """

    positions: Tensor
    rotary: Rotary | None

    def place_sequence(self, x: Tensor) -> Tensor:
        """Queries or keys (B, H, T, D) -> the same, rotated."""
        return self.rotary(x, self.positions) if self.rotary else x

    def place_step(self, x: Tensor) -> Tensor:
        """Queries or keys (R, H, 1, D) -> the same, rotated."""
        if not self.rotary:
            return x
        positions = self.positions[:, None, None]  # (R, 1, 1)
        return self.rotary(x, positions)
