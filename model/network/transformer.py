"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), top to bottom.

Axes: B batch, S source length, T target length, R rows of a step (R = B x beams), H heads,
D head_dim, M d_model, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from model.network.attention import (
    TORCH_KERNEL,
    KeysValues,
    MultiHeadAttention,
    SelfAttended,
    TorchKernel,
)
from model.network.config import TransformerConfig
from model.network.dropout import Dropout
from model.network.embedding import Embedding
from model.network.feed_forward import FeedForward
from model.network.norms import layer_norm
from model.network.positions import (
    Position,
    RelativeBias,
    Rotary,
    place_layers,
    relative_biases,
)
from model.network.ssru import SSRU, State
from model.network.tying import tie, tied_names

LayerCache = KeysValues | State  # what a decoder layer keeps of the target so far


class Sublayer(nn.Module):
    """Residual connection and norm around attention or feed-forward: x + f(norm(x)) if norm_first,
    else norm(x + f(x))."""

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
        self, x: Tensor, source_length: Tensor, kernel: TorchKernel, position: Position
    ) -> tuple[Tensor, SelfAttended]:
        """(B, S, M) -> (B, S, M), and what its self-attention made, with weights (B, H, S, S)."""
        y = self.self_sublayer.before(x)
        attended = self.self_attention.attend_self(y, source_length, kernel, position)
        x = self.self_sublayer.after(x, attended.output)
        y = self.feed_forward(self.feed_forward_sublayer.before(x))
        return self.feed_forward_sublayer.after(x, y), attended


class DecoderLayerOutput(NamedTuple):
    """Hidden x, what the layer keeps of the target, and the attention weights; an SSRU has no
    decoder attention."""

    x: Tensor
    cache: LayerCache
    decoder_attention: Tensor | None
    cross_attention: Tensor


class DecoderLayer(nn.Module):
    """Reads the target so far by self-attention or an SSRU, then the source by cross-attention."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.ssru = SSRU(config) if config.recurrent else None
        self.self_attention = None if config.recurrent else MultiHeadAttention(config)
        self.cross_attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.self_sublayer = Sublayer(config)
        self.cross_sublayer = Sublayer(config)
        self.feed_forward_sublayer = Sublayer(config)

    def forward(
        self,
        x: Tensor,
        target_lengths: Tensor,
        cross: KeysValues,
        source_length: Tensor,
        kernel: TorchKernel,
        position: Position,
    ) -> DecoderLayerOutput:
        """Compute whole targets x (B, T, M); position t sees the first `target_lengths[:, t]`."""
        y = self.self_sublayer.before(x)
        y, cache, weights = self._read_targets(y, target_lengths, kernel, position)
        x = self.self_sublayer.after(x, y)
        y = self.cross_sublayer.before(x)
        y, cross_attention = self.cross_attention(y, cross, source_length, kernel)
        x = self._feed_forward(self.cross_sublayer.after(x, y))
        return DecoderLayerOutput(x, cache, weights, cross_attention)

    def _read_targets(
        self, x: Tensor, target_lengths: Tensor, kernel: TorchKernel, position: Position
    ) -> tuple[Tensor, LayerCache, Tensor | None]:
        if self.ssru is not None:
            return *self.ssru(x, kernel), None
        assert self.self_attention is not None
        return self.self_attention.attend_self(x, target_lengths, kernel, position)

    def step(
        self,
        x: Tensor,
        past: LayerCache,
        cross: KeysValues,
        source_length: Tensor,
        kernel: TorchKernel,
        position: Position,
    ) -> DecoderLayerOutput:
        """Compute one position per row, x (R, M), over a cache (R, H, T, D)."""
        y = self.self_sublayer.before(x)
        y, cache, weights = self._read_rows(y, past, kernel, position)
        x = self.self_sublayer.after(x, y)
        y = self.cross_sublayer.before(x)
        y, cross_attention = self.cross_attention.attend_rows(y, cross, source_length, kernel)
        x = self._feed_forward(self.cross_sublayer.after(x, y))
        return DecoderLayerOutput(x, cache, weights, cross_attention)

    def _read_rows(
        self, x: Tensor, past: LayerCache, kernel: TorchKernel, position: Position
    ) -> tuple[Tensor, LayerCache, Tensor | None]:
        if isinstance(past, State):
            assert self.ssru is not None
            return *self.ssru.step(x, past, position), None
        assert self.self_attention is not None
        return self.self_attention.step(x, past, kernel, position)

    def _feed_forward(self, x: Tensor) -> Tensor:
        y = self.feed_forward(self.feed_forward_sublayer.before(x))
        return self.feed_forward_sublayer.after(x, y)


class Encoder(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embedding = Embedding(config.source_vocab_size, config.max_source_length, config)
        self.rotary = Rotary(config.max_source_length, config.d_qk) if config.rotary else None
        self.relative = relative_biases(config, config.num_encoder_layers, causal=False)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.norm = layer_norm(config) if config.final_norm else nn.Identity()

    def forward(
        self, source_ids: Tensor, source_length: Tensor, kernel: TorchKernel = TORCH_KERNEL
    ) -> tuple[Tensor, list[SelfAttended]]:
        """(B, S) ids padded on the right, (B,) -> memory (B, S, M), each layer's attention."""
        positions = torch.arange(source_ids.size(1), device=source_ids.device)  # (S,)
        biases = [cast("RelativeBias", each).sequence(positions) for each in self.relative]
        placed = place_layers(positions, self.rotary, biases, len(self.layers))
        x = self.embedding(source_ids, positions)  # (B, S, M)
        layers: list[SelfAttended] = []
        for layer, position in zip(self.layers, placed, strict=True):
            x, attended = layer(x, source_length, kernel, position)
            layers.append(attended)
        return self.norm(x), layers


