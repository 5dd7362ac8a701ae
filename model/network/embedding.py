"""Token embeddings with positions."""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from model.network.config import Positions, TransformerConfig
from model.network.dropout import Dropout
from model.network.norms import layer_norm
from model.network.positions import sinusoidal_positions


class Embedding(nn.Module):
    """Scaled token embedding, plus the position, then a norm if configured, then dropout.

    Vaswani et al. 2017, sections 3.4, 3.5 and 5.4. With `positions_last` the norm comes first, and
    does without the scale, as in BlenderbotSmall's decoder.
    """

    positions: Tensor | None

    def __init__(
        self, vocab_size: int, length: int, config: TransformerConfig, positions_last: bool = False
    ) -> None:
        super().__init__()
        self.positions_last = positions_last
        self.scale = 1 if positions_last else config.embedding_scale
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        match config.positions:
            case Positions.sinusoidal:
                self.register_buffer("positions", sinusoidal_positions(length, config.d_model))
            case Positions.learned:
                self.positions = nn.Parameter(torch.empty(length, config.d_model))
            case Positions.none:
                self.positions = None
        self.norm = layer_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)

    def forward(self, token_ids: Tensor, position: Tensor) -> Tensor:
        """Ids of any shape, positions that broadcast to it -> (..., M)."""
        x = self.tokens(token_ids)
        if self.scale != 1:
            x = x * self.scale
        if self.positions_last:
            x = self.norm(x)
        if self.positions is not None:
            x = x + embedding(position, self.positions)
        return self.dropout(x if self.positions_last else self.norm(x))
