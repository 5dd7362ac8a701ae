"""BART, mBART, PLBart, Marian (OPUS-MT), M2M100, NLLB, Pegasus and Blenderbot: one network with
small differences."""

from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import torch
from torch import Tensor

from model.importers.checkpoint import Checkpoint
from model.importers.fields import (
    activation,
    common,
    flag,
    number,
    special_ids,
    unsupported,
)
from model.importers.networks.state import StateReader
from model.network.config import Positions, Tied, TransformerConfig
from model.network.transformer import Transformer
from model.network.tying import OUTPUT_WEIGHT, SOURCE_WEIGHT, TARGET_WEIGHT

PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
POSITIONS = "max_position_embeddings"
UNUSED = 2  # rows of a stored position table before position 0
MOST_COMPUTED = 1 << 14  # positions of a computed table; longer texts are not accepted
LEAST_FAIRSEQ = 4  # d_model that its frequencies are defined for
# The matrices of embeddings and output, and the names under which a file may hold each: its own
# first, then the other names of a tied matrix, in the order in which transformers looks for them.
SHARED = "model.shared.weight"
MATRICES = {
    SOURCE_WEIGHT: "model.encoder.embed_tokens.weight",
    TARGET_WEIGHT: "model.decoder.embed_tokens.weight",
    OUTPUT_WEIGHT: "lm_head.weight",
}
TIED_NAMES = (SHARED, MATRICES[OUTPUT_WEIGHT], MATRICES[TARGET_WEIGHT], MATRICES[SOURCE_WEIGHT])


class Table(Enum):
    """Where the position table comes from."""

    stored = auto()  # learned, after unused rows
    whole = auto()  # learned, from position 0
    marian = auto()  # stored from position 0, or else computed: sines, then cosines
    fairseq = auto()  # computed: the same with other frequencies, after as many rows as pad's id


@dataclass(frozen=True, slots=True)
class Variant:
    """How a kind of checkpoint differs from the others."""

    norm_first: bool
    embedding_norm: bool
    table: Table
    activation: str = "gelu"  # where config.json has none
    target_positions_last: bool = False
    scaled: bool = False  # whether embeddings are scaled, where config.json does not say


KINDS = {
    "bart": Variant(norm_first=False, embedding_norm=True, table=Table.stored),
    "mbart": Variant(norm_first=True, embedding_norm=True, table=Table.stored),
    "plbart": Variant(norm_first=False, embedding_norm=True, table=Table.stored, scaled=True),
    "marian": Variant(norm_first=False, embedding_norm=False, table=Table.marian),
    "pegasus": Variant(norm_first=True, embedding_norm=False, table=Table.marian),
    "m2m_100": Variant(
        norm_first=True,
        embedding_norm=False,
        table=Table.fairseq,
        activation="relu",
        scaled=True,
    ),
    "blenderbot": Variant(norm_first=True, embedding_norm=False, table=Table.whole),
    "blenderbot-small": Variant(
        norm_first=False, embedding_norm=True, table=Table.whole, target_positions_last=True
    ),
}
LEARNED = (Table.stored, Table.whole)


def read_bart(checkpoint: Checkpoint) -> Transformer:
    """Return the network. Raise InputError naming what no configuration of ours expresses."""
    kind, reader = KINDS[checkpoint.config["model_type"]], StateReader(checkpoint)
    tied = read_tied(reader)
    config = read_config(checkpoint, kind, tied, reader)
    sides = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    for side, layers in sides.items():
        reader.put(*read_positions(checkpoint, kind.table, side, config))
        if kind.embedding_norm:
            reader.norm(f"{side}.embedding.norm", f"model.{side}.layernorm_embedding")
        for layer in range(layers):
            read_layer(reader, side, layer)
        if kind.norm_first:
            reader.norm(f"{side}.norm", f"model.{side}.layer_norm")
    return reader.build(config)


def read_config(
    checkpoint: Checkpoint, kind: Variant, tied: Tied, reader: StateReader
) -> TransformerConfig:
    d_model, longest = number(checkpoint, "d_model"), number(checkpoint, POSITIONS, 1024)
    if kind.table is Table.fairseq and d_model < LEAST_FAIRSEQ:
        raise unsupported(checkpoint, "d_model", f"at least {LEAST_FAIRSEQ}")
    if kind.table is Table.fairseq and checkpoint.config.get("pad_token_id", 1) is None:
        raise unsupported(checkpoint, "pad_token_id", "an id: positions are counted from it")
    if not any(stored_positions(checkpoint, kind.table, side) for side in ("encoder", "decoder")):
        longest = min(longest, MOST_COMPUTED)
    num_heads = common(checkpoint, "encoder_attention_heads", "decoder_attention_heads")
    if d_model % num_heads:
        raise unsupported(checkpoint, "encoder_attention_heads", f"a divisor of d_model, {d_model}")
    function = checkpoint.config.get("activation_function") or kind.activation
    sizes = len(reader.state[SOURCE_WEIGHT]), len(reader.state["generator.bias"])
    return TransformerConfig(
        source_vocab_size=sizes[0],
        target_vocab_size=sizes[1],
        d_model=d_model,
        d_ff=common(checkpoint, "encoder_ffn_dim", "decoder_ffn_dim"),
        num_heads=num_heads,
        num_encoder_layers=number(checkpoint, "encoder_layers"),
        num_decoder_layers=number(checkpoint, "decoder_layers"),
        norm_first=kind.norm_first,
        embedding_norm=kind.embedding_norm,
        target_positions_last=kind.target_positions_last,
        embedding_scale=0.0 if flag(checkpoint, "scale_embedding", kind.scaled) else 1.0,
        positions=Positions.learned if kind.table in LEARNED else Positions.sinusoidal,
        activation=activation(checkpoint, "activation_function", function),
        tied=tied,
        dropout=0.0,
        max_source_length=longest,
        max_target_length=longest,
        **special_ids(checkpoint, min(sizes)),
    )


