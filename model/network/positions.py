"""Where a token stands: sines added to embeddings, angles that turn queries and keys."""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding


def angles(length: int, width: int) -> Tensor:
    """(length, width / 2) radians: position x 10000^(-2i / width), rounded up for odd widths."""
    frequency = 1e4 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(length, dtype=torch.float64).unsqueeze(1) * frequency


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """(length, M): sines in the even columns, cosines in the odd ones (Vaswani et al. 2017, 3.5).

    An odd width ends with a sine.
    """
    radians = angles(length, d_model)  # (length, M / 2)
    pairs = torch.stack([radians.sin(), radians.cos()], dim=-1)  # (length, M / 2, 2)
    return pairs.flatten(1)[:, :d_model].float()


class Rotary(nn.Module):
    """Turns queries and keys by angles that grow with their positions, so that their products
    depend on the distance between them (Su et al. 2021, section 3.4.2).

    Component i of a head is paired with component i + D / 2.
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
