"""The measured models: random weights, the same in every system, that never generate eos."""

import dataclasses
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.kit import results
from benchmarks.kit.process import REPOSITORY
from model.checkpoint import TrainedModel, load_config, load_tokenizers
from model.data.tokenizers import Unit, build_tokenizer
from model.export.bundle import WeightType, write_bundle
from model.export.files.manifest import Card, Precision
from model.importers.networks.t5 import bucket_of
from model.network.config import NormKind, Positions, Tied, TransformerConfig
from model.network.positions import RelativeBias
from model.network.transformer import DecoderLayer, Transformer
from service.settings.settings import DEFAULT_BUNDLE


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model and its usual call: sources of `length` tokens, decoded to the same length."""

    name: str
    config: TransformerConfig
    length: int
    precisions: tuple[results.MeasuredPrecision, ...] = results.PRECISIONS  # to measure


BASE = MeasuredModel(
    "base",
    TransformerConfig(
        source_vocab_size=32000,
        target_vocab_size=32000,
        norm_first=True,
        max_source_length=1024,
        max_target_length=513,
    ),
    length=32,
)
SMALL = MeasuredModel(
    "small",
    dataclasses.replace(
        BASE.config,
        source_vocab_size=40,
        target_vocab_size=60,
        d_model=256,
        embedding_scale=0,  # sqrt(d_model); replace() would keep that of BASE
        d_ff=1024,
        num_heads=4,
        d_qk=64,
        d_v=64,
        num_encoder_layers=4,
        num_decoder_layers=4,
    ),
    length=8,
)

DEFAULT = MeasuredModel(  # CTranslate2 cannot compute rotary positions with sinusoidal ones
    "default", dataclasses.replace(load_config(DEFAULT_BUNDLE), rotary=False), length=8
)
SHARED = dataclasses.replace(BASE.config, tied=Tied.all)
MARIAN = MeasuredModel(  # the sizes of OPUS-MT
    "Marian",
    dataclasses.replace(SHARED, source_vocab_size=58101, target_vocab_size=58101),
    length=32,
)
T5 = MeasuredModel(  # the sizes of T5-small
    "T5",
    dataclasses.replace(
        SHARED,
        source_vocab_size=32128,
        target_vocab_size=32128,
        embedding_scale=1,
        norm=NormKind.rms_norm,
        norm_epsilon=1e-6,
        positions=Positions.none,
        relative_distance=128,
    ),
    length=32,
)
NLLB = MeasuredModel(  # the sizes of NLLB-600M
    "NLLB",
    dataclasses.replace(
        SHARED,
        source_vocab_size=256206,
        target_vocab_size=256206,
        d_model=1024,
        embedding_scale=0,  # sqrt(d_model), as above
        d_ff=4096,
        num_heads=16,
        d_qk=64,
        d_v=64,
        num_encoder_layers=12,
        num_decoder_layers=12,
    ),
    length=32,
    precisions=("int8",),
)

SENTENCES = REPOSITORY / "tests" / "service" / "real" / "sentences.en.txt"  # one a line

BUCKETS = 32  # of T5's relative positions, in each direction of the decoder


def random_model(config: TransformerConfig) -> Transformer:
    """Return a model that never generates a special id. With RMSNorm it has no other biases."""
    torch.manual_seed(0)
    model = Transformer(config).eval()
    with torch.no_grad():
        if config.norm == NormKind.rms_norm:
            for module in model.modules():
                if isinstance(module, nn.Linear):
                    module.bias.zero_()
        for each in model.modules():
            if isinstance(each, RelativeBias):
                each.table.copy_(torch.randn(BUCKETS, config.num_heads)[buckets_of(each)])
        model.generator.bias[[config.pad_id, config.bos_id, config.eos_id]] = -1e4
    return model


def buckets_of(bias: RelativeBias) -> Tensor:
    """Return the bucket of each row of a table of biases."""
    distances = torch.arange(bias.least, bias.longest + 1)
    return bucket_of(distances, BUCKETS, bias.longest, causal=not bias.least)


def lettered(config: TransformerConfig) -> TrainedModel:
    """Return a random model with a tokenizer of letters on both sides, for calls that send ids."""
    letters = build_tokenizer([string.ascii_lowercase], Unit.characters)
    return TrainedModel(random_model(config), letters, letters)


def with_words(config: TransformerConfig, texts: Sequence[str]) -> TrainedModel:
    """Return a random model that has a token for each word of the texts, and for other words as
    many as its vocabulary holds."""
    count = len(build_tokenizer(texts, Unit.words).get_vocab())
    others = " ".join(f"word{i}" for i in range(config.source_vocab_size - count))
    tokenizer = build_tokenizer([*texts, others], Unit.words)
    return TrainedModel(random_model(config), tokenizer, tokenizer)


def mean_words(texts: Sequence[str]) -> int:
    """Return the words of a text on average: the tokens of its target, which never ends itself."""
    return round(sum(len(text.split()) for text in texts) / len(texts))


def like_the_default() -> TrainedModel:
    """Return a random model with the sizes and tokenizers of the default model."""
    return TrainedModel(random_model(DEFAULT.config), *load_tokenizers(DEFAULT_BUNDLE))


def write_models(
    trained: TrainedModel, folder: Path, precision: Precision = Precision.both
) -> None:
    """Write the bundle `folder`/heed, and `folder`/ctranslate2."""
    card = Card(name="random", task="-", licence="CC0-1.0", attribution="-", notice="-")
    write_bundle(trained, card, WeightType.fp32, folder / "heed", precision)
    write_ctranslate2(trained.transformer, folder / "ctranslate2")


def write_ctranslate2(model: Transformer, folder: Path) -> None:
    """Write the weights as CTranslate2's own specification of a Transformer.

    The model must not have rotary positions: with them, CTranslate2 ignores sinusoidal ones.
    """
    config = model.config
    assert not config.rotary, "CTranslate2 cannot combine rotary and sinusoidal positions"
    spec = ctranslate2.specs.TransformerSpec.from_config(
        (config.num_encoder_layers, config.num_decoder_layers),
        config.num_heads,
        pre_norm=config.norm_first,
        activation=ctranslate2.specs.Activation.RELU,
        relative_attention_bias=config.relative_distance > 0,
        rms_norm=config.norm == NormKind.rms_norm,
    )
    sides = ((spec.encoder, model.encoder), (spec.decoder, model.decoder))
    for side, ours in sides:
        embeddings = side.embeddings[0] if side is spec.encoder else side.embeddings
        embeddings.weight = ours.embedding.tokens.weight.detach().numpy()
        if (positions := ours.embedding.positions) is not None:
            side.position_encodings.encodings = positions.numpy()
        side.scale_embeddings = config.embedding_scale != 1
        copy_norm(side.layer_norm, ours.norm)
        for layer, our_layer in zip(side.layer, ours.layers, strict=True):
            copy_to_ctranslate2(layer, our_layer)
            for bias in ours.relative:
                copy_relative_bias(layer.self_attention, bias)
    copy_linear(spec.decoder.projection, [model.generator])
    spec.config.decoder_start_token, spec.config.bos_token = str(config.bos_id), str(config.bos_id)
    spec.config.eos_token, spec.config.unk_token = str(config.eos_id), "3"
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.register_source_vocabulary(id_tokens(config.source_vocab_size))
    spec.register_target_vocabulary(id_tokens(config.target_vocab_size))
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True)
    spec.save(str(folder))


def id_tokens(count: int) -> list[str]:
    """Return a vocabulary in which every id is its own token: CTranslate2 takes texts only."""
    return [str(index) for index in range(count)]


def copy_to_ctranslate2(layer: Any, ours: Any) -> None:
    """Copy a layer. `Any`: CTranslate2 declares no attributes, and ModuleList no layer types."""
    own = ours.self_attention
    copy_linear(layer.self_attention.linear[0], [own.query, own.key, own.value])
    copy_linear(layer.self_attention.linear[1], [own.output])
    copy_norm(layer.self_attention.layer_norm, ours.self_sublayer.norm)
    if isinstance(ours, DecoderLayer):
        cross = ours.cross_attention
        copy_linear(layer.attention.linear[0], [cross.query])
        copy_linear(layer.attention.linear[1], [cross.key, cross.value])
        copy_linear(layer.attention.linear[2], [cross.output])
        copy_norm(layer.attention.layer_norm, ours.cross_sublayer.norm)
    copy_linear(layer.ffn.linear_0, [ours.feed_forward.up])
    copy_linear(layer.ffn.linear_1, [ours.feed_forward.down])
    copy_norm(layer.ffn.layer_norm, ours.feed_forward_sublayer.norm)


def copy_linear(spec: Any, layers: list[nn.Linear]) -> None:
    spec.weight = torch.cat([layer.weight for layer in layers]).detach().numpy()
    bias = torch.cat([layer.bias for layer in layers]).detach()
    if bias.any():
        spec.bias = bias.numpy()


def copy_norm(spec: Any, norm: Any) -> None:
    spec.gamma = norm.weight.detach().numpy()
    if not isinstance(norm, nn.RMSNorm):
        spec.beta = norm.bias.detach().numpy()


def copy_relative_bias(spec: Any, ours: Any) -> None:
    """Copy the bias of each bucket: all rows of a bucket are equal in `random_model`."""
    tables = torch.zeros(BUCKETS, ours.table.size(1))
    tables[buckets_of(ours)] = ours.table.detach()
    spec.relative_attention_bias = tables.numpy()
    spec.relative_attention_max_distance = np.int32(ours.longest)