def read_positions(
    checkpoint: Checkpoint, table: Table, side: str, config: TransformerConfig
) -> tuple[str, Tensor, str]:
    """Return our name of a side's position table, the table, and its name in the checkpoint."""
    ours, theirs = f"{side}.embedding.positions", f"model.{side}.embed_positions.weight"
    checkpoint.ignore(theirs, f"{theirs}s")
    if not stored_positions(checkpoint, table, side):
        return ours, sinusoidal_table(table, config), theirs
    return ours, checkpoint.tensor(theirs)[UNUSED if table is Table.stored else 0 :], theirs


def stored_positions(checkpoint: Checkpoint, table: Table, side: str) -> bool:
    """Return whether a side's position table is that of the checkpoint, as transformers has it."""
    held = f"model.{side}.embed_positions.weight" in checkpoint
    return table in LEARNED or (table is Table.marian and held)


def read_tied(reader: StateReader) -> Tied:
    """Read the embeddings and the output projection, which may be one matrix under any name."""
    checkpoint, output = reader.checkpoint, MATRICES[OUTPUT_WEIGHT]
    names = {ours: [theirs, *TIED_NAMES] for ours, theirs in MATRICES.items()}
    is_marian = checkpoint.config["model_type"] == "marian"
    if is_marian and not flag(checkpoint, "share_encoder_decoder_embeddings", True):
        names[SOURCE_WEIGHT], names[TARGET_WEIGHT] = (
            [MATRICES[SOURCE_WEIGHT]],
            [MATRICES[TARGET_WEIGHT], output],
        )
        names[OUTPUT_WEIGHT] = [output, MATRICES[TARGET_WEIGHT]]
    tied = reader.matrices(
        {ours: next((n for n in each if n in checkpoint), each[0]) for ours, each in names.items()}
    )
    checkpoint.ignore(SHARED)
    bias = "final_logits_bias"
    if bias in checkpoint:
        reader.put("generator.bias", checkpoint.tensor(bias).flatten(), bias)
    return tied


def read_layer(reader: StateReader, side: str, layer: int) -> None:
    ours, theirs = f"{side}.layers.{layer}", f"model.{side}.layers.{layer}"
    attentions = {"self": "self_attn"} | ({"cross": "encoder_attn"} if side == "decoder" else {})
    for kind, name in attentions.items():
        for part, projection in PROJECTIONS.items():
            reader.linear(f"{ours}.{kind}_attention.{part}", f"{theirs}.{name}.{projection}")
        reader.norm(f"{ours}.{kind}_sublayer.norm", f"{theirs}.{name}_layer_norm")
    reader.linear(f"{ours}.feed_forward.up", f"{theirs}.fc1")
    reader.linear(f"{ours}.feed_forward.down", f"{theirs}.fc2")
    reader.norm(f"{ours}.feed_forward_sublayer.norm", f"{theirs}.final_layer_norm")


def sinusoidal_table(table: Table, config: TransformerConfig) -> Tensor:
    """Return (positions, M) as the checkpoint's own library computes it, sines before cosines.

    fairseq computes angles in float32 and divides exponents by M / 2 - 1.
    """
    d_model, half = config.d_model, config.d_model // 2
    length = max(config.max_source_length, config.max_target_length)
    if table is Table.fairseq:
        frequency = torch.exp(torch.arange(half).float() * -(np.log(10000) / (half - 1)))
        first = config.pad_id + 1
        angles = torch.arange(first, length + first).float().unsqueeze(1) * frequency
        pairs = torch.cat([angles.sin(), angles.cos()], dim=1)
        return torch.nn.functional.pad(pairs, (0, d_model - 2 * half))
    exponents = 2 * (np.arange(d_model) // 2) / d_model
    angles = np.arange(length)[:, None] / np.power(10000, exponents)  # (length, M)
    halves = [np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])]
    return torch.tensor(np.concatenate(halves, axis=1)).float()
