"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), top to bottom.

Axes: B batch, S source length, T target length, R rows of a step (R = B x beams), H heads,
D width of a head, M d_model, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn.functional import embedding

from model.network.attention import TORCH_KERNEL, Kernel, KeysValues, MultiHeadAttention
from model.network.config import NormKind, TransformerConfig
from model.network.dropout import Dropout
from model.network.positions import Rotary, sinusoidal_positions


class Embedding(nn.Module):
    """Token embedding x sqrt(d_model), plus the position, then dropout (sections 3.4, 3.5, 5.4)."""

    positions: Tensor

    def __init__(self, vocab_size: int, length: int, config: TransformerConfig) -> None:
        super().__init__()
        self.scale = math.sqrt(config.d_model)
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        self.register_buffer("positions", sinusoidal_positions(length, config.d_model))
        self.dropout = Dropout(config.dropout)

    def forward(self, token_ids: Tensor, position: Tensor) -> Tensor:
        """Ids of any shape, positions that broadcast to it -> (..., M)."""
        positions = embedding(position, self.positions)
        return self.dropout(self.tokens(token_ids) * self.scale + positions)


class FeedForward(nn.Module):
    """Section 3.3, the same at every position."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.d_model, config.d_ff)
        self.down = nn.Linear(config.d_ff, config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(self.up(x).relu()))


class UnbiasedLayerNorm(nn.Module):
    """a (x - mean) / (std + epsilon) + b with the unbiased std, as in The Annotated Transformer.

    A constant row gives b, and a finite gradient.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)  # (..., M)
        length = vector_norm(centred, dim=-1, keepdim=True)  # (..., 1), its gradient at 0 is 0
        deviation = length / math.sqrt(x.size(-1) - 1)
        return self.weight * centred / (deviation + 1e-6) + self.bias


def layer_norm(config: TransformerConfig) -> nn.Module:
    match config.norm:
        case NormKind.layer_norm:
            return nn.LayerNorm(config.d_model)
        case NormKind.unbiased_layer_norm:
            return UnbiasedLayerNorm(config.d_model)


class Sublayer(nn.Module):
    """The connection around attention and feed-forward: x + f(norm(x)), or norm(x + f(x))."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm_first = config.norm_first
        self.norm = layer_norm(config)
        self.dropout = Dropout(config.dropout)

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.norm_first else x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.dropout(y)  # (..., M)
        return x if self.norm_first else self.norm(x)


class EncoderLayer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.self_sublayer = Sublayer(config)
        self.feed_forward_sublayer = Sublayer(config)

    def forward(
        self, x: Tensor, source_length: Tensor, kernel: Kernel, rotary: Rotary | None
    ) -> tuple[Tensor, Tensor]:
        """(B, S, M) -> (B, S, M), encoder attention (B, H, S, S)."""
        y = self.self_sublayer.before(x)
        y, _, weights = self.self_attention.attend_self(y, source_length, kernel, rotary)
        x = self.self_sublayer.after(x, y)
        y = self.feed_forward(self.feed_forward_sublayer.before(x))
        return self.feed_forward_sublayer.after(x, y), weights


AttendSelf = Callable[[MultiHeadAttention, Tensor], tuple[Tensor, KeysValues, Tensor]]


class DecoderLayer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.cross_attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.self_sublayer = Sublayer(config)
        self.cross_sublayer = Sublayer(config)
        self.feed_forward_sublayer = Sublayer(config)

    def forward(
        self,
        x: Tensor,
        attend_self: AttendSelf,
        cross: KeysValues,
        source_length: Tensor,
        kernel: Kernel,
    ) -> tuple[Tensor, KeysValues, Tensor, Tensor]:
        """x (B, T, M) whole targets, or (R, M) one position a row.

        Returns x, the decoder's own keys and values, decoder attention, cross attention.
        """
        y = self.self_sublayer.before(x)
        y, own, decoder_attention = attend_self(self.self_attention, y)
        x = self.self_sublayer.after(x, y)
        y = self.cross_sublayer.before(x)
        y, cross_attention = self.cross_attention(y, cross, source_length, kernel)
        x = self.cross_sublayer.after(x, y)
        y = self.feed_forward(self.feed_forward_sublayer.before(x))
        return self.feed_forward_sublayer.after(x, y), own, decoder_attention, cross_attention


class Encoder(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embedding = Embedding(config.source_vocab_size, config.max_source_length, config)
        self.rotary = Rotary(config.max_source_length, config.d_qk) if config.rotary else None
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.norm = layer_norm(config) if config.norm_first else nn.Identity()

    def forward(
        self, source_ids: Tensor, source_length: Tensor, kernel: Kernel = TORCH_KERNEL
    ) -> tuple[Tensor, list[Tensor]]:
        """(B, S) ids padded on the right, (B,) -> memory (B, S, M), each layer's weights."""
        x = self.embedding(source_ids, torch.arange(source_ids.size(1), device=source_ids.device))
        encoder_attention: list[Tensor] = []
        for layer in self.layers:
            x, weights = layer(x, source_length, kernel, self.rotary)
            encoder_attention.append(weights)
        return self.norm(x), encoder_attention


