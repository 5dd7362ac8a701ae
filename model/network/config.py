"""The configuration of a Transformer: its sizes and choices, checked once."""

import math
from dataclasses import dataclass
from enum import StrEnum


class ScoreFunction(StrEnum):
    scaled_dot_product = "scaled_dot_product"  # q . k / sqrt(d_qk), Vaswani et al. 2017
    additive = "additive"  # w . tanh(q + k) of projected q and k, Bahdanau et al. 2015
    gaussian = "gaussian"  # -|width (q - k)|^2 / 2, Nadaraya 1964 and Watson 1964


class DecoderKind(StrEnum):
    """How a decoder layer reads the target so far."""

    self_attention = "self_attention"  # Vaswani et al. 2017
    ssru = "ssru"  # a recurrence over one state: Kim et al. 2019, `model/network/ssru.py`


class NormKind(StrEnum):
    layer_norm = "layer_norm"  # torch's: biased variance, epsilon inside the root
    unbiased_layer_norm = "unbiased_layer_norm"  # a (x - mean) / (std + epsilon) + b
    rms_norm = "rms_norm"  # a x / sqrt(mean(x^2) + epsilon), Zhang and Sennrich 2019


class Positions(StrEnum):
    """Vectors added to the token embeddings to tell positions apart."""

    sinusoidal = "sinusoidal"  # sines and cosines, Vaswani et al. 2017
    learned = "learned"  # a trained table
    none = "none"  # no vectors; self-attention may use `rotary` or `relative_distance` instead


class Activation(StrEnum):
    relu = "relu"
    gelu = "gelu"  # x Phi(x), Hendrycks and Gimpel 2016
    gelu_tanh = "gelu_tanh"  # the same with Phi approximated by tanh
    silu = "silu"  # x sigmoid(x), also called swish


class Tied(StrEnum):
    """Which of the source embedding, target embedding and output projection are one matrix."""

    no = "no"
    target = "target"  # target embedding and output projection, Press and Wolf 2017
    embeddings = "embeddings"  # source and target embedding
    all = "all"  # all three, Vaswani et al. 2017, section 3.4


class InputError(Exception):
    """Invalid input from the user; the message says why and what to give instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """Sizes and options of the network; the defaults are the base model of Vaswani et al. 2017.

    Lengths count positions: every id that enters the encoder or the decoder, specials included.
    Raise InputError if values contradict each other.
    """

    source_vocab_size: int
    target_vocab_size: int
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    d_qk: int = 0  # head_dim of queries and keys; 0: d_model / num_heads
    d_v: int = 0  # head_dim of values; 0: d_model / num_heads
    score_function: ScoreFunction = ScoreFunction.scaled_dot_product
    norm: NormKind = NormKind.layer_norm
    norm_epsilon: float = 1e-5
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    decoder: DecoderKind = DecoderKind.self_attention
    norm_first: bool = False  # False: norm(x + f(x)), the paper; True: x + f(norm(x))
    final_norm: bool | None = None  # a norm after the last layer; None: the same as norm_first
    embedding_norm: bool = False  # a norm after token embedding and position
    target_positions_last: bool = False  # decoder: a norm of unscaled embeddings, then positions
    embedding_scale: float = 0.0  # factor of token embeddings; 0: sqrt(d_model)
    positions: Positions = Positions.sinusoidal
    rotary: bool = False  # True: self-attention also rotates queries and keys by their positions
    relative_distance: int = 0  # largest distance with its own bias in self-attention; 0: no bias
    relative_per_layer: bool = False  # each layer has its own biases; False: all layers share them
    activation: Activation = Activation.relu
    gated: bool = False  # feed-forward layers multiply the activation by a second projection
    tied: Tied = Tied.no
    dropout: float = 0.1
    max_source_length: int = 512
    max_target_length: int = 512
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_choice("decoder", DecoderKind)
        self._check_choice("score_function", ScoreFunction)
        self._check_choice("norm", NormKind)
        self._check_choice("positions", Positions)
        self._check_choice("activation", Activation)
        self._check_choice("tied", Tied)
        self._set_head_dims()
        self._set_embedding()
        if self.final_norm is None:
            object.__setattr__(self, "final_norm", self.norm_first)
        if self.rotary:
            self._check_rotary()
        if self.norm == NormKind.unbiased_layer_norm and self.d_model < 2:
            raise InputError("d_model is 1: unbiased_layer_norm needs at least 2")
        if not 0 < self.norm_epsilon < 1:
            raise InputError(f"norm_epsilon is {self.norm_epsilon}: give a number between 0 and 1")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout is {self.dropout}: give at least 0 and less than 1")
        smallest = min(self.source_vocab_size, self.target_vocab_size)
        if not 0 <= min(self.specials) <= max(self.specials) < smallest:
            raise InputError(
                f"pad_id, bos_id, eos_id are {self.specials}: give each at least 0 and less than"
                f" {smallest}, the size of the smaller vocabulary"
            )

    def _check_sizes(self) -> None:
        counts = ("d_model", "d_ff", "num_heads", "num_encoder_layers", "num_decoder_layers")
        for name in (*counts, "max_source_length", "max_target_length"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}: give at least 1")
        for name in ("d_qk", "d_v"):
            if (size := getattr(self, name)) < 0:
                raise InputError(f"{name} is {size}: give at least 1, or 0 for d_model / num_heads")
        if self.relative_distance < 0:
            raise InputError(
                f"relative_distance is {self.relative_distance}: give at least 1, or 0 for no bias"
            )

    def _check_choice(self, name: str, choices: type[StrEnum]) -> None:
        """Turn a string, as JSON has it, into its enum."""
        value = getattr(self, name)
        if value not in list(choices):
            raise InputError(f"{name} is {value!r}: give one of {', '.join(choices)}")
        object.__setattr__(self, name, choices(value))

    def _set_head_dims(self) -> None:
        for name in ("d_qk", "d_v"):
            if getattr(self, name):
                continue
            if self.d_model % self.num_heads:
                raise InputError(
                    f"d_model {self.d_model} is not a multiple of num_heads {self.num_heads}:"
                    f" change one of them, or set {name} yourself"
                )
            object.__setattr__(self, name, self.d_model // self.num_heads)

    def _set_embedding(self) -> None:
        if self.embedding_scale < 0:
            raise InputError(
                f"embedding_scale is {self.embedding_scale}: give a positive number, or 0 for"
                " sqrt(d_model)"
            )
        object.__setattr__(self, "embedding_scale", self.embedding_scale or math.sqrt(self.d_model))
        sizes = self.source_vocab_size, self.target_vocab_size
        if self.tied in (Tied.embeddings, Tied.all) and len({*sizes}) > 1:
            raise InputError(
                f"tied is {self.tied}, but the vocabularies have {sizes[0]} and {sizes[1]} tokens:"
                " give both sides one vocabulary, or set tied to target or no"
            )

    def _check_rotary(self) -> None:
        if self.d_qk % 2:
            raise InputError(
                f"d_qk is {self.d_qk} (by default d_model / num_heads), but rotary positions need"
                " an even one: give an even d_qk, or turn rotary off"
            )
        if self.score_function == ScoreFunction.additive:
            # The score of rotated queries and keys would not depend on their distance alone.
            raise InputError(
                "rotary positions cannot be combined with additive scores: give another"
                " score_function, or turn rotary off"
            )

    @property
    def recurrent(self) -> bool:
        """Whether the decoder keeps a state of the target in the place of keys and values."""
        return self.decoder is DecoderKind.ssru

    @property
    def specials(self) -> tuple[int, int, int]:
        return self.pad_id, self.bos_id, self.eos_id
