"""T5, T5 1.1, FLAN, mT5, UMT5 and MADLAD."""

import math

import torch
from torch import Tensor

from model.importers.checkpoint import Checkpoint
from model.importers.fields import (
    activation,
    epsilon,
    flag,
    number,
    special_ids,
    unsupported,
)
from model.importers.networks.state import StateReader, same
from model.network.config import (
    Activation,
    InputError,
    NormKind,
    Positions,
    Tied,
    TransformerConfig,
)
from model.network.transformer import Transformer
from model.network.tying import OUTPUT_WEIGHT, SOURCE_WEIGHT, TARGET_WEIGHT

KINDS = ("t5", "mt5", "umt5")
LONGEST = 512  # tokens of a text, as many as T5 was trained on
EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
HEAD = "lm_head.weight"
BUCKETS, DISTANCE = "relative_attention_num_buckets", "relative_attention_max_distance"
LEAST_BUCKETS = 4  # in each direction one for a single distance, and one for all others
PROJECTIONS = {"query": "q", "key": "k", "value": "v", "output": "o"}


def read_t5(checkpoint: Checkpoint, max_length: int) -> Transformer:
    """Return the network, for texts of at most `max_length` tokens: T5 has no limit of its own.

    Raise InputError naming what no configuration of ours expresses.
    """
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
    function, gated = read_feed_forward(checkpoint)
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
        norm_epsilon=epsilon(checkpoint, "layer_norm_epsilon", 1e-6),
        num_encoder_layers=layers,
        num_decoder_layers=number(checkpoint, "num_decoder_layers", layers),
        norm_first=True,
        embedding_scale=1.0,
        positions=Positions.none,
        relative_distance=longest_distance(checkpoint, max_length),
        relative_per_layer=checkpoint.config["model_type"] == "umt5",
        activation=function,
        gated=gated,
        tied=tied,
        dropout=0.0,
        max_source_length=max_length,
        max_target_length=max_length,
        **special_ids(checkpoint, vocab_size),
    )


def read_feed_forward(checkpoint: Checkpoint) -> tuple[Activation, bool]:
    """Return the activation, and whether it is gated: feed_forward_proj has both in one name.
    Fields that transformers derives from it count before it if config.json has them."""
    name, config = "feed_forward_proj", checkpoint.config
    given = config.get(name)
    if given is None:
        given = "relu" if config["model_type"] == "t5" else "gated-gelu"
    gated, _, function = str(given).rpartition("-")
    if gated not in ("", "gated"):
        raise unsupported(checkpoint, name, "relu or gated-gelu")
    function = "gelu_new" if given == "gated-gelu" else function
    if config.get("dense_act_fn") is not None:
        name, function = "dense_act_fn", config["dense_act_fn"]
    return activation(checkpoint, name, function), flag(checkpoint, "is_gated_act", bool(gated))


def is_scaled(checkpoint: Checkpoint) -> bool:
    """Return whether hidden states are scaled before the output projection, as transformers 5 does.

    T5 1.0 scales them. A configuration without `scale_decoder_outputs` is that of a later version
    only if its `tie_word_embeddings` is false. mT5 never scales, and UMT5 always does.
    """
    config = checkpoint.config
    if config["model_type"] != "t5":
        return config["model_type"] == "umt5"
    if "scale_decoder_outputs" in config:
        return bool(config["scale_decoder_outputs"])
    return config.get("tie_word_embeddings") is not False


def read_embeddings(reader: StateReader) -> Tied:
    """Read the embeddings and the output projection, and return which are tied.

    The values are compared, because configurations are often wrong about it.
    """
    checkpoint = reader.checkpoint
    held = [name for name in EMBEDDINGS if name in checkpoint]
    head = [HEAD] if HEAD in checkpoint else []
    # a tied matrix may be stored under the name of the output alone
    source = next(iter((*held, *head)), EMBEDDINGS[0])
    copies = {name: checkpoint.numbers(name) for name in held} if len(held) > 1 else {}
    for name, copy in copies.items():
        if not same(copy, copies[source]):
            raise InputError(
                f"{checkpoint.folder}: tensors {held[0]} and {name} differ, but T5 has one"
                " embedding: a model with two cannot be converted"
            )
    return reader.matrices(
        {SOURCE_WEIGHT: source, TARGET_WEIGHT: source, OUTPUT_WEIGHT: (*head, source)[0]}
    )


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


def longest_distance(checkpoint: Checkpoint, max_length: int) -> int:
    """Return the distance from which on all have one bias, or the longest in a text if none has."""
    buckets, longest = number(checkpoint, BUCKETS, 32), number(checkpoint, DISTANCE, 128)
    if buckets < LEAST_BUCKETS:
        raise unsupported(checkpoint, BUCKETS, f"at least {LEAST_BUCKETS}")
    reached = longest > buckets // 2  # all single distances lie below it
    return max(1, min(longest, max_length - 1) if reached else max_length - 1)


def read_biases(reader: StateReader, side: str, config: TransformerConfig) -> None:
    """Write the biases of T5's buckets as one row for each distance.

    Raise InputError if a distance has no bucket: transformers fails on such texts.
    """
    checkpoint, causal = reader.checkpoint, side == "decoder"
    buckets, longest = number(checkpoint, BUCKETS, 32), number(checkpoint, DISTANCE, 128)
    largest = config.relative_distance
    distances = torch.arange(0 if causal else -largest, largest + 1)
    rows = bucket_of(distances, buckets, longest, causal=causal)
    if (rows < 0).any():
        least = int(distances[rows < 0].abs().min())
        raise unsupported(
            checkpoint,
            DISTANCE,
            f"more than {buckets // 2}, because tokens {least} apart have no bucket: correct it, or"
            f" give --max-length {least}",
        )
    layers = config.num_decoder_layers if causal else config.num_encoder_layers
    for layer in range(layers if config.relative_per_layer else 1):
        name = f"{side}.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight"
        table = checkpoint.tensor(name)
        if len(table) != buckets:
            raise unsupported(checkpoint, BUCKETS, f"{len(table)}")
        reader.put(f"{side}.relative.{layer}.table", table[rows], name)


def bucket_of(distance: Tensor, buckets: int, longest: int, *, causal: bool) -> Tensor:
    """Return the bucket of each distance, query minus key (Raffel et al. 2020, section 2.1).

    Half of the buckets of a direction are single distances; the others grow by equal factors, up
    to `longest`; -1 if there is none. Without `causal`, later keys have the second half of all
    buckets. Computed in float32, as the checkpoint's library does: a distance on the edge of a
    bucket falls where it did in training.
    """
    offset = torch.zeros_like(distance)
    if not causal:
        buckets //= 2
        offset = (distance < 0) * buckets
    far, exact = distance.abs(), buckets // 2
    slope = math.log(longest / exact)
    if slope == 0:
        return torch.where(far < exact, offset + far, -1)
    growth = torch.log(far.clamp(min=1).float() / exact) / slope
    grown = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
    found = torch.where(far < exact, far, grown)
    return torch.where(found < 0, -1, offset + found)
