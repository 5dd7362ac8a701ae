"""T5, T5 1.1, FLAN, mT5, UMT5 and MADLAD."""

import math

import torch
from torch import Tensor

from model.importers.checkpoint import Checkpoint
from model.importers.fields import (
    activation,
    check_architecture,
    number,
    special_ids,
    unsupported,
)
from model.importers.state import StateReader
from model.network.config import InputError, NormKind, Positions, Tied, TransformerConfig
from model.network.transformer import Transformer

KINDS = ("t5", "mt5", "umt5")
LONGEST = 512  # tokens of a text: T5 was trained on so many
EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
OUTPUT = "lm_head.weight"
PROJECTIONS = {"query": "q", "key": "k", "value": "v", "output": "o"}


def read_t5(checkpoint: Checkpoint, max_length: int) -> Transformer:
    """Return the network, for texts of at most `max_length` tokens: T5 has no limit of its own.

    Raise InputError naming what no configuration of ours expresses.
    """
    check_architecture(checkpoint)
    reader = StateReader(checkpoint)
    tied = read_embeddings(reader)
    config = read_config(checkpoint, tied, max_length)
    sides = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    for side, layers in sides.items():
        for layer in range(layers):
            read_block(reader, side, layer, config)
        read_biases(reader, side, config)
        reader.norm(f"{side}.norm", f"{side}.final_layer_norm")
    if is_scaled(checkpoint):  # the output projection reads the hidden states times d_model^-0.5
        scaled = reader.state["decoder.norm.weight"] * config.d_model**-0.5
        reader.state["decoder.norm.weight"] = scaled
    return reader.build(config)


def read_config(checkpoint: Checkpoint, tied: Tied, max_length: int) -> TransformerConfig:
    d_kv = number(checkpoint, "d_kv", 64)
    named = str(checkpoint.config.get("feed_forward_proj", "relu"))
    gated, _, function = named.rpartition("-")
    if gated not in ("", "gated"):
        raise unsupported(checkpoint, "feed_forward_proj", "relu or gated-gelu")
    function = "gelu_new" if named == "gated-gelu" else function
    layers = number(checkpoint, "num_layers")
    vocab_size = number(checkpoint, "vocab_size")
    return TransformerConfig(
        source_vocab_size=vocab_size,
        target_vocab_size=vocab_size,
        d_model=number(checkpoint, "d_model"),
        d_ff=number(checkpoint, "d_ff"),
        num_heads=number(checkpoint, "num_heads"),
        d_qk=d_kv,
        d_v=d_kv,
        norm=NormKind.rms_norm,
        norm_epsilon=float(checkpoint.config.get("layer_norm_epsilon", 1e-6)),
        num_encoder_layers=layers,
        num_decoder_layers=number(checkpoint, "num_decoder_layers", layers),
        norm_first=True,
        embedding_scale=1.0,
        positions=Positions.none,
        relative_distance=number(checkpoint, "relative_attention_max_distance", 128),
        relative_per_layer=checkpoint.config["model_type"] == "umt5",
        activation=activation(checkpoint, "feed_forward_proj", function),
        gated=bool(gated),
        tied=tied,
        dropout=0.0,
        max_source_length=max_length,
        max_target_length=max_length,
        **special_ids(checkpoint),
    )


def is_scaled(checkpoint: Checkpoint) -> bool:
    """Return whether hidden states are scaled before the output projection.

    T5 1.0 scales them. A configuration without `scale_decoder_outputs` is that of a later version
    only if its `tie_word_embeddings` is false.
    """
    config = checkpoint.config
    if config["model_type"] == "mt5":
        return False
    scaled = config.get("scale_decoder_outputs")
    return config.get("tie_word_embeddings") is not False if scaled is None else bool(scaled)


