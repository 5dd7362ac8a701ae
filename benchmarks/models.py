"""The measured models: random weights, the same in every system, that never generate eos."""

import dataclasses
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ctranslate2
import torch
from torch import nn

from benchmarks import results
from model.checkpoint import TrainedModel, load_config, load_tokenizers
from model.data.tokenizers import Unit, build_tokenizer
from model.export.bundle import WeightType, write_bundle
from model.export.manifest import Card, Precision
from model.network.config import Tied, TransformerConfig
from model.network.transformer import DecoderLayer, Transformer
from service.settings import DEFAULT_BUNDLE


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model and its usual call: sources of `length` tokens, each decoded to as many."""

    name: str
    config: TransformerConfig
    length: int
    precisions: tuple[results.Precision, ...] = results.PRECISIONS  # to measure


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

SHARED = dataclasses.replace(BASE.config, tied=Tied.all)
MARIAN = MeasuredModel(  # the sizes of OPUS-MT
    "Marian",
    dataclasses.replace(SHARED, source_vocab_size=58101, target_vocab_size=58101),
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


def random_model(config: TransformerConfig) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(config).eval()
    with torch.no_grad():
        model.generator.bias[[config.pad_id, config.bos_id, config.eos_id]] = -1e4
    return model


def lettered(config: TransformerConfig) -> TrainedModel:
    """Return a random model with a tokenizer of letters on both sides, for calls that send ids."""
    letters = build_tokenizer([string.ascii_lowercase], Unit.characters)
    return TrainedModel(random_model(config), letters, letters)


def like_the_default() -> TrainedModel:
    """Return a random model with the sizes and tokenizers of the default model, without rotary.

    The default model itself has rotary positions beside sinusoidal ones. CTranslate2 cannot compute
    that, so the two servers could not run the same weights.
    """
    config = dataclasses.replace(load_config(DEFAULT_BUNDLE), rotary=False)
    return TrainedModel(random_model(config), *load_tokenizers(DEFAULT_BUNDLE))


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
    )
    sides = ((spec.encoder, model.encoder), (spec.decoder, model.decoder))
    for side, ours in sides:
        embeddings = side.embeddings[0] if side is spec.encoder else side.embeddings
        embeddings.weight = ours.embedding.tokens.weight.detach().numpy()
        positions = ours.embedding.positions
        assert positions is not None, "CTranslate2 is given a table of positions"
        side.position_encodings.encodings = positions.numpy()
        side.scale_embeddings = True
        copy_norm(side.layer_norm, ours.norm)
        for layer, our_layer in zip(side.layer, ours.layers, strict=True):
            copy_layer(layer, our_layer)
    copy_linear(spec.decoder.projection, [model.generator])
    spec.config.decoder_start_token, spec.config.bos_token = str(config.bos_id), str(config.bos_id)
    spec.config.eos_token, spec.config.unk_token = str(config.eos_id), "3"
    spec.register_source_vocabulary(id_tokens(config.source_vocab_size))
    spec.register_target_vocabulary(id_tokens(config.target_vocab_size))
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True)
    spec.save(str(folder))


def id_tokens(count: int) -> list[str]:
    """Return a vocabulary in which every id is its own token: CTranslate2 takes texts only."""
    return [str(index) for index in range(count)]


def copy_layer(layer: Any, ours: Any) -> None:
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
    spec.bias = torch.cat([layer.bias for layer in layers]).detach().numpy()


def copy_norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = norm.weight.detach().numpy(), norm.bias.detach().numpy()
