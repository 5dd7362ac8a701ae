"""Read the network of a model of Marian, under the names and in the layout of its own files.

A matrix is stored as (inputs, outputs), and a vector as (1, outputs).
"""

import math

import numpy as np
import torch
from torch import Tensor

from model.importers.checkpoint import MARIAN, Checkpoint
from model.importers.networks.marian_options import MarianOptions, read_options
from model.importers.networks.state import BANNED, TIED, StateReader
from model.network.config import DecoderKind, InputError, Positions, TransformerConfig
from model.network.transformer import Transformer
from model.network.tying import OUTPUT_WEIGHT, SOURCE_WEIGHT, TARGET_WEIGHT

LONGEST = 512  # tokens of a text, where --max-length says nothing: Marian has no limit
EPSILON = 1e-6  # that Marian adds in every norm
LEAST_D_MODEL = 4  # with two rates or more, between which Marian divides
SWISH_SCALE = 1.702  # gelu is about x sigmoid(1.702 x)
PARTS = {"query": "q", "key": "k", "value": "v", "output": "o"}
EOS, UNKNOWN = "</s>", "<unk>"


def read_marian(checkpoint: Checkpoint, max_length: int, eos_id: int) -> Transformer:
    """Return the network, for texts of at most `max_length` tokens.

    Marian's decoder begins with a zero vector in place of a token. Here it begins with a token of
    its own, whose embedding is zero, and which is never generated. It follows the larger
    vocabulary, and the rows of the smaller one are filled up to it.
    Raise InputError naming what no configuration of ours expresses.
    """
    options = read_options(checkpoint)
    reader = MarianReader(checkpoint, options)
    reader.read_embeddings()
    for side, layers in reader.sides.items():
        for layer in range(layers):
            reader.read_layer(side, layer)
        if options.embedding_norm:
            reader.norm(f"{side}.embedding.norm", f"{side}_emb", "_pre")
        if options.final_norm:
            reader.norm(f"{side}.norm", f"{side}_top")
    config = read_config(checkpoint, options, max_length, eos_id)
    table = position_table(max_length, options.d_model)
    for side in reader.sides:
        reader.state.put(f"{side}.embedding.positions", table, "of positions")
    return reader.state.build(config)


def start_id(options: MarianOptions) -> int:
    """Return the id of the token that stands for the zero vector at the start of a target."""
    return max(options.vocab_sizes)


def read_config(
    checkpoint: Checkpoint, options: MarianOptions, max_length: int, eos_id: int
) -> TransformerConfig:
    if options.d_model % 2 or options.d_model < LEAST_D_MODEL:
        raise InputError(
            f"{checkpoint.folder}: {MARIAN} has dim-emb {options.d_model}; expected an even number"
            f" from {LEAST_D_MODEL}"
        )
    rows = start_id(options) + 1
    return TransformerConfig(
        source_vocab_size=rows,
        target_vocab_size=rows,
        d_model=options.d_model,
        d_ff=options.d_ff,
        num_heads=options.num_heads,
        norm_epsilon=EPSILON,
        num_encoder_layers=options.num_encoder_layers,
        num_decoder_layers=options.num_decoder_layers,
        decoder=DecoderKind.ssru if options.ssru else DecoderKind.self_attention,
        norm_first=options.norm_first,
        final_norm=options.final_norm,
        embedding_norm=options.embedding_norm,
        positions=Positions.sinusoidal,
        activation=options.activation,
        tied=TIED[options.one_embedding, options.tied_output],
        dropout=0.0,
        max_source_length=max_length,
        max_target_length=max_length,
        pad_id=start_id(options),
        bos_id=start_id(options),
        eos_id=eos_id,
    )


def position_table(length: int, d_model: int) -> Tensor:
    """Return (length, M) as Marian computes it, in single precision: sines in the first half,
    cosines in the second, and rates that fall from 1 to 1/10000 (their exponents are divided by M/2
    - 1)."""
    half = d_model // 2
    fall = np.float32(math.log(10000)) / np.float32(half - 1)
    rates = np.exp(-np.arange(half, dtype=np.float32) * fall)  # (M / 2,)
    angles = np.arange(length, dtype=np.float32)[:, None] * rates  # (length, M / 2)
    return torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles)], axis=1))