class Decoded(NamedTuple):
    """hidden (..., M); per layer the decoder's own keys and values, and both attentions."""

    hidden: Tensor
    cache: list[KeysValues]
    decoder_attention: list[Tensor]
    cross_attention: list[Tensor]


class Decoder(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embedding = Embedding(config.target_vocab_size, config.max_target_length, config)
        self.rotary = Rotary(config.max_target_length, config.d_qk) if config.rotary else None
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        self.norm = layer_norm(config) if config.norm_first else nn.Identity()

    def cross(self, memory: Tensor) -> list[KeysValues]:
        """(B, S, M) -> what each layer's cross-attention reads, (B, H, S, D); once per source."""
        return [
            layer.cross_attention.project(memory)  # pyright: ignore (ModuleList forgets the type)
            for layer in self.layers
        ]

    def forward(
        self,
        target_ids: Tensor,
        target_length: Tensor,
        cross: list[KeysValues],
        source_length: Tensor,
    ) -> Decoded:
        """All positions of (B, T) ids at once; position i sees positions 0..i, never padding."""
        position = torch.arange(target_ids.size(1), device=target_ids.device)
        lengths = torch.minimum(position + 1, target_length.unsqueeze(1))  # (B, T)
        x = self.embedding(target_ids, position)  # (B, T, M)

        def attend_self(
            attention: MultiHeadAttention, y: Tensor
        ) -> tuple[Tensor, KeysValues, Tensor]:
            return attention.attend_self(y, lengths, TORCH_KERNEL, self.rotary)

        everywhere = [attend_self] * len(self.layers)
        return self._layers(x, everywhere, cross, source_length, TORCH_KERNEL)

    def step(
        self,
        token: Tensor,
        position: Tensor,
        cache: list[KeysValues],
        cross: list[KeysValues],
        source_length: Tensor,
        kernel: Kernel = TORCH_KERNEL,
    ) -> Decoded:
        """One token (R,) a row, each at its own position (R,), over a cache (R, H, T, D).

        The R rows are the B sources' in order, R / B to a source.
        """

        def over(past: KeysValues) -> AttendSelf:
            return lambda attention, y: attention.step(y, past, position, kernel, self.rotary)

        x = self.embedding(token, position)  # (R, M)
        return self._layers(x, [*map(over, cache)], cross, source_length, kernel)

    def _layers(
        self,
        x: Tensor,
        attend_self: list[AttendSelf],
        cross: list[KeysValues],
        source_length: Tensor,
        kernel: Kernel,
    ) -> Decoded:
        cache: list[KeysValues] = []
        decoder_attention: list[Tensor] = []
        cross_attention: list[Tensor] = []
        for layer, attend_own, memory in zip(self.layers, attend_self, cross, strict=True):
            x, own, decoder_weights, cross_weights = layer(
                x, attend_own, memory, source_length, kernel
            )
            cache.append(own)
            decoder_attention.append(decoder_weights)
            cross_attention.append(cross_weights)
        return Decoded(self.norm(x), cache, decoder_attention, cross_attention)


class Transformer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.generator = nn.Linear(config.d_model, config.target_vocab_size)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(
        self, source_ids: Tensor, source_length: Tensor, target_ids: Tensor, target_length: Tensor
    ) -> Tensor:
        """(B, S), (B,), decoder inputs (B, T), (B,) -> log-probs (B, T, V) of what comes next."""
        memory, _ = self.encoder(source_ids, source_length)
        decoded = self.decoder(target_ids, target_length, self.decoder.cross(memory), source_length)
        return self.log_probs(decoded.hidden)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """(..., M) -> (..., V): the generator's logits, normalised."""
        return self.generator(hidden).log_softmax(dim=-1)

    def empty_cache(self, rows: int, capacity: int) -> list[KeysValues]:
        """Zeros for every decoder layer: keys (R, H, T, d_qk), values (R, H, T, d_v)."""
        config, weight = self.config, self.generator.weight
        shape = (rows, config.num_heads, capacity)
        return [
            KeysValues(weight.new_zeros(*shape, config.d_qk), weight.new_zeros(*shape, config.d_v))
            for _ in self.decoder.layers
        ]
