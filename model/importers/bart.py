"""BART, mBART, Marian (OPUS-MT), M2M100, NLLB and Pegasus: one network with small differences."""

from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import torch
from torch import Tensor

from model.importers.checkpoint import Checkpoint
from model.importers.fields import (
    activation,
    check_architecture,
    common,
    number,
    special_ids,
)
from model.importers.state import StateReader
from model.network.config import Positions, Tied, TransformerConfig
from model.network.transformer import Transformer
from model.network.tying import OUTPUT, SOURCE, TARGET

PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
UNUSED = 2  # rows of a position table before position 0


class Table(Enum):
    """Where the position table comes from."""

    stored = auto()  # learned, after unused rows
    marian = auto()  # sines, then cosines
    fairseq = auto()  # the same with other frequencies, after unused rows


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind of checkpoint differs from the others."""

    norm_first: bool
    embedding_norm: bool
    table: Table


KINDS = {
    "bart": Kind(norm_first=False, embedding_norm=True, table=Table.stored),
    "mbart": Kind(norm_first=True, embedding_norm=True, table=Table.stored),
    "marian": Kind(norm_first=False, embedding_norm=False, table=Table.marian),
    "pegasus": Kind(norm_first=True, embedding_norm=False, table=Table.marian),
    "m2m_100": Kind(norm_first=True, embedding_norm=False, table=Table.fairseq),
}


def read_bart(checkpoint: Checkpoint) -> Transformer:
    """Return the network. Raise InputError naming what no configuration of ours expresses."""
    check_architecture(checkpoint)
    kind, reader = KINDS[checkpoint.config["model_type"]], StateReader(checkpoint)
    tied = read_embeddings(reader)
    config = read_config(checkpoint, kind, tied, reader)
    sides = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    for side, layers in sides.items():
        positions = f"model.{side}.embed_positions.weight"
        if kind.table is Table.stored:
            table = checkpoint.tensor(positions)[UNUSED:]
        else:
            checkpoint.ignore(positions, f"model.{side}.embed_positions.weights")
            table = sinusoidal_table(kind.table, config)
        reader.put(f"{side}.embedding.positions", table, positions)
        if kind.embedding_norm:
            reader.norm(f"{side}.embedding.norm", f"model.{side}.layernorm_embedding")
        for layer in range(layers):
            read_layer(reader, side, layer)
        if kind.norm_first:
            reader.norm(f"{side}.norm", f"model.{side}.layer_norm")
    return reader.build(config)


def read_config(
    checkpoint: Checkpoint, kind: Kind, tied: Tied, reader: StateReader
) -> TransformerConfig:
    theirs = checkpoint.config
    longest = number(checkpoint, "max_position_embeddings", 1024)
    named = str(theirs.get("activation_function", "gelu"))
    return TransformerConfig(
        source_vocab_size=len(reader.state[SOURCE]),
        target_vocab_size=len(reader.state["generator.bias"]),
        d_model=number(checkpoint, "d_model"),
        d_ff=common(checkpoint, "encoder_ffn_dim", "decoder_ffn_dim"),
        num_heads=common(checkpoint, "encoder_attention_heads", "decoder_attention_heads"),
        num_encoder_layers=number(checkpoint, "encoder_layers"),
        num_decoder_layers=number(checkpoint, "decoder_layers"),
        norm_first=kind.norm_first,
        embedding_norm=kind.embedding_norm,
        embedding_scale=0.0 if theirs.get("scale_embedding") else 1.0,
        positions=Positions.learned if kind.table is Table.stored else Positions.sinusoidal,
        activation=activation(checkpoint, "activation_function", named),
        tied=tied,
        dropout=0.0,
        max_source_length=longest,
        max_target_length=longest,
        **special_ids(checkpoint),
    )


def read_embeddings(reader: StateReader) -> Tied:
    """Read the embeddings and the output projection, which may be one matrix."""
    checkpoint = reader.checkpoint
    decoder = "model.decoder.embed_tokens.weight"
    shared = "model.shared.weight" if "model.shared.weight" in checkpoint else decoder
    names = {SOURCE: "model.encoder.embed_tokens.weight", TARGET: decoder, OUTPUT: "lm_head.weight"}
    tied = reader.matrices(
        {ours: name if name in checkpoint else shared for ours, name in names.items()}
    )
    checkpoint.ignore("model.shared.weight")
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
        angles = torch.arange(UNUSED, length + UNUSED).float().unsqueeze(1) * frequency
        pairs = torch.cat([angles.sin(), angles.cos()], dim=1)
        return torch.nn.functional.pad(pairs, (0, d_model - 2 * half))
    exponents = 2 * (np.arange(d_model) // 2) / d_model
    angles = np.arange(length)[:, None] / np.power(10000, exponents)  # (length, M)
    halves = [np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])]
    return torch.tensor(np.concatenate(halves, axis=1)).float()