class MarianReader:
    """Gives Marian's tensors our names."""

    def __init__(self, checkpoint: Checkpoint, options: MarianOptions) -> None:
        self.state = StateReader(checkpoint)
        self._checkpoint, self._options = checkpoint, options
        self.sides = {"encoder": options.num_encoder_layers, "decoder": options.num_decoder_layers}

    def read_embeddings(self) -> None:
        """Read the embeddings and the output projection, with a row for the start of a target.

        Raise InputError if they do not have the sizes that the options say.
        """
        options, rows = self._options, start_id(self._options) + 1
        shared = options.one_embedding
        source, target = ("Wemb",) * 2 if shared else ("encoder_Wemb", "decoder_Wemb")
        self.embedding(SOURCE_WEIGHT, source, options.vocab_sizes[0])
        if not shared:
            self.embedding(TARGET_WEIGHT, target, options.vocab_sizes[1])
        output = "decoder_ff_logit_out"
        if not options.tied_output:
            held = f"{output}_Wt" in self._checkpoint
            self.embedding(
                OUTPUT_WEIGHT, f"{output}_W{'t' if held else ''}", options.vocab_sizes[1], held
            )
        bias = torch.zeros(options.vocab_sizes[1])
        if options.output_bias:
            bias = self.vector(f"{output}_b", len(bias))
        banned = torch.full((rows - len(bias),), BANNED, device=bias.device)
        self.state.put("generator.bias", torch.cat([bias.float(), banned]), f"{output}_b")

    def embedding(self, ours: str, theirs: str, size: int, by_token: bool = True) -> None:
        """Read a matrix with a row, or a column, for each token."""
        expected = (size, self._options.d_model) if by_token else (self._options.d_model, size)
        matrix = self.checked(theirs, expected)
        matrix = matrix if by_token else matrix.T  # (V, M)
        more = start_id(self._options) + 1 - size
        filled = torch.cat([matrix, matrix.new_zeros(more, self._options.d_model)])
        self.state.put(ours, filled, theirs)

    def read_layer(self, side: str, layer: int) -> None:
        ours, theirs = f"{side}.layers.{layer}", f"{side}_l{layer + 1}"
        attentions = {"self": "self"} if side == "encoder" else {"self": "self", "cross": "context"}
        if side == "decoder" and self._options.ssru:
            del attentions["self"]
            self.read_ssru(ours, f"{theirs}_rnn")
        for kind, name in attentions.items():
            for part, letter in PARTS.items():
                place = f"{theirs}_{name}_"
                self.linear(
                    f"{ours}.{kind}_attention.{part}", f"{place}W{letter}", f"{place}b{letter}"
                )
            self.sublayer_norm(f"{ours}.{kind}_sublayer.norm", f"{theirs}_{name}_Wo")
        scale = SWISH_SCALE if self._options.approximates else 1.0
        place = f"{theirs}_ffn_"
        self.linear(f"{ours}.feed_forward.up", f"{place}W1", f"{place}b1", scale, scale)
        self.linear(f"{ours}.feed_forward.down", f"{place}W2", f"{place}b2", 1 / scale)
        self.sublayer_norm(f"{ours}.feed_forward_sublayer.norm", f"{theirs}_ffn_ffn")

    def read_ssru(self, ours: str, theirs: str) -> None:
        self.state.put(
            f"{ours}.ssru.values.weight", self._checkpoint.tensor(f"{theirs}_W").T, f"{theirs}_W"
        )
        self.linear(f"{ours}.ssru.forget_gate", f"{theirs}_Wf", f"{theirs}_bf")
        place = theirs if self._options.norm_first else f"{theirs}_ffn"
        self.sublayer_norm(f"{ours}.self_sublayer.norm", place)

    def linear(
        self, ours: str, weight: str, bias: str, scale: float = 1.0, bias_scale: float = 1.0
    ) -> None:
        """Read a projection; both parts are multiplied by numbers."""
        matrix = self._checkpoint.tensor(weight).T  # (outputs, inputs)
        self.state.put(f"{ours}.weight", matrix.float() * scale, weight)
        vector = self.vector(bias, len(matrix)).float()
        self.state.put(f"{ours}.bias", vector * bias_scale, bias)

    def sublayer_norm(self, ours: str, theirs: str) -> None:
        self.norm(ours, theirs, "_pre" if self._options.norm_first else "")

    def norm(self, ours: str, theirs: str, ending: str = "") -> None:
        for part, name in {"weight": "scale", "bias": "bias"}.items():
            name = f"{theirs}_ln_{name}{ending}"
            self.state.put(f"{ours}.{part}", self.vector(name, self._options.d_model), name)

    def vector(self, name: str, size: int) -> Tensor:
        return self.checked(name, (1, size)).flatten()

    def checked(self, name: str, expected: tuple[int, ...]) -> Tensor:
        """Return a tensor. Raise InputError if its shape is another one."""
        if (found := self._checkpoint.shape(name)) != expected:
            raise InputError(
                f"{self._checkpoint.folder}: tensor {name} has shape {found} and {MARIAN} describes"
                f" {expected}"
            )
        return self._checkpoint.tensor(name)