def read_embeddings(reader: StateReader) -> Tied:
    """Read the embeddings and the output projection, and return which are tied.

    The values are compared, because configurations are often wrong about it.
    """
    checkpoint = reader.checkpoint
    held = [name for name in EMBEDDINGS if name in checkpoint]
    embedding = checkpoint.tensor(held[0] if held else EMBEDDINGS[0])
    for name in held[1:]:
        if not torch.equal(checkpoint.tensor(name), embedding):
            raise InputError(
                f"{checkpoint.folder}: tensors {held[0]} and {name} differ, but T5 has one"
                " embedding: a model with two cannot be converted"
            )
    reader.put("encoder.embedding.tokens.weight", embedding, held[0])
    reader.put("generator.bias", torch.zeros(len(embedding)), held[0])
    if OUTPUT not in checkpoint or torch.equal(checkpoint.tensor(OUTPUT), embedding):
        return Tied.all
    reader.copy("generator.weight", OUTPUT)
    return Tied.embeddings


def read_block(reader: StateReader, side: str, layer: int, config: TransformerConfig) -> None:
    ours, theirs = f"{side}.layers.{layer}", f"{side}.block.{layer}.layer"
    attentions = {"self": "SelfAttention"}
    if side == "decoder":
        attentions["cross"] = "EncDecAttention"
    for place, (kind, name) in enumerate(attentions.items()):
        for part, projection in PROJECTIONS.items():
            # T5 does not divide scores by sqrt(d_qk), which ours do
            scale = math.sqrt(config.d_qk) if part == "query" else 1.0
            attention = f"{theirs}.{place}.{name}"
            reader.linear(f"{ours}.{kind}_attention.{part}", f"{attention}.{projection}", scale)
        reader.norm(f"{ours}.{kind}_sublayer.norm", f"{theirs}.{place}.layer_norm")
    last = f"{theirs}.{len(attentions)}"
    names = {"gate": "wi_0", "up": "wi_1"} if config.gated else {"up": "wi"}
    for part, name in {**names, "down": "wo"}.items():
        reader.linear(f"{ours}.feed_forward.{part}", f"{last}.DenseReluDense.{name}")
    reader.norm(f"{ours}.feed_forward_sublayer.norm", f"{last}.layer_norm")
    # some old checkpoints have a bias of cross-attention that nothing reads
    reader.checkpoint.ignore(f"{theirs}.1.EncDecAttention.relative_attention_bias.weight")


def read_biases(reader: StateReader, side: str, config: TransformerConfig) -> None:
    """Write the biases of T5's buckets as one row for each distance."""
    buckets = number(reader.checkpoint, "relative_attention_num_buckets", 32)
    causal, longest = side == "decoder", config.relative_distance
    distances = torch.arange(0 if causal else -longest, longest + 1)
    rows = bucket_of(distances, buckets, longest, causal=causal)
    layers = config.num_decoder_layers if causal else config.num_encoder_layers
    for layer in range(layers if config.relative_per_layer else 1):
        name = f"{side}.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight"
        table = reader.checkpoint.tensor(name)
        if len(table) != buckets:
            raise unsupported(reader.checkpoint, "relative_attention_num_buckets", f"{len(table)}")
        reader.put(f"{side}.relative.{layer}.table", table[rows], name)


def bucket_of(distance: Tensor, buckets: int, longest: int, *, causal: bool) -> Tensor:
    """Return the bucket of each distance, query minus key (Raffel et al. 2020, section 2.1).

    Half of the buckets of a direction are single distances; the others grow by equal factors, up
    to `longest`. Without `causal`, later keys have the second half of all buckets. Computed in
    float32, as the checkpoint's library does: a distance on the edge of a bucket falls where it did
    in training.
    """
    offset = torch.zeros_like(distance)
    if not causal:
        buckets //= 2
        offset = (distance < 0) * buckets
    far, exact = distance.abs(), buckets // 2
    growth = torch.log(far.clamp(min=1).float() / exact) / math.log(longest / exact)
    grown = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
    return offset + torch.where(far < exact, far, grown)
