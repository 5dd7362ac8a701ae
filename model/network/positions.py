"""Positions: sinusoidal, rotary, and biases by relative distance."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from model.network.config import TransformerConfig


def angles(length: int, size: int) -> Tensor:
    """(length, size / 2 rounded up) radians: position x 10000^(-2i / size)."""
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


class RelativeBias(nn.Module):
    """A bias that each head adds to the score of a query and a key, by their distance.

    Distances beyond `longest` have the bias of `longest`. T5's buckets (Raffel et al. 2020, section
    2.1) are equal rows of such a table. A causal table has no rows for later keys.
    """

    def __init__(self, longest: int, num_heads: int, *, causal: bool) -> None:
        super().__init__()
        self.longest = longest
        self.least = 0 if causal else -longest
        self.table = nn.Parameter(torch.zeros(longest - self.least + 1, num_heads))

    def sequence(self, positions: Tensor) -> Tensor:
        """Positions (T,) -> (1, H, T, T)."""
        return self._look_up(positions.unsqueeze(1) - positions).permute(2, 0, 1).unsqueeze(0)

    def step(self, positions: Tensor, capacity: int) -> Tensor:
        """One position per row (R,), keys at 0 to capacity - 1 -> (R, H, 1, capacity)."""
        keys = torch.arange(capacity, device=positions.device)
        biases = self._look_up(positions.unsqueeze(1) - keys)  # (R, capacity, H)
        return biases.transpose(1, 2).unsqueeze(2)

    def _look_up(self, distance: Tensor) -> Tensor:
        """Distances, query minus key -> (..., H)."""
        return embedding(distance.clamp(self.least, self.longest) - self.least, self.table)


@dataclass(frozen=True, slots=True)
class Position:
    """Positions for one pass through a layer.

    `positions` are (T,) for whole sequences, which all begin at 0, and (R,) for a step, whose rows
    each have a position of their own. Self-attention rotates queries and keys by `rotary`, and adds
    `bias` to its scores: (1, H, T, T) for whole sequences, (R, H, 1, capacity) for a step. Without
    both, it knows positions only from the embeddings.
    """

    positions: Tensor
    rotary: Rotary | None
    bias: Tensor | None = None

    def place_sequence(self, x: Tensor) -> Tensor:
        """Queries or keys (B, H, T, D) -> the same, rotated."""
        return self.rotary(x, self.positions) if self.rotary else x

    def place_step(self, x: Tensor) -> Tensor:
        """Queries or keys (R, H, 1, D) -> the same, rotated."""
        if not self.rotary:
            return x
        positions = self.positions[:, None, None]  # (R, 1, 1)
        return self.rotary(x, positions)


def relative_biases(config: TransformerConfig, layers: int, *, causal: bool) -> nn.ModuleList:
    """Return no RelativeBias, one that all layers share, or one for each layer."""
    tables = layers if config.relative_per_layer else 1
    return nn.ModuleList(
        RelativeBias(config.relative_distance, config.num_heads, causal=causal)
        for _ in range(tables if config.relative_distance else 0)
    )


def place_layers(
    positions: Tensor, rotary: Rotary | None, biases: Sequence[Tensor], layers: int
) -> list[Position]:
    """Return the Position of each layer. `biases` has none, one for all layers, or one for each."""
    each = biases if len(biases) > 1 else [*biases, None][:1] * layers
    return [Position(positions, rotary, bias) for bias in each]