class Decoded(NamedTuple):
    """Hidden (..., M); per layer what it keeps of the target, and both attentions. An SSRU has no
    decoder attention."""

    hidden: Tensor
    cache: list[LayerCache]
    decoder_attention: list[Tensor]
    cross_attention: list[Tensor]


class Decoder(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embedding = Embedding(
            config.target_vocab_size,
            config.max_target_length,
            config,
            config.target_positions_last,
        )
        rotary = config.rotary and not config.recurrent
        self.rotary = Rotary(config.max_target_length, config.d_qk) if rotary else None
        self.relative = relative_biases(config, config.num_decoder_layers, causal=True)
        if config.recurrent:
            self.relative = nn.ModuleList()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        self.norm = layer_norm(config) if config.final_norm else nn.Identity()

    def cross(self, memory: Tensor) -> list[KeysValues]:
        """Memory (B, S, M) -> the keys and values (B, H, S, D) that each layer's cross-attention
        reads: computed once per source."""
        return [
            layer.cross_attention.project(memory)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
            for layer in self.layers
        ]

    def forward(
        self,
        target_ids: Tensor,
        target_length: Tensor,
        cross: list[KeysValues],
        source_length: Tensor,
        kernel: TorchKernel = TORCH_KERNEL,
    ) -> Decoded:
        """Teacher forcing: all positions of (B, T) ids at once.

        Position i sees positions 0..i, never padding.
        """
        positions = torch.arange(target_ids.size(1), device=target_ids.device)  # (T,)
        biases = [cast("RelativeBias", each).sequence(positions) for each in self.relative]
        placed = place_layers(positions, self.rotary, biases, len(self.layers))
        lengths = torch.minimum(positions + 1, target_length.unsqueeze(1))  # (B, T)
        x = self.embedding(target_ids, positions)  # (B, T, M)
        outputs: list[DecoderLayerOutput] = []
        for layer, memory, position in zip(self.layers, cross, placed, strict=True):
            output = layer(x, lengths, memory, source_length, kernel, position)
            outputs.append(output)
            x = output.x
        return self._decoded(outputs)

    def step(
        self,
        token: Tensor,
        position: Tensor,
        cache: Sequence[LayerCache],
        cross: list[KeysValues],
        source_length: Tensor,
        kernel: TorchKernel = TORCH_KERNEL,
    ) -> Decoded:
        """Decode one token (R,) per row, each at its own position (R,), over a cache (R, H, T, D).

        The R rows are in the order of the B sources, R / B per source. An exported kernel takes N
        tokens of a cache row, one after the other: then all but the cache has R * N rows.
        """
        capacity = cache[0][0].size(2)
        biases = [cast("RelativeBias", each).step(position, capacity) for each in self.relative]
        placed = place_layers(position, self.rotary, biases, len(self.layers))
        x = self.embedding(token, position)  # (R, M)
        outputs: list[DecoderLayerOutput] = []
        for layer, past, memory, place in zip(self.layers, cache, cross, placed, strict=True):
            output = layer.step(  # pyright: ignore[reportCallIssue]
                x, past, memory, source_length, kernel, place
            )
            outputs.append(output)
            x = output.x
        return self._decoded(outputs)

    def _decoded(self, outputs: list[DecoderLayerOutput]) -> Decoded:
        hidden = self.norm(outputs[-1].x)  # (..., M)
        return Decoded(
            hidden,
            [output.cache for output in outputs],
            [each.decoder_attention for each in outputs if each.decoder_attention is not None],
            [output.cross_attention for output in outputs],
        )


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
        tie(self, self.tied_names)

    @property
    def tied_names(self) -> dict[str, str]:
        """Names that the state dict omits, each with the name under which it has the tensor."""
        return tied_names(self.config)

    @property
    def device(self) -> torch.device:
        return self.generator.weight.device

    def forward(
        self, source_ids: Tensor, source_length: Tensor, target_ids: Tensor, target_length: Tensor
    ) -> Tensor:
        """(B, S), (B,), decoder inputs (B, T), (B,) -> log-probs (B, T, V) of the next token."""
        memory, _ = self.encoder(source_ids, source_length)
        decoded = self.decoder(target_ids, target_length, self.decoder.cross(memory), source_length)
        return self.log_probs(decoded.hidden)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Hidden (..., M) -> log-probs (..., V)."""
        return self.generator(hidden).log_softmax(dim=-1)

    def empty_cache(self, rows: int, capacity: int) -> list[LayerCache]:
        """Return zeros for every decoder layer: keys (R, H, T, d_qk), values (R, H, T, d_v), or the
        state (R, 1, 1, M) of an SSRU, which has any capacity."""
        config, weight = self.config, self.generator.weight
        if config.recurrent:
            return [
                State(weight.new_zeros(rows, 1, 1, config.d_model)) for _ in self.decoder.layers
            ]
        shape = (rows, config.num_heads, capacity)
        return [
            KeysValues(weight.new_zeros(*shape, config.d_qk), weight.new_zeros(*shape, config.d_v))
            for _ in self.decoder.layers
        ]
