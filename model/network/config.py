"""What a Transformer is, in numbers."""

from dataclasses import dataclass
from enum import StrEnum


class ScoreFunction(StrEnum):
    scaled_dot_product = "scaled_dot_product"  # q . k / sqrt(d_qk), Vaswani et al. 2017
    additive = "additive"  # w . tanh(q + k), Bahdanau et al. 2015; q and k come projected
    gaussian = "gaussian"  # -|width (q - k)|^2 / 2, Nadaraya 1964 and Watson 1964


class NormKind(StrEnum):
    layer_norm = "layer_norm"  # torch's: biased variance, epsilon inside the root
    unbiased_layer_norm = "unbiased_layer_norm"  # a (x - mean) / (std + epsilon) + b


class InputError(Exception):
    """What a person gave cannot be used; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """The defaults are those of "Attention Is All You Need" (Vaswani et al. 2017), base model.

    Lengths count positions: every id that enters the encoder or the decoder, specials included.
    Raises InputError when the numbers contradict each other.
    """

    source_vocab_size: int
    target_vocab_size: int
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    d_qk: int = 0  # width of a head's queries and keys; 0: d_model / num_heads
    d_v: int = 0  # width of a head's values; 0: d_model / num_heads
    score_function: ScoreFunction = ScoreFunction.scaled_dot_product
    norm: NormKind = NormKind.layer_norm
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    norm_first: bool = (
        False  # False: the paper, norm(x + f(x)); True: x + f(norm(x)) and a final norm
    )
    rotary: bool = False  # True: queries and keys of self-attention turn by position, too
    dropout: float = 0.1
    max_source_length: int = 512
    max_target_length: int = 512
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2

    def __post_init__(self) -> None:
        self._check_sizes()
        for name, enum in (("score_function", ScoreFunction), ("norm", NormKind)):
            if getattr(self, name) not in list(enum):
                known = ", ".join(enum)
                raise InputError(f"{name} is {getattr(self, name)!r}: give one of {known}")
            object.__setattr__(self, name, enum(getattr(self, name)))
        self._set_head_widths()
        if self.rotary:
            self._check_rotary()
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout {self.dropout} is outside [0, 1)")
        smallest = min(self.source_vocab_size, self.target_vocab_size)
        if not 0 <= min(self.specials) <= max(self.specials) < smallest:
            raise InputError(f"special ids {self.specials} must lie in [0, {smallest})")

    def _set_head_widths(self) -> None:
        for name in ("d_qk", "d_v"):
            if not getattr(self, name):
                object.__setattr__(self, name, self.d_model // self.num_heads)
                if self.d_model % self.num_heads:
                    raise InputError(
                        f"d_model {self.d_model} is not a multiple of {self.num_heads} heads:"
                        f" give {name}"
                    )

    def _check_rotary(self) -> None:
        if self.d_qk % 2:
            raise InputError(f"rotary turns pairs of numbers: d_qk {self.d_qk} must be even")
        if self.score_function == ScoreFunction.additive:
            raise InputError(
                "additive scores of turned queries and keys tell no distance: no rotary"
            )

    def _check_sizes(self) -> None:
        counts = ("d_model", "d_ff", "num_heads", "num_encoder_layers", "num_decoder_layers")
        for name in (*counts, "max_source_length", "max_target_length"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}: give at least 1")
        if self.norm == NormKind.unbiased_layer_norm and self.d_model < 2:
            raise InputError("d_model is 1: the unbiased deviation needs at least 2")
        if min(self.d_qk, self.d_v) < 0:
            raise InputError(f"head widths {self.d_qk} and {self.d_v}: give 0 or more")

    @property
    def specials(self) -> tuple[int, int, int]:
        return self.pad_id, self.bos_id, self.eos_id
